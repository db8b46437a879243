"""Some seconds of what the long run does for an hour, with fewer ranks."""

import time

import pytest
import soak_run
from contracts.mooncake_cluster import needs_mooncake

SECONDS = 6
PACE = soak_run.Pace(
    ranks=2,
    share=0.2,
    kill_seconds=2.5,
    cluster_seconds=2,
    stop_seconds=2,
    sample_seconds=0.3,
    quiet_seconds=2,
    least_per_minute=10,
    flat_nbytes=64 << 20,
    flat_count=30,
)


@pytest.mark.parametrize("pool", ["lmdb", pytest.param("mooncake", marks=needs_mooncake)])
def test_ranks_that_are_killed_stopped_and_started_again_read_right_bytes(pool):
    seed = time.time_ns() % 2**32
    print(f"seed {seed}")  # noqa: T201 - shown where it fails
    assert "loaded and verified" in soak_run.run(SECONDS / 60, seed, pace=PACE, pools=(pool,))
