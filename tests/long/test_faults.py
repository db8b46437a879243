"""Every point of the smallest requests fails once; the long run does it again and again."""

import faults_run
import pytest


@pytest.mark.parametrize("pool", faults_run.POOLS)
def test_a_request_of_which_any_one_step_fails_ends_once_tells_the_truth_and_harms_nothing(pool):
    shown = faults_run.run(1, 0, pools=(pool,), forms=("slots",), calls=("save", "async_load"))
    assert " failures: " in shown
