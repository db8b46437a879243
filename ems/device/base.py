"""What transfer needs of an NPU: to know when the caller's work is done, and to copy spans."""

import enum
from collections.abc import Hashable
from typing import Protocol

from ems.common.exception import DeviceFailed
from ems.layout.copy_plan import Spans


class Direction(enum.Enum):
    """Which way bytes move between device memory and host memory."""

    OUT = "device to host"
    IN = "host to device"


class StillMoving(DeviceFailed):
    """A copy does not end: the memory that it names must never be used again."""


class CallerWork(Protocol):
    """What a thread had queued on its current stream at one moment."""

    @property
    def source(self) -> Hashable:
        """The stream: works of one source finish in the order in which they were made."""

    def finished(self) -> bool:
        """Return whether the NPU has done it all.

        Raises:
            DeviceFailed: it never will: torch's queue for this device is dead.
        """


class Copy(Protocol):
    """A batch of spans on its way."""

    def done(self) -> bool:
        """Return whether no byte of it moves any more; says nothing of success.

        Raises:
            DeviceFailed: the NPU does not answer.
        """

    def check(self) -> None:
        """Return if all bytes have arrived. To be called once `done`, before they are used.

        Raises:
            DeviceFailed: some have not.
        """


class Channel(Protocol):
    """Copies in one direction, on streams of its own. Used by the thread that opened it."""

    lanes: int
    """Copies that may be on their way at once; further ones must wait for the oldest."""

    def start(self, spans: Spans) -> Copy:
        """Queue copies of all spans.

        Raises:
            StillMoving: refused, and what was queued does not end.
            DeviceFailed: refused. Some spans may have moved, none moves any more.
        """

    def close(self) -> None:
        """Give the streams back. To be called once no copy is on its way."""


class Device(Protocol):
    """One NPU, seen from one process."""

    index: int
    """As torch counts: among the visible devices."""

    @property
    def lost(self) -> str | None:
        """Why this process makes no further copies on it; None while it works."""

    def caller_work(self) -> CallerWork:
        """Return what the calling thread has queued on its current stream of this device.

        Raises:
            DeviceFailed: torch's queue for this device has failed.
        """

    def bind(self) -> None:
        """Have the calling thread use this device, before it asks for the end of callers' work.

        The runtime answers a thread that has set no device with 107002, or takes it for one of
        device 0, and then refuses it the streams of others.
        """

    def open_channel(self, direction: Direction) -> Channel:
        """Return a channel for the calling thread, which is bound to this device by it."""

    def give_up(self, reason: str) -> None:
        """Count the device as lost."""
