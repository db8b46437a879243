"""A wrapper that times every call of an engine: for benchmarks and for tests."""
# ruff: noqa: D102 - what an engine's methods do is said once, in the interface

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ems.pool.base import EntryInfo, Held, Miss, Place, PoolEngine, PoolKey, Refused
from ems.pool.wrapper import PoolWrapper


@dataclass(frozen=True, slots=True)
class PoolCall:
    """One call of an engine that moves or looks for entries."""

    operation: str
    keys: int
    seconds: float
    failure: str | None
    """The class of the exception it ended in."""


class TracedPool(PoolWrapper):
    """Tells `record` of each call; what `record` raises reaches the caller."""

    def __init__(self, inner: PoolEngine, record: Callable[[PoolCall], None]) -> None:
        super().__init__(inner)
        self._record = record

    def view(self, *, write_local: bool, local_only: bool) -> PoolEngine:
        seen = self.inner.view(write_local=write_local, local_only=local_only)
        return self if seen is self.inner else TracedPool(seen, self._record)

    def lookup(
        self, keys: Sequence[PoolKey], *, deadline: float | None = None
    ) -> list[EntryInfo | None]:
        with self._timed("lookup", len(keys)):
            return self.inner.lookup(keys, deadline=deadline)

    def reserve(
        self,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
        nbytes: Sequence[int],
        *,
        deadline: float | None,
    ) -> list[Place | Refused]:
        with self._timed("reserve", len(keys)):
            return self.inner.reserve(keys, tokens, nbytes, deadline=deadline)

    def commit(self, places: Sequence[Place]) -> None:
        with self._timed("commit", len(places)):
            self.inner.commit(places)

    def abort(self, places: Sequence[Place]) -> None:
        with self._timed("abort", len(places)):
            self.inner.abort(places)

    def acquire(
        self, keys: Sequence[PoolKey], tokens: Sequence[int], *, deadline: float | None
    ) -> list[Held | Miss]:
        with self._timed("acquire", len(keys)):
            return self.inner.acquire(keys, tokens, deadline=deadline)

    def release(self, held: Sequence[Held]) -> None:
        with self._timed("release", len(held)):
            self.inner.release(held)

    @contextmanager
    def _timed(self, operation: str, keys: int) -> Iterator[None]:
        start = time.perf_counter()
        failure = None
        try:
            yield
        except Exception as error:
            failure = type(error).__name__
            raise
        finally:
            self._record(PoolCall(operation, keys, time.perf_counter() - start, failure))
