"""Some rounds of what the long run does a thousand times; ranks are killed in test_soak.py."""

import time

import kills_run
import pytest
from contracts.mooncake_cluster import needs_mooncake


@pytest.mark.parametrize(
    ("pool", "rounds"), [("lmdb", 250), pytest.param("mooncake", 5, marks=needs_mooncake)]
)
def test_whoever_is_killed_values_are_right_or_missing_and_the_pool_works(pool, rounds):
    # cases 8 and 47
    shown = kills_run.run(rounds, time.time_ns() % 2**32, pools=(pool,), with_ranks=False)
    assert shown.startswith("killed ")
