"""A few thousand of the calls that the long run `calls` makes by the hundred thousand."""

import time

from sdk_calls import Arguments, make_calls

CALLS = 6000


def test_random_calls_end_in_results_or_failures_of_the_sdk():
    succeeded = make_calls(CALLS, str(time.time_ns()))
    assert CALLS // 10 < succeeded < CALLS * 9 // 10, "the calls are too wild, or too tame"


def test_a_seed_makes_the_same_calls_again():
    def made():
        arguments = Arguments("7")
        return [repr(sorted(arguments.spoiled(arguments.slots_form()))) for _ in range(50)]

    assert made() == made()
