"""A wrapper that fails on purpose: for tests, and to see how an engine of inference bears it."""
# ruff: noqa: D102 - what an engine's methods do is said once, in the interface

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from ems.pool.base import EntryInfo, Held, Miss, Place, PoolEngine, PoolKey, Refused
from ems.pool.wrapper import PoolWrapper

_GARBAGE = 0xA5


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at the `nth` call of an operation, counted from 1, or at every call for 0."""

    operation: str
    """lookup, reserve, commit, abort, acquire, release."""
    nth: int = 1
    delay_seconds: float = 0.0
    failure: Exception | None = None
    """Raised instead of doing it."""
    short_fraction: float | None = None
    """For commit: only this part of each entry's bytes is written, the rest is garbage."""
    evict: tuple[PoolKey, ...] = ()
    """Entries that are removed before it is done."""


class FaultyPool(PoolWrapper):
    """Passes calls on, but for the faults that it is given; they can be changed at any time."""

    def __init__(self, inner: PoolEngine, faults: Sequence[Fault] = ()) -> None:
        super().__init__(inner)
        self.faults = list(faults)
        self._lock = threading.Lock()
        self._calls: Counter[str] = Counter()

    def view(self, *, write_local: bool, local_only: bool) -> PoolEngine:
        seen = self.inner.view(write_local=write_local, local_only=local_only)
        return self if seen is self.inner else FaultyPool(seen, self.faults)

    def lookup(
        self, keys: Sequence[PoolKey], *, deadline: float | None = None
    ) -> list[EntryInfo | None]:
        self._before("lookup")
        return self.inner.lookup(keys, deadline=deadline)

    def reserve(
        self,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
        nbytes: Sequence[int],
        *,
        deadline: float | None,
    ) -> list[Place | Refused]:
        self._before("reserve")
        return self.inner.reserve(keys, tokens, nbytes, deadline=deadline)

    def commit(self, places: Sequence[Place]) -> None:
        try:
            faults = self._before("commit")
        except Exception:
            self.inner.abort(places)  # a commit that fails gives its places up
            raise
        for fault in faults:
            if fault.short_fraction is not None:
                _cut(places, fault.short_fraction)
        self.inner.commit(places)

    def abort(self, places: Sequence[Place]) -> None:
        self._before("abort")
        self.inner.abort(places)

    def acquire(
        self, keys: Sequence[PoolKey], tokens: Sequence[int], *, deadline: float | None
    ) -> list[Held | Miss]:
        self._before("acquire")
        return self.inner.acquire(keys, tokens, deadline=deadline)

    def release(self, held: Sequence[Held]) -> None:
        self._before("release")
        self.inner.release(held)

    def _before(self, operation: str) -> list[Fault]:
        """Do what is to go wrong now, and return it."""
        with self._lock:
            self._calls[operation] += 1
            count = self._calls[operation]
            due = [f for f in self.faults if f.operation == operation and f.nth in {0, count}]
        for fault in due:
            time.sleep(fault.delay_seconds)
            if fault.evict:
                self.inner.remove(fault.evict)
            if fault.failure is not None:
                raise fault.failure.with_traceback(None)  # of the last time it was raised
        return due


def _cut(places: Sequence[Place], fraction: float) -> None:
    for place in places:
        kept = int(place.nbytes * fraction)
        ctypes.memset(place.address + kept, _GARBAGE, place.nbytes - kept)
