import threading
import time

import pytest
from bounded import within
from transfer_fakes import OPENED, MemmoveDevice, Work, World

from ems.common.exception import DeviceFailed, EmsException, RequestTimeout
from ems.common.future import Outcome
from ems.device.base import Direction, StillMoving
from ems.transfer.naps import Pace
from ems.transfer.pipeline import Pipeline
from ems.transfer.slices import spans_between
from ems.transfer.task import Task


class Course:
    """A pipeline of small copies, and what became of each."""

    def __init__(self, device, *, seconds=None, drain_seconds=30.0):
        self.device = device
        self.world = World()
        deadline = None if seconds is None else time.monotonic() + seconds
        self.outcome = Outcome(deadline)
        task = Task(Direction.OUT, [], Work(), self.outcome)
        channel = device.open_channel(Direction.OUT)
        OPENED.append(device)
        self.pipeline = Pipeline(device, channel, task, Pace(), drain_seconds=drain_seconds)
        self.settled = {}

    def push(self, number, *, plan=None):
        pushed = len(self.device.copies)

        def settle(arrived):
            assert number not in self.settled, "settled twice"
            if pushed < len(self.device.copies):
                assert self.device.copies[pushed].done(), "settled while its bytes move"
            self.settled[number] = arrived

        self.pipeline.push(plan or (lambda: self.spans(number)), settle)

    def spans(self, number):
        parts = self.world.parts([number], [number])
        [place] = self.world.pool.reserve(
            parts[0].keys, parts[0].tokens.tolist(), parts[0].nbytes.tolist(), deadline=None
        )
        return spans_between(parts, [{0: place}])


def test_every_copy_is_settled_once_and_in_order():
    course = Course(MemmoveDevice())
    for number in range(6):
        within(course.push, number)
    within(course.pipeline.finish)
    assert list(course.settled.items()) == [(number, True) for number in range(6)]


def test_nothing_is_settled_while_it_moves():
    course = Course(MemmoveDevice(gate=threading.Semaphore(0)))
    course.push(0)
    course.push(1)
    third = threading.Thread(target=course.push, args=[2], daemon=True)
    third.start()
    third.join(0.1)
    assert third.is_alive()
    assert course.settled == {}
    assert len(course.device.copies) == 2
    for _ in range(3):
        course.device.gate.release()
    third.join(60)
    within(course.pipeline.finish)
    assert course.settled == {0: True, 1: True, 2: True}


def test_a_failed_copy_is_settled_as_failed_and_raised():
    course = Course(MemmoveDevice(moods={1: "fails"}))
    course.push(0)
    course.push(1)
    with pytest.raises(DeviceFailed, match="a copy failed"):
        within(course.pipeline.finish)
    within(course.pipeline.drain)
    assert course.settled == {0: False, 1: True}


def test_a_failure_seen_when_pushing_settles_the_copy_that_was_not_started():
    course = Course(MemmoveDevice(moods={1: "fails"}))
    course.push(0)
    course.push(1)
    with pytest.raises(DeviceFailed, match="a copy failed"):
        within(course.push, 2)
    within(course.pipeline.drain)
    assert course.settled == {0: False, 2: False, 1: True}
    assert len(course.device.copies) == 2


def test_a_refused_copy_is_settled_and_the_others_are_drained():
    course = Course(MemmoveDevice(moods={2: "is refused"}))
    course.push(0)
    with pytest.raises(DeviceFailed, match="was refused"):
        within(course.push, 1)
    within(course.pipeline.drain)
    assert course.settled == {1: False, 0: True}


def test_a_refused_copy_that_goes_on_is_never_settled():
    course = Course(MemmoveDevice(moods={1: "is refused and goes on"}))
    with pytest.raises(StillMoving):
        within(course.push, 0)
    within(course.pipeline.drain)
    assert course.settled == {}


def test_a_plan_that_fails_settles_its_copy():
    course = Course(MemmoveDevice())

    def fail():
        raise MemoryError("no room for the spans")

    with pytest.raises(MemoryError):
        within(lambda: course.push(0, plan=fail))
    assert course.settled == {0: False}


def test_a_deadline_that_has_passed_starts_no_further_copy_and_drains_the_others():
    course = Course(MemmoveDevice(gate=threading.Semaphore(0)), seconds=60)
    course.push(0)
    course.outcome.deadline = time.monotonic() - 1
    with pytest.raises(RequestTimeout):
        within(course.push, 1)
    assert course.settled == {1: False}
    course.device.gate.release()
    within(course.pipeline.drain)
    assert course.settled == {1: False, 0: True}
    assert len(course.device.copies) == 1


def test_a_copy_that_lands_after_the_deadline_is_used_and_the_request_times_out():
    course = Course(MemmoveDevice(gate=threading.Semaphore(0)), seconds=60)
    course.push(0)
    course.outcome.deadline = time.monotonic() - 1
    course.device.gate.release()
    with pytest.raises(RequestTimeout):
        within(course.pipeline.finish)
    assert course.settled == {0: True}


def test_a_copy_that_never_ends_is_given_up_with_the_device_and_never_settled():
    course = Course(MemmoveDevice(moods={1: "hangs"}), seconds=60, drain_seconds=0.05)
    course.push(0)
    course.outcome.deadline = time.monotonic() - 1
    with pytest.raises(StillMoving, match="may still go on"):
        within(course.pipeline.finish)
    assert course.device.lost
    assert course.settled == {}


def test_without_a_deadline_a_copy_that_never_ends_is_given_up_once_the_device_is_lost():
    course = Course(MemmoveDevice(moods={1: "hangs"}), drain_seconds=0.05)
    course.push(0)
    course.device.give_up("the other direction saw it fail")
    with pytest.raises(StillMoving):
        within(course.pipeline.finish)
    assert course.settled == {}


def test_without_a_deadline_draining_a_failed_request_ends_all_the_same():
    course = Course(MemmoveDevice(moods={1: "hangs"}), drain_seconds=0.05)
    course.push(0)
    within(course.pipeline.drain)
    assert course.device.lost
    assert course.settled == {}


@pytest.mark.parametrize("error", [EmsException, RuntimeError])
def test_draining_goes_on_when_settling_raises(error):
    course = Course(MemmoveDevice())
    settled = []

    def settle(arrived):
        settled.append(arrived)
        raise error("boom")

    for number in range(2):
        course.pipeline.push(lambda number=number: course.spans(number), settle)
    within(course.pipeline.drain)
    assert settled == [True, True]


def test_time_counts_as_copying_exactly_while_bytes_move_and_else_by_its_name():
    course = Course(MemmoveDevice(gate=threading.Semaphore(0)))
    pipeline, phases = course.pipeline, course.pipeline.tally.phases
    course.push(0)
    assert set(phases) == {"plan", "start"}
    planned = phases["plan"]
    pipeline.lap("plan")
    assert phases["copy"] > 0
    assert phases["plan"] == planned
    course.device.gate.release()
    assert course.device.copies[0].ended.wait(60)
    pipeline.lap("plan")
    assert phases["plan"] > planned


def test_the_next_copy_starts_before_an_earlier_one_is_settled():
    device = MemmoveDevice()
    course = Course(device)
    order = []
    for number in range(3):
        spans = course.spans(number)
        within(
            course.pipeline.push,
            lambda spans=spans: spans,
            lambda arrived, number=number: order.append((number, arrived, len(device.copies))),
        )
    assert order == [(0, True, 3)]
    within(course.pipeline.finish)
    assert [number for number, *_ in order] == [0, 1, 2]
