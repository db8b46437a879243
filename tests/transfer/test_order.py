import gc
import threading
import time
import weakref

import pytest
from bounded import within
from transfer_fakes import Names, Work, ready

from ems.common.exception import DeviceFailed, EmsException, RequestTimeout
from ems.common.future import Outcome
from ems.common.result import CcResult
from ems.device.base import Direction
from ems.transfer.order import Order
from ems.transfer.task import Task

SAVE, LOAD = Direction.OUT, Direction.IN


class Interrupt(BaseException):
    """As KeyboardInterrupt, without ending the tests."""


class Interrupting(Names):
    """Where the thread of the test works out what it touches, Ctrl-C comes."""

    @property
    def places(self):
        if threading.current_thread() is threading.main_thread():
            raise Interrupt
        return [1]

    @places.setter
    def places(self, value):
        pass


class Broken(Names):
    @property
    def places(self):
        raise MemoryError("no room for the places")

    @places.setter
    def places(self, value):
        pass


def task(direction, keys, blocks, *, work=None, seconds=None):
    deadline = None if seconds is None else time.monotonic() + seconds
    return Task(direction, [Names(list(keys), blocks)], work or Work(), Outcome(deadline))


def grouped(direction, keys, *blocks):
    """Return a task that has blocks in several layer groups."""
    parts = [Names(list(keys), mine, group) for group, mine in enumerate(blocks)]
    return Task(direction, parts, Work(), Outcome(None))


@pytest.fixture
def order():
    return Order()


def submit(order, *tasks):
    for each in tasks:
        order.submit(each)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (task(SAVE, "a", [1]), task(LOAD, "a", [2])),
        (task(LOAD, "a", [1]), task(SAVE, "a", [2])),
        (task(SAVE, "a", [1]), task(SAVE, "a", [2])),
        (task(LOAD, "a", [1]), task(LOAD, "b", [1])),
        (task(SAVE, "a", [1]), task(LOAD, "b", [1])),
        (task(LOAD, "a", [1]), task(SAVE, "b", [1])),
        (task(SAVE, "abc", [1, 2, 3]), task(LOAD, "xyc", [7, 8, 9])),
        (task(LOAD, "abc", [1, 2, 3]), task(LOAD, "xyz", [3, 8, 9])),
        (grouped(LOAD, "a", [1], [5]), grouped(LOAD, "b", [2], [5])),
    ],
    ids=[
        "save, load of the hash",
        "load, save of the hash",
        "save, save of the hash",
        "load, load into the block",
        "save, load into the block",
        "load, save of the block",
        "one hash of several",
        "one block of several",
        "a block of another group",
    ],
)
def test_a_task_waits_for_an_earlier_one(first, second):
    order = Order()
    submit(order, first, second)
    assert ready(order, first.direction) is first
    assert ready(order, second.direction) is None
    order.finish(first)
    assert ready(order, second.direction) is second


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (task(LOAD, "a", [1]), task(LOAD, "a", [2])),
        (task(SAVE, "a", [1]), task(SAVE, "b", [1])),
        (task(SAVE, "a", [1]), task(LOAD, "b", [2])),
        (grouped(LOAD, "a", [1], [2]), grouped(LOAD, "b", [2], [1])),
    ],
    ids=["loads of a hash", "saves of a block", "nothing in common", "equal blocks of two groups"],
)
def test_a_task_does_not_wait_for_an_earlier_one(first, second):
    order = Order()
    submit(order, first, second)
    assert ready(order, first.direction) is first
    assert ready(order, second.direction) is second


def test_a_task_that_repeats_a_hash_and_a_block_does_not_wait_for_itself(order):
    mine = task(SAVE, "aa", [1, 1])
    submit(order, mine)
    assert ready(order, SAVE) is mine
    order.finish(mine)
    assert order.wait_idle(0)


