"""Look-ups while others save, on a real Mooncake cluster: what a lease costs, and what not."""

import time

import pytest
from bounded import repeating
from contracts.mooncake_cluster import cluster, eventually, needs_mooncake
from preamble import BS, boot, cache, sl

from ems import CcKvOption, CcResult, Ems

pytestmark = needs_mooncake

LEASE_SECONDS = 0.5
MARGIN_SECONDS = 2.0
"""For a save itself, on a busy computer."""
OPTION = CcKvOption(timeout=20_000)
FULL = 260
"""More entries than the cluster has room for."""


@pytest.fixture
def trial():
    with cluster(segment_nbytes=16 << 20, lease_seconds=LEASE_SECONDS) as trial:
        yield trial


def boot_with(trial, *, metrics):
    """Initialise with a cache of blocks of 64 KiB, of which 230 or so fit into the cluster."""
    url = trial.url if metrics else f"mooncake://127.0.0.1:{trial.port}?segment=0"
    cc = boot(pool=f"{url}&staging=2MiB")
    cc.register_kvcache(cache(layers=1, blocks=8, shape=(BS, 16, 256)))
    return cc


def looking_up(cc, chosen):
    """Look up `chosen()`, on two threads, again and again until the block ends."""
    return repeating(*[lambda: cc.exists([*chosen(), -1], OPTION)] * 2)


@pytest.mark.parametrize("metrics", [True, False], ids=["with-metrics", "without-metrics"])
def test_a_thousand_saves_get_in_while_others_look_up_and_none_waits_longer_than_a_lease(
    trial, metrics
):
    # case 24; without the metrics' port look-ups lease what they find, so not all is looked up
    cc = boot_with(trial, metrics=metrics)
    saved = [0]

    def chosen():
        return range(max(0, saved[0] - (FULL if metrics else 8)), saved[0])

    took = []
    with looking_up(cc, chosen):
        for turn in range(1000):
            start = time.monotonic()
            assert cc.save(sl(turn % 8), [turn], [BS], OPTION) == CcResult(1, 1)
            took.append(time.monotonic() - start)
            saved[0] = turn + 1
            assert cc.exists([turn, -1], OPTION) == CcResult(1, 2)
    assert max(took) < LEASE_SECONDS + MARGIN_SECONDS
    assert cc.counters()["exists"]["calls"] > 1000, "nobody else looked anything up"
    assert cc.exists([0], OPTION) == CcResult(0, 1), "a thousand were too many for the cluster"
    Ems.shutdown()


def test_where_all_is_looked_up_all_the_time_saves_say_in_time_that_there_is_no_room(trial):
    # case 24; nothing can be evicted then, until a lease after the last look-up
    cc = boot_with(trial, metrics=False)
    brief = CcKvOption(timeout=1000)
    took = []
    with looking_up(cc, lambda: range(FULL)):
        for turn in range(FULL):
            start = time.monotonic()
            saved = cc.save(sl(turn % 8), [turn], [BS], brief)
            took.append(time.monotonic() - start)
            if not saved.success:
                break
        assert saved == CcResult(0, 1), "all found room"
        assert max(took) < 1 + MARGIN_SECONDS
        fates = cc.counters()["save"]["hashes_by_fate"]
        assert (fates["no_space"], fates["done"]) == (1, turn)
        assert eventually(Ems.check_health), "a full cluster is no ill one"
        assert cc.load(sl(0), [0], [BS], OPTION) == CcResult(1, 1)
    start = time.monotonic()
    assert cc.save(sl(0), [-2], [BS], OPTION) == CcResult(1, 1)
    assert time.monotonic() - start < LEASE_SECONDS + MARGIN_SECONDS
    assert Ems.check_health() is True
    assert cc.exists([-2], OPTION) == CcResult(1, 1)
    Ems.shutdown()
