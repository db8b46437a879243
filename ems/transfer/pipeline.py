"""Copies under way: a few at a time, each checked, all waited for before a task ends."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from ems.common.exception import DeviceFailed
from ems.device.base import Channel, Copy, Device, StillMoving
from ems.layout.copy_plan import Spans
from ems.telemetry.tally import Tally
from ems.transfer.naps import Pace
from ems.transfer.task import Task

_DRAIN_SECONDS = 30.0
"""How long a copy may stay under way after its task should have ended, before the NPU counts as
lost and the copy's host memory is never used again."""


class _UnderWay(NamedTuple):
    copy: Copy
    nbytes: int
    started: float
    settle: Callable[[bool], None]


class Pipeline:
    """The copies of one task, in order.

    Each copy comes with a `settle`, which is called once when none of its bytes move any more: with
    True if all have arrived. It is not called for a copy of which that can never be said.
    """

    def __init__(
        self,
        device: Device,
        channel: Channel,
        task: Task,
        pace: Pace,
        *,
        drain_seconds: float = _DRAIN_SECONDS,
    ) -> None:
        self._device = device
        self._channel = channel
        self._task = task
        self._pace = pace
        self._drain_seconds = drain_seconds
        self._failed_at: float | None = None
        """When the task was seen to have failed, in whatever way."""
        self._under_way: deque[_UnderWay] = deque()

    def push(self, plan: Callable[[], Spans], settle: Callable[[bool], None]) -> None:
        """Start the copy that `plan` returns, after the oldest has ended where the channel is full.

        Raises:
            RequestTimeout: the task's deadline has passed; the copy was not started.
            DeviceFailed: a copy failed.
        """
        arrived: _UnderWay | None = None
        try:
            spans = plan()  # while the others move
            self.lap("plan")
            if len(self._under_way) >= self._channel.lanes:
                arrived = self._arrival()
        except BaseException:
            settle(False)
            raise
        try:
            self._start(spans, settle)
        finally:
            if arrived is not None:  # once the next one moves
                self._settle(arrived)

    def _start(self, spans: Spans, settle: Callable[[bool], None]) -> None:
        started = time.perf_counter()
        try:
            self._task.check_deadline("copying")
            copy = self._channel.start(spans)
        except StillMoving:
            raise
        except BaseException:
            settle(False)
            raise
        self.lap("start")
        self._under_way.append(_UnderWay(copy, spans.total_nbytes, started, settle))

    def lap(self, name: str) -> None:
        """Note the time since the last lap: as copying, if bytes still move, whatever it was."""
        self.tally.lap("copy" if self._moves() else name)

    def _moves(self) -> bool:
        with suppress(DeviceFailed):  # who waits for the copy is told
            return any(not one.copy.done() for one in self._under_way)
        return False

    @property
    def tally(self) -> Tally:
        """Notes of the task."""
        return self._task.tally

    @property
    def lanes(self) -> int:
        """Copies that can be under way at once."""
        return self._channel.lanes

    def make_room(self) -> None:
        """Wait until another copy can start; raises as `finish` does."""
        while len(self._under_way) >= self._channel.lanes:
            self._land()

    def finish(self) -> None:
        """Wait for all copies.

        Raises:
            RequestTimeout: the deadline passed first; the copies have ended all the same.
            DeviceFailed: a copy failed.
        """
        while self._under_way:
            self._land()

    def drain(self) -> None:
        """Wait for all copies of a task that has failed already; their failures add nothing."""
        self._failed_at = time.monotonic()
        while self._under_way:
            with suppress(Exception):
                self._land()

    def _land(self) -> None:
        one = self._arrival()
        in_time = not self._task.outcome.overdue
        self._settle(one)
        if not in_time:
            raise self._task.timeout("copying")

    def _settle(self, one: "_UnderWay") -> None:
        self.tally.nbytes += one.nbytes
        one.settle(True)
        self.lap("commit")

    def _arrival(self) -> "_UnderWay":
        """Wait for the oldest copy and return it: all its bytes have arrived."""
        self.lap("plan")  # of whatever has kept this thread from looking
        one = self._under_way.popleft()
        self._wait(one)
        self.tally.lap("copy")
        try:
            one.copy.check()
        except BaseException:
            one.settle(False)
            raise
        return one

    def _wait(self, one: "_UnderWay") -> None:
        pause = self._pace.naps(one.nbytes, one.started)
        while not one.copy.done():
            if self._failed_at is None and (self._device.lost or self._task.outcome.overdue):
                self._failed_at = time.monotonic()
            if self._failed_at and time.monotonic() > self._failed_at + self._drain_seconds:
                reason = f"a copy has not ended {self._drain_seconds:g} s after its request failed"
                self._device.give_up(reason)
                raise StillMoving(f"npu:{self._device.index}: {reason}; it may still go on")
            time.sleep(next(pause))
        self._pace.note(one.nbytes, time.perf_counter() - one.started)
