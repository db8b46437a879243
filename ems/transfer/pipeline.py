"""Copies under way: a few at a time, each checked, all waited for before a task ends."""

import time
from collections import deque
from collections.abc import Callable

from ems.common.exception import DeviceFailed, EmsException
from ems.device.base import Channel, Copy, Device
from ems.layout.copy_plan import Spans
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

    def __init__(self, device: Device, channel: Channel, task: Task) -> None:
        self._device = device
        self._channel = channel
        self._task = task
        self._under_way: deque[tuple[Copy, Callable[[bool], None]]] = deque()

    def push(self, spans: Spans, settle: Callable[[bool], None]) -> None:
        """Start a copy, after the oldest has ended where the channel is full.

        Raises:
            RequestTimeout: the task's deadline has passed; the copy was not started.
            DeviceFailed: a copy failed.
        """
        try:
            while len(self._under_way) >= self._channel.lanes:
                self._land()
            self._task.check_deadline("copying")
            copy = self._channel.start(spans)
        except BaseException:
            settle(False)
            raise
        self._under_way.append((copy, settle))

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
        while self._under_way:
            try:
                self._land()
            except EmsException:
                continue

    def _land(self) -> None:
        copy, settle = self._under_way.popleft()
        in_time = self._wait(copy)
        try:
            copy.check()
        except DeviceFailed:
            settle(False)
            raise
        settle(True)
        if not in_time:
            raise self._task.timeout("copying")

    def _wait(self, copy: Copy) -> bool:
        """Wait for a copy to end; return whether that was before the deadline."""
        deadline = self._task.outcome.deadline
        pause = naps()
        while not copy.done():
            if deadline is not None and time.monotonic() > deadline + _DRAIN_SECONDS:
                reason = f"a copy has not ended {_DRAIN_SECONDS:.0f} s after its request's time-out"
                self._device.give_up(reason)
                raise DeviceFailed(f"npu:{self._device.index}: {reason}; it may still go on")
            time.sleep(next(pause))
        return deadline is None or time.monotonic() < deadline
