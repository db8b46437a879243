"""A local memory pool in front of a shared one.

`tiered+lmdb:///dev/shm/pool?capacity=8GiB&local=2GiB` is the pool
`lmdb:///dev/shm/pool?capacity=8GiB` behind 2 GiB of this process's memory.
"""
# ruff: noqa: D102 - what an engine's methods do is said once, in the interface

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress

from ems.common.exception import EmsException, PoolUnavailable, RequestTimeout
from ems.pool.base import (
    EntryInfo,
    Held,
    Miss,
    Place,
    PoolEngine,
    PoolKey,
    PoolStats,
)
from ems.pool.wrapper import PoolWrapper


class TieredPool(PoolWrapper):
    """Entries are saved into the shared pool and, as a copy, into the local one.

    What the shared pool holds is what is stored; the local one only spares the way there. It takes
    a copy of what is saved (unless write_rcache is off) and of what is loaded from the shared pool,
    where it has room at once: a copy is never waited for, and none is an error. Each tier evicts by
    the use that it sees; a local hit is no use of the shared entry.
    """

    def __init__(self, local: PoolEngine, shared: PoolEngine) -> None:
        super().__init__(shared)
        self.local = local
        self._lock = threading.Lock()
        self._held_locally: Counter[int] = Counter()
        """How often each local address is held."""
        self._removals = 0
        self._lent: dict[int, int] = {}
        """By address, the removals before a shared entry was lent."""

    def view(self, *, write_local: bool, local_only: bool) -> PoolEngine:
        return _View(self, write_local=write_local, local_only=local_only)

    def lookup(
        self, keys: Sequence[PoolKey], *, deadline: float | None = None
    ) -> list[EntryInfo | None]:
        found = self.local.lookup(keys)
        absent = [at for at, info in enumerate(found) if info is None]
        if absent:
            elsewhere = self.inner.lookup([keys[at] for at in absent], deadline=deadline)
            for at, info in zip(absent, elsewhere, strict=True):
                found[at] = info
        return found

    def commit(self, places: Sequence[Place]) -> None:
        self.commit_to(places, write_local=True)

    def commit_to(self, places: Sequence[Place], *, write_local: bool) -> None:
        """Commit to the shared pool, and to the local one if asked."""
        copies = self._copied(places) if write_local else []
        try:
            self.inner.commit(places)
        except BaseException:
            self.local.abort(copies)
            raise
        self._commit_copies(copies)

    def acquire(
        self, keys: Sequence[PoolKey], tokens: Sequence[int], *, deadline: float | None
    ) -> list[Held | Miss]:
        found = self.acquire_locally(keys, tokens)
        missing = [at for at, answer in enumerate(found) if isinstance(answer, Miss)]
        if not missing:
            return found
        removals = self._removals
        try:
            elsewhere = self.inner.acquire(
                [keys[at] for at in missing], [tokens[at] for at in missing], deadline=deadline
            )
        except BaseException:
            self.release([answer for answer in found if isinstance(answer, Held)])
            raise
        for at, answer in zip(missing, elsewhere, strict=True):
            found[at] = answer
        with self._lock:
            self._lent.update(
                (answer.address, removals) for answer in elsewhere if isinstance(answer, Held)
            )
        return found

    def acquire_locally(self, keys: Sequence[PoolKey], tokens: Sequence[int]) -> list[Held | Miss]:
        """Acquire from the local pool alone."""
        found = self.local.acquire(keys, tokens, deadline=None)
        with self._lock:
            self._held_locally.update(
                answer.address for answer in found if isinstance(answer, Held)
            )
        return found

    def release(self, held: Sequence[Held]) -> None:
        local, shared = self._by_tier(held)
        self.local.release(local)
        try:
            self._commit_copies(self._copied(self._not_removed(shared)))
        finally:
            self.inner.release(shared)

    def remove(self, keys: Sequence[PoolKey]) -> int:
        present = sum(info is not None for info in self.lookup(keys))
        self._removals += 1
        self.local.remove(keys)
        self.inner.remove(keys)
        return present

    def clear(self) -> int:
        present = sum(1 for _ in self.keys())
        self._removals += 1
        self.local.clear()
        self.inner.clear()
        return present

    def keys(self) -> Iterator[PoolKey]:
        shared = list(self.inner.keys())
        known = set(shared)
        near = [key for key in list(self.local.keys()) if key not in known]
        return iter(near + shared)

    def stats(self) -> PoolStats:
        """Return the sums of both tiers' memory; entries and evictions are the shared one's."""
        local, shared = self.tiers()
        return PoolStats(
            local.capacity_nbytes + shared.capacity_nbytes,
            local.backed_nbytes + shared.backed_nbytes,
            local.used_nbytes + shared.used_nbytes,
            local.reserved_nbytes + shared.reserved_nbytes,
            local.held_nbytes + shared.held_nbytes,
            shared.largest_free_nbytes,
            shared.entries,
            shared.evictions,
            shared.staging_nbytes,
        )

    def tiers(self) -> tuple[PoolStats, PoolStats]:
        """Return the figures of the local and of the shared pool."""
        return self.local.stats(), self.inner.stats()

    def check_health(self, *, deadline: float | None) -> None:
        self.local.check_health(deadline=deadline)
        self.inner.check_health(deadline=deadline)

    def close(self) -> None:
        self.inner.close()
        self.local.close()

    def _commit_copies(self, copies: Sequence[Place]) -> None:
        with suppress(EmsException):  # what is stored is in the shared pool
            self.local.commit(copies)

    def _by_tier(self, held: Sequence[Held]) -> tuple[list[Held], list[Held]]:
        local, shared = [], []
        with self._lock:
            for each in held:
                if self._held_locally[each.address]:
                    self._held_locally[each.address] -= 1
                    local.append(each)
                else:
                    shared.append(each)
            self._held_locally += Counter()  # drops what is held no more
        return local, shared

    def _not_removed(self, shared: Sequence[Held]) -> list[Held]:
        """Return those of the entries since whose lending nothing was removed from the pool."""
        with self._lock:
            return [one for one in shared if self._lent.pop(one.address, None) == self._removals]

    def _copied(self, entries: Sequence[Place | Held]) -> list[Place]:
        """Return filled local places for those entries that find room at once."""
        # a hash may be loaded twice at once; one copy of it is enough
        entries = list({entry.key: entry for entry in entries}.values())
        if not entries:
            return []
        try:
            answers = self.local.reserve(
                [entry.key for entry in entries],
                [entry.tokens for entry in entries],
                [entry.nbytes for entry in entries],
                deadline=time.monotonic(),
            )
        except (PoolUnavailable, RequestTimeout):
            return []
        places = []
        for entry, answer in zip(entries, answers, strict=True):
            if isinstance(answer, Place):
                ctypes.memmove(answer.address, entry.address, entry.nbytes)
                places.append(answer)
        return places


class _View(PoolWrapper):
    """The tiers as one request's options see them."""

    def __init__(self, tiers: TieredPool, *, write_local: bool, local_only: bool) -> None:
        super().__init__(tiers)
        self._tiers = tiers
        self._write_local = write_local
        self._local_only = local_only

    def lookup(
        self, keys: Sequence[PoolKey], *, deadline: float | None = None
    ) -> list[EntryInfo | None]:
        if self._local_only:
            return self._tiers.local.lookup(keys)
        return self._tiers.lookup(keys, deadline=deadline)

    def commit(self, places: Sequence[Place]) -> None:
        self._tiers.commit_to(places, write_local=self._write_local)

    def acquire(
        self, keys: Sequence[PoolKey], tokens: Sequence[int], *, deadline: float | None
    ) -> list[Held | Miss]:
        if self._local_only:
            return self._tiers.acquire_locally(keys, tokens)
        return self._tiers.acquire(keys, tokens, deadline=deadline)
