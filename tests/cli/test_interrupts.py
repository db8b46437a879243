import signal
import threading

import pytest

from ems_cli.diagnostics.interrupts import interrupts_held


def interrupted(times, reached):
    with interrupts_held():
        for _ in range(times):
            signal.raise_signal(signal.SIGINT)
        reached.append("the end")


@pytest.mark.parametrize(("times", "expected"), [(1, ["the end"]), (2, [])])
def test_an_interrupt_waits_for_the_end_of_the_block_and_a_second_does_not(times, expected):
    reached = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(times, reached)
    assert reached == expected
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with interrupts_held():
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_other_threads_are_left_alone():
    found = []

    def look():
        with interrupts_held():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]
