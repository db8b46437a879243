"""Takes pinned memory from the host ahead of need, on a thread of its own.

Pinning costs about a second per GiB and stalls whatever else the process does with its address
space, so no request ever does it: a request waits here for the thread, with its deadline.
"""

import logging
import threading
import time
from collections.abc import Sequence
from itertools import groupby

from ems.common.exception import RequestTimeout
from ems.common.units import format_nbytes
from ems.pool.base import HostMemory
from ems.pool.extents import ALIGNMENT, Extents

_LOG = logging.getLogger(__name__)


class Pinning:
    """Keeps one untouched segment in hand until the capacity is reached.

    Methods say whether they are called with `lock`.
    """

    def __init__(
        self,
        memory: HostMemory,
        extents: Extents,
        *,
        capacity_nbytes: int,
        segment_nbytes: int,
        retry_seconds: float,
    ) -> None:
        self.lock = threading.Lock()
        """Guards `extents` and every attribute here; the pool guards its ledger with it, too."""
        self.closed = False
        self.failure: str | None = None
        """What the host said when it gave nothing, until it gives again."""
        self._memory = memory
        self._extents = extents
        self._capacity_nbytes = capacity_nbytes
        self._segment_nbytes = segment_nbytes
        self._retry_seconds = retry_seconds
        self._due = threading.Condition(self.lock)
        self._changed = threading.Condition(self.lock)
        self._segments: list[int] = []
        self._under_way_nbytes = 0
        self._wanted_nbytes = 0
        self._retry_at = 0.0
        # a daemon: a host that never answers must not keep the interpreter from ending
        self._thread = threading.Thread(target=self._run, name="ems-pinning", daemon=True)
        self._thread.start()

    def wait(self, nbytes: int, *, deadline: float | None) -> bool:
        """Wait until something changes; False at once when no memory for `nbytes` is to come.

        Called with the lock, which is given up meanwhile.

        Raises:
            RequestTimeout: the deadline has passed.
        """
        if not self._coming(nbytes):
            return False
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise RequestTimeout(
                f"the time-out passed while {format_nbytes(nbytes)} waited for memory of the pool: "
                f"{format_nbytes(self._extents.backed_nbytes)} of "
                f"{format_nbytes(self._capacity_nbytes)} are pinned, more is on its way"
            )
        self._wanted_nbytes = max(self._wanted_nbytes, nbytes)
        self._due.notify()
        self._changed.wait(left)
        return True

    def fitting(self, sizes: Sequence[int]) -> int:
        """Return how many extents, the first ones, find room before one must go for the next.

        As if nothing were taken. Each lies in one segment, so what is left at the ends of segments
        is of no use. What is larger than all of them takes no room. With the lock.
        """
        to_come = -(-self._room_nbytes() // self._segment_nbytes)
        most_unused_nbytes = (len(self._segments) + to_come + 1) * max(sizes, default=0)
        if not self.failure and sum(sizes) + most_unused_nbytes <= self._capacity_nbytes:
            return len(sizes)
        empty = Extents()
        for nbytes in filter(None, (*self._extents.segment_sizes, self._under_way_nbytes)):
            empty.add_segment(empty.backed_nbytes, nbytes)
        fitting = 0
        for size, run in groupby(sizes):
            count = len(list(run))
            found = self._found(empty, size, count)
            if found < count and size <= empty.largest_segment_nbytes:
                return fitting + found
            fitting += count
        return fitting

    def taken(self) -> None:
        """Start on the next segment when the one in hand has been used. With the lock."""
        if self._next_nbytes():
            self._due.notify()

    def given(self) -> None:
        """Let those look again who wait for memory. With the lock."""
        self._changed.notify_all()

    def close(self) -> None:
        """Take no more, and let everyone who waits know. With the lock; waits for nothing."""
        self.closed = True
        self._due.notify()
        self._changed.notify_all()

    def give_back(self) -> None:
        """Return every segment to the host. Without the lock, after `close`."""
        with self.lock:
            segments, self._segments = self._segments, []
        for address in segments:
            self._memory.free(address)

    def _found(self, extents: Extents, size: int, count: int) -> int:
        """Take up to `count` of `size`, with further segments as they would be pinned."""
        found = 0
        while found < count:
            starts = extents.take(size, count - found)
            found += len(starts)
            room = 0 if self.failure else self._room_nbytes(extents)
            if not starts and size > room:
                break
            if not starts:
                extents.add_segment(
                    extents.backed_nbytes, min(max(size, self._segment_nbytes), room)
                )
        return found

    def _run(self) -> None:
        while nbytes := self._await_need():
            self._pin(nbytes)

    def _pin(self, nbytes: int) -> None:
        try:
            address = self._memory.allocate(nbytes)
        except Exception as error:  # noqa: BLE001 - whatever it is, requests wait for an answer
            self._fail(nbytes, error)
        else:
            self._deliver(address, nbytes)

    def _await_need(self) -> int:
        """Return the size of the segment to pin now, or 0 when the pool is closed."""
        with self.lock:
            while not self.closed:
                nbytes = self._next_nbytes()
                pause = self._retry_at - time.monotonic()
                if nbytes and pause <= 0:
                    self._under_way_nbytes = nbytes
                    return nbytes
                self._due.wait(pause if nbytes else None)
            return 0

    def _deliver(self, address: int, nbytes: int) -> None:
        with self.lock:
            self._under_way_nbytes = self._wanted_nbytes = 0
            self.failure = None
            if not self.closed:
                self._segments.append(address)
                self._extents.add_segment(address, nbytes)
                self._changed.notify_all()
                return
        self._memory.free(address)

    def _fail(self, nbytes: int, error: Exception) -> None:
        with self.lock:
            again = self.failure is not None
            self._under_way_nbytes = self._wanted_nbytes = 0
            self._retry_at = time.monotonic() + self._retry_seconds
            self.failure = f"pinning {format_nbytes(nbytes)} of host memory failed: {error}"
            self._changed.notify_all()
        if not again:
            _LOG.warning("%s; the pool works with what it has, and tries again", self.failure)

    def _coming(self, nbytes: int) -> bool:
        """Whether a segment that `nbytes` fit into is being pinned, or can be."""
        if self.closed:
            return False
        room = self._room_nbytes() - self._under_way_nbytes
        if self._under_way_nbytes:
            return nbytes <= max(room, self._under_way_nbytes)
        return nbytes <= room and time.monotonic() >= self._retry_at

    def _next_nbytes(self) -> int:
        """Return the size of the segment that is due, or 0 for none."""
        room = self._room_nbytes()
        if not room or (self._extents.whole_segments and not self._wanted_nbytes):
            return 0
        return min(max(self._wanted_nbytes, self._segment_nbytes), room)

    def _room_nbytes(self, extents: Extents | None = None) -> int:
        """Return how much the pool may still take from the host; beside `extents`, if given."""
        backed_nbytes = (extents or self._extents).backed_nbytes
        return (self._capacity_nbytes - backed_nbytes) // ALIGNMENT * ALIGNMENT