def test_a_task_waits_for_all_of_several_and_not_for_those_behind_it(order):
    one, two, both = task(SAVE, "a", [1]), task(SAVE, "b", [2]), task(LOAD, "ab", [8, 9])
    later = task(SAVE, "a", [3])
    submit(order, one, two, both, later)
    assert [ready(order, SAVE), ready(order, SAVE)] == [one, two]
    order.finish(two)
    assert ready(order, LOAD) is None
    order.finish(one)
    assert ready(order, LOAD) is both
    assert ready(order, SAVE) is None
    order.finish(both)
    assert ready(order, SAVE) is later


def test_a_later_task_overtakes_one_that_waits_for_a_slow_stream(order):
    slow = task(SAVE, "a", [1], work=Work("slow", finished=False))
    quick = task(SAVE, "b", [2], work=Work("quick"))
    submit(order, slow, quick)
    assert ready(order, SAVE) is quick
    assert ready(order, SAVE) is None
    slow.caller_work.is_finished = True
    assert ready(order, SAVE) is slow


def test_a_task_that_depends_on_one_behind_a_slow_stream_waits_as_well(order):
    slow = task(SAVE, "a", [1], work=Work("slow", finished=False))
    submit(order, slow, task(LOAD, "a", [2], work=Work("quick")))
    assert ready(order, LOAD) is None


def test_behind_unfinished_work_the_same_stream_is_not_asked_again(order):
    works = [Work("stream", finished=False) for _ in range(3)]
    submit(order, *(task(SAVE, str(at), [at], work=work) for at, work in enumerate(works)))
    assert ready(order, SAVE) is None
    assert [work.looks for work in works] == [1, 0, 0]


def test_tasks_of_one_stream_run_in_their_order(order):
    tasks = [task(SAVE, str(at), [at]) for at in range(5)]
    submit(order, *tasks)
    assert [ready(order, SAVE) for _ in tasks] == tasks


def test_a_waiting_task_whose_deadline_passes_is_ended_and_holds_nobody_up(order):
    expired = task(SAVE, "a", [1], work=Work("slow", finished=False), seconds=0)
    behind = task(LOAD, "a", [2])
    submit(order, expired, behind)
    assert ready(order, SAVE) is None
    assert ready(order, LOAD) is behind
    with pytest.raises(RequestTimeout, match="waiting"):
        within(expired.outcome.get)


def test_whoever_asks_for_an_overdue_task_can_be_interrupted_without_harm_to_others(order):
    running = task(SAVE, "a", [1])
    submit(order, running)
    assert ready(order, SAVE) is running
    expired, other = task(SAVE, "b", [2], seconds=0), task(SAVE, "c", [3])
    other.parts = [Interrupting(["c"], [])]
    submit(order, expired, other)
    with pytest.raises(RequestTimeout):
        expired.outcome.get()
    assert ready(order, SAVE) is other


def test_a_task_whose_submission_was_interrupted_does_not_wait_for_the_next(order, monkeypatch):
    worker, taken = threading.Event(), []

    def work():
        worker.set()
        taken.append(order.next(SAVE))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    assert worker.wait(10)
    only = task(SAVE, "a", [1])

    def interrupted():
        raise Interrupt

    monkeypatch.setattr(order._came[SAVE], "notify", interrupted)
    with pytest.raises(Interrupt):
        order.submit(only)
    thread.join(10)
    assert taken == [only]


def test_whoever_asks_ends_an_overdue_task_though_no_worker_looks(order):
    running, blocked = task(SAVE, "a", [1]), task(LOAD, "a", [2], seconds=0)
    submit(order, running, blocked)
    assert ready(order, SAVE) is running
    assert blocked.outcome.ended
    with pytest.raises(RequestTimeout):
        blocked.outcome.get()
    order.finish(running)
    assert order.wait_idle(0)


def test_a_running_task_whose_deadline_passes_is_not_ended_by_whoever_asks(order):
    running = task(SAVE, "a", [1], seconds=3600)
    submit(order, running)
    assert within(order.next, SAVE) is running
    running.outcome.deadline = 0.0
    assert not running.outcome.ended
    running.outcome.end(CcResult(1, 1))
    order.finish(running)
    assert running.outcome.get() == CcResult(1, 1)


