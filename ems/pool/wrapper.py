"""The base of engines that stand in front of another."""
# ruff: noqa: D102 - what an engine's methods do is said once, in the interface

from collections.abc import Iterator, Sequence

from ems.pool.base import (
    EntryInfo,
    Held,
    Miss,
    Place,
    PoolEngine,
    PoolKey,
    PoolStats,
    Refused,
)


class PoolWrapper(PoolEngine):
    """Passes every call on to `inner`; a subclass changes what it is about."""

    def __init__(self, inner: PoolEngine) -> None:
        self.inner = inner
        self.window_nbytes = inner.window_nbytes
        self.first_nbytes = inner.first_nbytes

    def fitting(self, keys: Sequence[PoolKey], nbytes: Sequence[int]) -> int:
        return self.inner.fitting(keys, nbytes)

    def lookup(
        self, keys: Sequence[PoolKey], *, deadline: float | None = None
    ) -> list[EntryInfo | None]:
        return self.inner.lookup(keys, deadline=deadline)

    def reserve(
        self,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
        nbytes: Sequence[int],
        *,
        deadline: float | None,
    ) -> list[Place | Refused]:
        return self.inner.reserve(keys, tokens, nbytes, deadline=deadline)

    def commit(self, places: Sequence[Place]) -> None:
        self.inner.commit(places)

    def abort(self, places: Sequence[Place]) -> None:
        self.inner.abort(places)

    def acquire(
        self, keys: Sequence[PoolKey], tokens: Sequence[int], *, deadline: float | None
    ) -> list[Held | Miss]:
        return self.inner.acquire(keys, tokens, deadline=deadline)

    def release(self, held: Sequence[Held]) -> None:
        self.inner.release(held)

    def remove(self, keys: Sequence[PoolKey]) -> int:
        return self.inner.remove(keys)

    def clear(self) -> int:
        return self.inner.clear()

    def keys(self) -> Iterator[PoolKey]:
        return self.inner.keys()

    def stats(self) -> PoolStats:
        return self.inner.stats()

    def check_health(self, *, deadline: float | None) -> None:
        self.inner.check_health(deadline=deadline)

    def close(self) -> None:
        self.inner.close()
