"""A bounded stretch of pinned memory that engines put entries through."""

import ctypes
import threading
import time
from collections.abc import Sequence
from itertools import groupby

import numpy as np
import numpy.typing as npt

from ems.common.exception import PoolUnavailable, RequestTimeout
from ems.common.units import format_nbytes
from ems.pool.base import HostMemory
from ems.pool.extents import Extents, aligned

Bytes = npt.NDArray[np.uint8]


class Staging:
    """Memory taken from the host once, and lent in pieces that start on multiples of 64.

    Never more is lent than there is: who finds none waits, with a deadline. A call is served as a
    whole or not at all, so nobody waits with half of what was asked for in hand.
    """

    def __init__(self, memory: HostMemory, nbytes: int) -> None:
        """Take `nbytes` from the host, at once.

        Raises:
            PoolUnavailable: the host has none left.
        """
        self.nbytes = nbytes
        self._memory = memory
        self._extents = Extents()
        self._changed = threading.Condition()
        self._closed = False
        self._start = memory.allocate(nbytes)
        self._returned = False
        self._bytes: Bytes = np.ctypeslib.as_array(
            (ctypes.c_uint8 * nbytes).from_address(self._start)
        )
        self._extents.add_segment(self._start, nbytes)

    @property
    def lent_nbytes(self) -> int:
        """What is out at this moment, with alignment."""
        return self._extents.used_nbytes

    def take(self, sizes: Sequence[int], *, deadline: float | None) -> list[int]:
        """Return one address for each of `sizes`, in their order.

        Raises:
            RequestTimeout: the deadline passed before all of them fitted.
            PoolUnavailable: together they can never fit, or the pool is closed.
        """
        whole = sum(map(aligned, sizes))
        if whole > self.nbytes:
            raise PoolUnavailable(
                f"{format_nbytes(whole)} at once do not fit into the staging memory of "
                f"{format_nbytes(self.nbytes)}; ask for less, or set ?staging= higher"
            )
        with self._changed:
            while True:
                self._check_open()
                starts = self._try(sizes)
                if starts is not None:
                    return starts
                self._await_change(whole, deadline)

    def give(self, addresses: Sequence[int]) -> None:
        """Take back what was lent; the last of it goes to the host when the pool is closed."""
        with self._changed:
            for address in addresses:
                self._extents.give(address)
            self._changed.notify_all()
        self._settle()

    def bytes_at(self, address: int, nbytes: int) -> Bytes:
        """Return the memory at an address that was lent."""
        at = address - self._start
        return self._bytes[at : at + nbytes]

    def close(self) -> None:
        """Lend no more, and return the memory once nothing is out; waits for nothing."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._settle()

    def _try(self, sizes: Sequence[int]) -> list[int] | None:
        starts: list[int] = []
        for size, run in groupby(map(aligned, sizes)):
            count = len(list(run))
            found = self._extents.take(size, count)
            starts += found
            if len(found) < count:
                for start in starts:
                    self._extents.give(start)
                return None
        return starts

    def _await_change(self, nbytes: int, deadline: float | None) -> None:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise RequestTimeout(
                f"the time-out passed while {format_nbytes(nbytes)} waited for staging memory: "
                f"{format_nbytes(self.lent_nbytes)} of {format_nbytes(self.nbytes)} are in use"
            )
        self._changed.wait(left)

    def _check_open(self) -> None:
        if self._closed:
            raise PoolUnavailable("the pool is closed")

    def _settle(self) -> None:
        with self._changed:
            if not self._closed or self._returned or self._extents.used_nbytes:
                return
            self._returned = True
            del self._bytes
        self._memory.free(self._start)
