"""Copies under way: a few at a time, each checked, all waited for before a task ends."""

import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ems.device.base import Channel, Copy, Device, StillMoving
from ems.layout.copy_plan import Spans
from ems.telemetry.tally import Tally
from ems.transfer.order import naps
from ems.transfer.task import Task

_DRAIN_SECONDS = 30.0
"""How long a copy may stay under way after its task should have ended, before the NPU counts as
lost and the copy's host memory is never used again."""


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
        *,
        drain_seconds: float = _DRAIN_SECONDS,
    ) -> None:
        self._device = device
        self._channel = channel
        self._task = task
        self._drain_seconds = drain_seconds
        self._failed_at: float | None = None
        """When the task was seen to have failed, in whatever way."""
        self._under_way: deque[tuple[Copy, int, Callable[[bool], None]]] = deque()

    def push(self, plan: Callable[[], Spans], settle: Callable[[bool], None]) -> None:
        """Start the copy that `plan` returns, after the oldest has ended where the channel is full.

        Raises:
            RequestTimeout: the task's deadline has passed; the copy was not started.
            DeviceFailed: a copy failed.
        """
        try:
            with self.tally.phase("plan"):  # while the others move
                spans = plan()
            self.make_room()
            self._task.check_deadline("copying")
        except BaseException:
            settle(False)
            raise
        try:
            with self.tally.phase("start"):
                copy = self._channel.start(spans)
        except StillMoving:
            raise
        except BaseException:
            settle(False)
            raise
        self._under_way.append((copy, spans.total_nbytes, settle))

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
        copy, nbytes, settle = self._under_way.popleft()
        with self.tally.phase("copy"):
            in_time = self._wait(copy)
        try:
            copy.check()
        except BaseException:
            settle(False)
            raise
        self.tally.nbytes += nbytes
        settle(True)
        if not in_time:
            raise self._task.timeout("copying")

    def _wait(self, copy: Copy) -> bool:
        """Wait for a copy to end; return whether that was before the deadline."""
        pause = naps()
        while not copy.done():
            if self._failed_at is None and (self._device.lost or self._task.outcome.overdue):
                self._failed_at = time.monotonic()
            if self._failed_at and time.monotonic() > self._failed_at + self._drain_seconds:
                reason = f"a copy has not ended {self._drain_seconds:g} s after its request failed"
                self._device.give_up(reason)
                raise StillMoving(f"npu:{self._device.index}: {reason}; it may still go on")
            time.sleep(next(pause))
        return not self._task.outcome.overdue
