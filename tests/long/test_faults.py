"""Some of the points at which small requests can fail; the long run takes all, again and again."""

import time

import faults_run
import pytest
from contracts.mooncake_cluster import needs_mooncake

MOONCAKE = pytest.param("mooncake", marks=needs_mooncake)


def fail_at_some(**which):
    seed = time.time_ns()
    print(f"seed {seed}")  # noqa: T201 - pytest shows it where the test fails
    assert " failures: " in faults_run.run(1, seed, **which)


@pytest.mark.parametrize("pool", [*faults_run.LOCAL_POOLS, MOONCAKE])
def test_a_request_of_which_any_one_step_fails_ends_once_tells_the_truth_and_harms_nothing(pool):
    fail_at_some(pools=(pool,), forms=("slots",), calls=("save", "async_load"), share=4)


@pytest.mark.parametrize("pool", ["lmdb", "tiered", MOONCAKE])
def test_so_does_a_request_of_any_form_over_what_leaves_the_process(pool):
    fail_at_some(pools=(pool,), forms=("tokens", "buffers"), calls=("async_save", "load"), share=20)
