"""A few thousand of the operations that the long run makes by the million."""

import time

import history_run
import pytest
from contracts.mooncake_cluster import WHY_NOT

import ems.client
from ems import Ems
from ems.pool.ledger import Ledger
from ems.pool.registry import open_pool
from ems.simulator.control import setting


def test_random_histories_agree_with_a_plain_model():
    assert "load" in history_run.run(3000, time.time_ns(), with_cluster=False)


@pytest.mark.mooncake
@pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
def test_they_agree_on_a_mooncake_cluster_too():
    assert history_run.on_cluster(250, time.time_ns())["load"]


def test_a_seed_makes_the_same_history_again():
    def begun():
        machine = history_run.Machine("7")
        try:
            return machine.random.random()
        finally:
            machine.leave()

    assert begun() == begun()


def test_a_history_that_fails_tells_its_seed_and_the_last_operations(monkeypatch):
    missed = Ledger.acquire

    def forgetful(ledger, keys, tokens):
        return missed(ledger, [*keys[:1] * len(keys)], tokens)

    monkeypatch.setattr(Ledger, "acquire", forgetful)
    with pytest.raises(AssertionError, match=r"history\('7-0'\), operation \d+") as told:
        history_run.run(2000, "7")
    assert "the last of them" in str(told.value)
    assert Ems.get_cc() is None
    assert not setting("DELAY")
    assert ems.client.open_pool is open_pool