@pytest.mark.parametrize("error", [DeviceFailed("the queue is dead"), RuntimeError("boom")])
def test_work_that_can_never_finish_ends_its_task_and_holds_nobody_up(order, error):
    dead = task(SAVE, "a", [1], work=Work("dead"))
    dead.caller_work.failure = error
    behind = task(SAVE, "a", [1])
    submit(order, dead, behind)
    assert within(order.next, SAVE) is behind
    with pytest.raises(EmsException, match=str(error)):
        within(dead.outcome.get)


def test_a_task_that_cannot_be_looked_through_fails_alone(order):
    broken = task(SAVE, "a", [1])
    broken.parts = [Broken(["a"], [])]
    sound = task(SAVE, "a", [1])
    submit(order, broken, sound)
    assert within(order.next, SAVE) is sound
    with pytest.raises(EmsException, match="no room for the places"):
        within(broken.outcome.get)
    order.finish(sound)
    assert order.wait_idle(0)


def test_a_worker_that_waits_is_woken_by_a_submission_and_by_an_end(order):
    first, second = task(SAVE, "a", [1]), task(LOAD, "a", [2])
    got = []
    worker = threading.Thread(target=lambda: got.append(order.next(LOAD)), daemon=True)
    worker.start()
    submit(order, first, second)
    assert within(order.next, SAVE) is first
    worker.join(0.05)
    assert got == []
    order.finish(first)
    worker.join(60)
    assert got == [second]


def test_a_worker_that_waits_is_woken_when_the_callers_work_is_done(order):
    slow = task(SAVE, "a", [1], work=Work("slow", finished=False))
    submit(order, slow)
    threading.Timer(0.05, lambda: setattr(slow.caller_work, "is_finished", True)).start()
    assert within(order.next, SAVE) is slow


def test_after_close_tasks_that_were_submitted_run_and_then_workers_end(order):
    last = task(SAVE, "a", [1])
    submit(order, last)
    order.close()
    assert within(order.next, LOAD) is None
    assert within(order.next, SAVE) is last
    order.finish(last)
    assert within(order.next, SAVE) is None


def test_after_close_a_submission_is_refused_and_waiting_workers_end(order):
    worker = threading.Thread(target=order.next, args=[SAVE], daemon=True)
    worker.start()
    order.close()
    worker.join(60)
    assert not worker.is_alive()
    with pytest.raises(EmsException, match="shut down"):
        submit(order, task(SAVE, "a", [1]))


def test_giving_up_ends_what_has_not_begun_and_stops_what_has(order):
    running = task(SAVE, "a", [1])
    waiting = [task(LOAD, "a", [2]), task(SAVE, "b", [3], work=Work("slow", finished=False))]
    submit(order, running, *waiting)
    assert ready(order, SAVE) is running
    assert order.fail_waiting(EmsException("shut down")) == 3
    for each in waiting:
        with pytest.raises(EmsException, match="shut down"):
            within(each.outcome.get)
    assert running.outcome.overdue
    assert not running.outcome.ended
    order.finish(running)
    assert order.wait_idle(0)


def test_idle_means_that_every_submitted_task_has_finished(order):
    assert order.wait_idle(0)
    only = task(SAVE, "a", [1])
    submit(order, only)
    assert not order.wait_idle(0)
    assert ready(order, SAVE) is only
    assert not order.wait_idle(0)
    order.finish(only)
    assert within(order.wait_idle, None)


def test_what_a_finished_task_used_is_let_go_though_its_outcome_is_kept(order):
    done = task(SAVE, "a", [1])
    outcome, gone = done.outcome, weakref.ref(done)
    submit(order, done)
    assert ready(order, SAVE) is done
    outcome.end(CcResult(1, 1))
    order.finish(done)
    gc.disable()
    try:
        del done
        assert gone() is None
    finally:
        gc.enable()
