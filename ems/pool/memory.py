"""The pool in this process: pinned memory that the NPU copies to and from directly."""
# ruff: noqa: D102 - what an engine's methods do is said once, in the interface

from collections.abc import Iterator, Sequence
from itertools import groupby

from ems.common.exception import InvalidArgument, PoolUnavailable, RequestTimeout
from ems.pool.base import (
    EntryInfo,
    Held,
    HostMemory,
    Miss,
    Place,
    PoolEngine,
    PoolKey,
    PoolStats,
    Refused,
)
from ems.pool.extents import ALIGNMENT, Extents, aligned
from ems.pool.ledger import Ledger
from ems.pool.pinning import Pinning
from ems.pool.url import PoolUrl

_CAPACITY_NBYTES = 8 << 30
_SEGMENT_NBYTES = 128 << 20
_RETRY_SECONDS = 5.0


class MemoryPool(PoolEngine):
    """Entries in segments of pinned memory, the least recently used evicted first.

    Memory is found in this order: a free extent; a new segment, while the capacity is not reached
    and the host gives; what the least recently used leave. An entry larger than a segment gets a
    segment of its size while the capacity allows; once all of it is taken, the largest entry
    that fits is one segment.

    When the host gives no memory the pool works with what it has and asks again every
    `retry_seconds`; it is unavailable only when it has none at all.

    `close` waits for nothing. Where entries are reserved or held, the memory goes back to the
    host with the last `abort`, `commit` or `release`; these two ways of giving back never fail
    for a closed pool.
    """

    first_nbytes = 16 << 20

    def __init__(
        self,
        memory: HostMemory,
        *,
        capacity_nbytes: int,
        segment_nbytes: int = _SEGMENT_NBYTES,
        retry_seconds: float = _RETRY_SECONDS,
    ) -> None:
        if min(capacity_nbytes, segment_nbytes) < ALIGNMENT:
            raise InvalidArgument(
                f"a pool of {capacity_nbytes} bytes in segments of {segment_nbytes} bytes holds "
                f"nothing; both are at least {ALIGNMENT}"
            )
        self._capacity_nbytes = capacity_nbytes
        self._extents = Extents()
        self._ledger = Ledger(self._extents)
        self._pinning = Pinning(
            memory,
            self._extents,
            capacity_nbytes=capacity_nbytes,
            segment_nbytes=aligned(segment_nbytes),
            retry_seconds=retry_seconds,
        )
        self._lock = self._pinning.lock

    @classmethod
    def from_url(cls, url: PoolUrl, memory: HostMemory) -> "MemoryPool":
        """Return the pool of `memory://?capacity=8GiB&segment=128MiB`; both have defaults.

        Raises:
            InvalidArgument: the URL has other parts, or a size is wrong.
        """
        if url.host or url.port is not None or url.path not in ("", "/"):
            raise url.refusal("memory is in this process; it has neither a host nor a path")
        options = url.options(("capacity", "segment"))
        sizes = {name: url.nbytes(name, value) for name, value in options.items()}
        for name, nbytes in sizes.items():
            if nbytes < ALIGNMENT:
                raise url.refusal(f"{name} is {nbytes} bytes; at least {ALIGNMENT} are needed")
        return cls(
            memory,
            capacity_nbytes=sizes.get("capacity", _CAPACITY_NBYTES),
            segment_nbytes=sizes.get("segment", _SEGMENT_NBYTES),
        )

    def fitting(self, keys: Sequence[PoolKey], nbytes: Sequence[int]) -> int:  # noqa: ARG002
        with self._lock:
            return self._pinning.fitting(list(map(aligned, nbytes)))

    def lookup(
        self,
        keys: Sequence[PoolKey],
        *,
        deadline: float | None = None,  # noqa: ARG002 - nothing to wait for
    ) -> list[EntryInfo | None]:
        with self._lock:
            self._check_open()
            return self._ledger.lookup(keys)

    def reserve(
        self,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
        nbytes: Sequence[int],
        *,
        deadline: float | None,
    ) -> list[Place | Refused]:
        try:
            with self._lock:
                self._check_open()
                return self._reserve(keys, tokens, nbytes, deadline=deadline)
        finally:
            self._settle()

    def commit(self, places: Sequence[Place]) -> None:
        try:
            with self._lock:
                if self._pinning.closed:
                    self._ledger.abort(places)
                self._check_open()
                self._ledger.commit(places)
                self._pinning.given()
        finally:
            self._settle()

    def abort(self, places: Sequence[Place]) -> None:
        try:
            with self._lock:
                self._ledger.abort(places)
                self._pinning.given()
        finally:
            self._settle()

    def acquire(
        self,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
        *,
        deadline: float | None,  # noqa: ARG002 - nothing to wait for
    ) -> list[Held | Miss]:
        with self._lock:
            self._check_open()
            return self._ledger.acquire(keys, tokens)

    def release(self, held: Sequence[Held]) -> None:
        try:
            with self._lock:
                self._ledger.release(held)
                self._pinning.given()
        finally:
            self._settle()

    def remove(self, keys: Sequence[PoolKey]) -> int:
        with self._lock:
            self._check_open()
            self._pinning.given()
            return self._ledger.remove(keys)

    def clear(self) -> int:
        with self._lock:
            self._check_open()
            self._pinning.given()
            return self._ledger.clear()

    def keys(self) -> Iterator[PoolKey]:
        with self._lock:
            self._check_open()
            return iter(self._ledger.keys())

    def stats(self) -> PoolStats:
        with self._lock:
            self._check_open()
            return PoolStats(
                capacity_nbytes=self._capacity_nbytes,
                backed_nbytes=self._extents.backed_nbytes,
                used_nbytes=self._extents.used_nbytes,
                reserved_nbytes=self._ledger.reserved_nbytes,
                held_nbytes=self._ledger.held_nbytes,
                largest_free_nbytes=self._extents.largest_free_nbytes,
                entries=len(self._ledger),
                evictions=self._ledger.evictions,
            )

    def check_health(self, *, deadline: float | None) -> None:
        with self._lock:
            try:
                while not self._has_memory():
                    self._pinning.wait(ALIGNMENT, deadline=deadline)
            except RequestTimeout as error:
                raise PoolUnavailable(f"the memory pool has no memory yet: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._pinning.close()
        self._settle()

    def _reserve(
        self,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
        nbytes: Sequence[int],
        *,
        deadline: float | None,
    ) -> list[Place | Refused]:
        # what is there already stays there while the others of the call look for memory
        found = self._ledger.acquire(keys, tokens)
        there = [one for one in found if isinstance(one, Held)]
        wanted = [
            (key, many, size)
            for key, many, size, one in zip(keys, tokens, nbytes, found, strict=True)
            if not isinstance(one, Held)
        ]
        sizes = {one: aligned(one) for one in set(nbytes)}
        placed: dict[PoolKey, Place] = {}
        try:
            for size, run in groupby(wanted, lambda one: sizes[one[2]]):
                for place in self._places(list(run), size=size, deadline=deadline):
                    placed[place.key] = place
        except BaseException:
            self._ledger.abort(list(placed.values()))
            self._pinning.given()
            raise
        finally:
            self._ledger.release(there)
            self._ledger.note_failed([key for key, _, _ in wanted if key not in placed])
            self._pinning.taken()
        return [
            Refused.ALREADY_THERE if isinstance(one, Held) else placed.get(key, Refused.NO_SPACE)
            for key, one in zip(keys, found, strict=True)
        ]

    def _places(
        self, run: Sequence[tuple[PoolKey, int, int]], *, size: int, deadline: float | None
    ) -> Iterator[Place]:
        """Yield places for the keys, tokens and nbytes of `run`, as long as there is memory."""
        given = 0
        for starts in self._memory_for(size, len(run), deadline=deadline):
            served = run[given : given + len(starts)]
            places = [
                Place(key, start, tokens, nbytes)
                for (key, tokens, nbytes), start in zip(served, starts, strict=True)
            ]
            self._ledger.place(places, size=size)
            given += len(starts)
            yield from places

    def _memory_for(self, size: int, count: int, *, deadline: float | None) -> Iterator[list[int]]:
        """Yield the starts of up to `count` extents of `size`, as they are found."""
        while count:
            self._check_open()  # while it waited for memory, what there was may have gone back
            starts = self._extents.take(size, count)
            if not starts and not self._pinning.wait(size, deadline=deadline):
                self._has_memory()
                starts = self._ledger.evict(size, count=count)
                if not starts:
                    return
            count -= len(starts)
            if starts:
                yield starts

    def _has_memory(self) -> bool:
        """Return whether the host has given any; raise when it refused to, or is not asked."""
        self._check_open()
        if not self._extents.backed_nbytes and self._pinning.failure:
            raise PoolUnavailable(f"the memory pool has no memory: {self._pinning.failure}")
        return bool(self._extents.backed_nbytes)

    def _check_open(self) -> None:
        if self._pinning.closed:
            raise PoolUnavailable("the memory pool is closed")

    def _settle(self) -> None:
        """Once the pool is closed and no copy can touch it any more, give its memory back."""
        if not self._pinning.closed:
            return
        with self._lock:
            busy = self._ledger.reserved_nbytes or self._ledger.held_nbytes
        if not busy:
            self._pinning.give_back()
