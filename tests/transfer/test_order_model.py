from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from transfer_fakes import Names, Work, ready

from ems.common.exception import DeviceFailed
from ems.common.future import Outcome
from ems.common.result import CcResult
from ems.device.base import Direction
from ems.transfer.order import Order
from ems.transfer.task import Task

SAVE, LOAD = Direction.OUT, Direction.IN

few = st.lists(st.integers(0, 3), min_size=1, max_size=3)
directions = st.sampled_from([SAVE, LOAD])


def conflict(one, other):
    """The rule itself, pair by pair."""
    share_key = set(one.parts[0].keys) & set(other.parts[0].keys)
    if share_key and (one.direction, other.direction) != (LOAD, LOAD):
        return True
    share_place = any(
        set(mine.places) & set(theirs.places)
        for mine, theirs in zip(one.parts, other.parts, strict=True)
    )
    return share_place and (one.direction, other.direction) != (SAVE, SAVE)


class OrderAgreesWithPairwiseRule(RuleBasedStateMachine):
    """Streams finish their works in order; every step asks for the one task the rule allows."""

    def __init__(self):
        super().__init__()
        self.order = Order()
        self.unfinished = []
        self.running = []
        self.streams = {0: [], 1: []}

    @rule(direction=directions, keys=few, blocks=few, others=few, stream=st.integers(0, 1))
    def submit(self, direction, keys, blocks, others, stream):
        work = Work(stream, finished=False)
        task = Task(
            direction, [Names(keys, blocks, 0), Names(keys, others, 1)], work, Outcome(None)
        )
        self.streams[stream].append(work)
        self.unfinished.append(task)
        self.order.submit(task)

    @precondition(lambda self: any(self.streams.values()))
    @rule(data=st.data())
    def finish_the_work_of_a_stream(self, data):
        stream = data.draw(st.sampled_from([at for at in self.streams if self.streams[at]]))
        count = data.draw(st.integers(1, len(self.streams[stream])))
        for _ in range(count):
            self.streams[stream].pop(0).is_finished = True

    @rule(direction=directions)
    def take(self, direction):
        allowed = self.allowed(direction)
        task = ready(self.order, direction)
        assert task is allowed
        if task is not None:
            self.running.append(task)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data):
        task = data.draw(st.sampled_from(self.running))
        task.outcome.end(CcResult(1, 1))
        self.running.remove(task)
        self.unfinished.remove(task)
        self.order.finish(task)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def expire(self, data):
        task = data.draw(st.sampled_from(self.waiting()))
        task.outcome.deadline = 0.0
        assert task.outcome.ended
        self.unfinished.remove(task)

    @precondition(lambda self: self.waiting())
    @rule(direction=directions)
    def a_stream_dies(self, direction):
        dead = next((each for each in self.waiting() if self.may_be_asked(each)), None)
        if dead is None or dead.direction is not direction:
            return
        dead.caller_work.failure = DeviceFailed("dead")
        taken = ready(self.order, direction)
        if taken is not None:
            assert taken is not dead
            self.running.append(taken)
        if dead.outcome.ended:
            self.unfinished.remove(dead)
        else:
            dead.caller_work.failure = None

    @invariant()
    def what_runs_is_in_no_conflict(self):
        for at, one in enumerate(self.running):
            for other in self.running[at + 1 :]:
                assert not conflict(one, other)

    @invariant()
    def it_is_idle_when_nothing_is_left(self):
        assert self.order.wait_idle(0) is (not self.unfinished)

    def waiting(self):
        return [task for task in self.unfinished if task not in self.running]

    def may_be_asked(self, task):
        before = self.unfinished[: self.unfinished.index(task)]
        return not any(conflict(task, earlier) for earlier in before)

    def allowed(self, direction):
        for task in self.waiting():
            free = task.direction is direction and self.may_be_asked(task)
            if free and task.caller_work.is_finished:
                return task
        return None


OrderAgreesWithPairwiseRule.TestCase.settings = settings(
    max_examples=150, stateful_step_count=40, deadline=None
)
TestOrderAgreesWithPairwiseRule = OrderAgreesWithPairwiseRule.TestCase
