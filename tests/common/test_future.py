import gc
import os
import threading
import time
import weakref

import pytest

from ems.common.exception import EmsException, RequestTimeout
from ems.common.future import CcFuture, Outcome
from ems.common.result import CcResult

RESULT = CcResult(2, 3)


@pytest.fixture
def outcome():
    return Outcome(None)


@pytest.fixture
def overdue():
    """A call whose deadline has passed, and which nobody has ended."""
    return Outcome(time.monotonic() - 1)


class Holder:
    """Stands for what a running call keeps in memory."""

    def expire(self):
        pass


def within(seconds, call):
    """Return what `call` returns or raises, on a thread that must end."""
    box = []

    def run():
        try:
            box.append(call())
        except EmsException as error:
            box.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), "hangs"
    return box[0]


def test_a_result_can_be_read_many_times_and_from_any_thread(outcome):
    outcome.end(RESULT)
    future = CcFuture(outcome)
    assert [future.result(), future.result(), within(30, future.result)] == [RESULT] * 3


def test_a_failure_can_be_read_many_times_and_is_the_same(outcome):
    failure = EmsException("boom")
    outcome.end(failure)
    assert [within(30, CcFuture(outcome).result) for _ in range(3)] == [failure] * 3


def test_reading_a_failure_again_and_again_does_not_grow_its_traceback(outcome):
    outcome.end(EmsException("boom"))

    def depth():
        with pytest.raises(EmsException) as caught:
            outcome.get()
        return len(caught.traceback)

    assert [depth() for _ in range(3)] == [depth()] * 3


def test_the_first_end_wins():
    ends = [
        lambda outcome: outcome.end(RESULT),
        lambda outcome: outcome.end(CcResult(0, 3)),
        lambda outcome: outcome.end(EmsException("late")),
    ]
    first, *_ = ends
    for later in ends:
        outcome = Outcome(None)
        first(outcome)
        later(outcome)
        assert outcome.get() == RESULT
    failed = Outcome(None)
    failed.end(EmsException("first"))
    failed.end(RESULT)
    failed.end(EmsException("second"))
    with pytest.raises(EmsException, match=r"^first$"):
        failed.get()


def test_of_ends_at_the_same_time_exactly_one_is_seen_by_all():
    for _ in range(50):
        outcome = Outcome(None)
        start = threading.Barrier(4)

        def end(number, outcome=outcome, start=start):
            start.wait(30)
            outcome.end(CcResult(number, 9))

        threads = [threading.Thread(target=end, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        seen = outcome.get()
        for thread in threads:
            thread.join(30)
        assert outcome.get() is seen


def test_a_future_is_true_whatever_its_state(outcome):
    future = CcFuture(outcome)
    assert future
    outcome.end(EmsException("boom"))
    assert future
    assert CcFuture(Outcome(None))


def test_done_is_false_until_the_end_and_never_raises_the_failure(outcome):
    future = CcFuture(outcome)
    assert future.done() is False
    assert repr(future) == "<CcFuture pending>"
    outcome.end(EmsException("boom"))
    assert future.done() is True
    assert repr(future) == "<CcFuture done>"


def test_a_reader_waits_for_the_end(outcome):
    threading.Timer(0.05, outcome.end, [RESULT]).start()
    assert within(30, CcFuture(outcome).result) == RESULT


@pytest.mark.parametrize("ask", ["done", "result"])
def test_whoever_asks_after_the_deadline_ends_a_call_that_has_not_begun(overdue, ask):
    overdue.when_overdue = lambda: overdue.end(RequestTimeout("timed out"))
    within(30, getattr(CcFuture(overdue), ask))
    assert overdue.ended
    with pytest.raises(RequestTimeout):
        overdue.get()


def test_a_reader_who_waits_when_the_deadline_passes_ends_the_call():
    outcome = Outcome(time.monotonic() + 0.05)
    outcome.when_overdue = lambda: outcome.end(RequestTimeout("timed out"))
    assert isinstance(within(30, outcome.get), RequestTimeout)


def test_a_call_that_moves_bytes_ends_late_rather_than_early(overdue):
    asked = threading.Event()
    overdue.when_overdue = asked.set
    assert overdue.ended is False
    threading.Timer(0.05, overdue.end, [RESULT]).start()
    assert within(30, overdue.get) == RESULT
    assert asked.is_set()


def test_nobody_expires_a_call_before_its_deadline():
    outcome = Outcome(time.monotonic() + 3600)
    outcome.when_overdue = lambda: pytest.fail("expired too early")
    assert outcome.ended is False


@pytest.mark.parametrize("end", ["finish", "fail"])
def test_a_future_that_is_kept_does_not_keep_what_its_call_used(outcome, end):
    holder = Holder()
    outcome.when_overdue = holder.expire
    kept = weakref.ref(holder)
    gc.disable()
    try:
        if end == "finish":
            outcome.end(RESULT)
        else:
            try:
                _raise_with(holder)
            except EmsException as failure:
                outcome.end(failure)
        del holder
        assert kept() is None
    finally:
        gc.enable()
    assert outcome.ended


def _raise_with(holder):
    raise EmsException(f"a frame that holds {holder!r}")


def test_a_dropped_future_leaves_nothing_behind(outcome):
    future = CcFuture(outcome)
    gone = weakref.ref(future)
    del future
    assert gone() is None
    outcome.end(RESULT)


def test_a_forked_child_that_reads_a_running_call_gets_an_error_and_does_not_hang(outcome):
    outcome._pid = os.getpid() + 1  # as a child sees what its parent made
    failure = within(30, outcome.get)
    assert "forked" in str(failure)


@pytest.mark.parametrize("look", [CcFuture.done, repr])
def test_a_forked_child_that_looks_at_a_running_call_does_not_wait_for_it(overdue, look):
    overdue._pid = os.getpid() + 1
    overdue.when_overdue = lambda: pytest.fail("its locks are as threads of the parent had them")
    assert look(CcFuture(overdue)) in {True, "<CcFuture done>"}


def test_a_forked_child_may_read_what_ended_before_the_fork(outcome):
    outcome.end(RESULT)
    outcome._pid = os.getpid() + 1
    assert outcome.get() == RESULT
