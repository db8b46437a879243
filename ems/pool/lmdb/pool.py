"""The pool of one host: LMDB files that any number of processes share."""
# ruff: noqa: D102 - what an engine's methods do is said once, in the interface

import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

from ems.common.exception import EmsException, PoolUnavailable
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
from ems.pool.extents import aligned
from ems.pool.lmdb.fetching import Fetch
from ems.pool.lmdb.health import Health
from ems.pool.lmdb.home import Home
from ems.pool.lmdb.memories import Memories
from ems.pool.lmdb.record import BROKEN, charge_of
from ems.pool.lmdb.settings import LmdbSettings
from ems.pool.lmdb.shards import Shards
from ems.pool.lmdb.writing import Offer
from ems.pool.room import Room
from ems.pool.staging import Staging
from ems.pool.url import PoolUrl

_LOG = logging.getLogger(__name__)

_WINDOW_NBYTES = 16 << 20
_SHARES = 4
"""Two directions with two windows each: so much of the staging memory one call may take."""

_Lent = TypeVar("_Lent", Place, Held)


class LmdbPool(PoolEngine):
    """Entries in LMDB files, put there and fetched from there through staging memory.

    Any number of processes of one host, of one user, use the same files at the same time and may
    be killed at any moment. What `acquire` returns is a copy, so held entries keep nobody from
    evicting. The least recently used goes first; other processes learn of uses with this one's next
    commit, and from `acquire` itself a few times a second.

    A miss is EVICTED whichever process evicted, for the latest ten thousands of keys; SAVE_FAILED
    is known in the process where it happened.

    The capacity is what entries may take, in pages. The files are about a fifth larger and are
    taken from the file system when the pool is made. The figures of `stats` are of the entries and
    of this process's staging memory together.

    An entry that is larger than a quarter of the staging memory gets no place: two windows in
    each direction must fit, or requests would wait for each other.
    """

    first_nbytes = 2 << 20

    def __init__(self, memory: HostMemory, settings: LmdbSettings) -> None:
        """Open the pool, made where there is none.

        Raises:
            InvalidArgument: the directory is not ours alone, or another capacity is in use.
            PoolUnavailable: there is not enough space or memory; nothing is left behind.
        """
        self._call_nbytes = settings.staging_nbytes // _SHARES
        self.window_nbytes = min(_WINDOW_NBYTES, self._call_nbytes)
        self._home = Home(settings)
        try:
            self._staging = Staging(memory, settings.staging_nbytes)
        except BaseException:
            self._home.close()
            raise
        self._health = Health(self._home)
        limit = "what a shard holds, or a quarter of ?staging="
        self._room = Room(self._call_nbytes, pool=f"the pool {self._home.path}", limit=limit)
        self._memories = Memories()
        self._lock = threading.Lock()
        self._places: dict[int, Place] = {}
        self._held: dict[int, Held] = {}

    @classmethod
    def from_url(cls, url: PoolUrl, memory: HostMemory) -> "LmdbPool":
        """Return the pool that `url` describes; see `LmdbSettings`.

        Raises:
            InvalidArgument: the URL is wrong, or the pool is not to be used.
            PoolUnavailable: the pool cannot be opened or made.
        """
        return cls(memory, LmdbSettings.from_url(url))

    def fitting(self, keys: Sequence[PoolKey], nbytes: Sequence[int]) -> int:
        with self._home.shards() as shards:
            return shards.fitting(
                keys, [charge_of(one) if aligned(one) <= self._call_nbytes else 0 for one in nbytes]
            )

    def lookup(
        self,
        keys: Sequence[PoolKey],
        *,
        deadline: float | None = None,  # noqa: ARG002 - nothing to wait for
    ) -> list[EntryInfo | None]:
        with self._home.shards() as shards:
            return [
                None
                if header is None or header is BROKEN
                else EntryInfo(header.tokens, header.nbytes)
                for header in shards.headers(keys)
            ]

    def reserve(
        self,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
        nbytes: Sequence[int],
        *,
        deadline: float | None,
    ) -> list[Place | Refused]:
        with self._home.shards() as shards:
            headers = shards.headers(keys)
            limit = shards.capacity_nbytes
            answers: list[Place | Refused] = [
                Refused.NO_SPACE
                if header is None or header.tokens < at_least
                else Refused.ALREADY_THERE
                for header, at_least in zip(headers, tokens, strict=True)
            ]
            self._memories.touch(
                key for key, one in zip(keys, answers, strict=True) if one is Refused.ALREADY_THERE
            )
            if Refused.NO_SPACE not in answers:  # no commit will tell
                self._tell_uses(shards)
        wanted = [at for at, one in enumerate(answers) if one is Refused.NO_SPACE]
        fitting = self._admitted({at: nbytes[at] for at in wanted}, limit=limit)
        try:
            addresses = self._staging.take([nbytes[at] for at in fitting], deadline=deadline)
            for at, address in zip(fitting, addresses, strict=True):
                answers[at] = Place(keys[at], address, tokens[at], nbytes[at])
        finally:
            self._memories.note_failed(
                keys[at] for at in wanted if headers[at] is None and answers[at] is Refused.NO_SPACE
            )
        with self._lock:
            self._places.update((one.address, one) for one in answers if isinstance(one, Place))
        return answers

    def commit(self, places: Sequence[Place]) -> None:
        known, unknown = self._take_back(self._places, places)
        keys = [place.key for place in known]
        try:
            with self._home.shards() as shards:
                touched = self._memories.take_touched()
                shards.store([self._offer(place) for place in known], touched)
            self._memories.forget_failed(keys)
        except BaseException:
            self._note_failed(keys)
            raise
        finally:
            self._staging.give([place.address for place in known])
        _refuse("commit", unknown)

    def abort(self, places: Sequence[Place]) -> None:
        known, unknown = self._take_back(self._places, places)
        self._staging.give([place.address for place in known])
        self._note_failed([place.key for place in known])
        _refuse("abort", unknown)

    def acquire(
        self, keys: Sequence[PoolKey], tokens: Sequence[int], *, deadline: float | None
    ) -> list[Held | Miss]:
        with self._home.shards() as shards:
            fetch = Fetch(shards, self._staging, self._memories, keys, tokens)
            answers = fetch.run(limit_nbytes=self._call_nbytes, deadline=deadline)
            held = [one for one in answers if isinstance(one, Held)]
            with self._lock:
                self._held.update((one.address, one) for one in held)
            try:
                self._tell_uses(shards)
            except BaseException:
                self.release(held)
                raise
            return answers

    def release(self, held: Sequence[Held]) -> None:
        known, unknown = self._take_back(self._held, held)
        self._staging.give([one.address for one in known])
        _refuse("release", unknown)

    def remove(self, keys: Sequence[PoolKey]) -> int:
        with self._home.shards() as shards:
            self._memories.forget_failed(keys)
            return shards.remove(keys)

    def clear(self) -> int:
        with self._home.shards() as shards:
            self._memories.forget_all()
            return shards.clear()

    def keys(self) -> Iterator[PoolKey]:
        with self._home.shards() as shards:
            shards.touch(self._memories.take_touched())
            return iter(shards.keys())

    def stats(self) -> PoolStats:
        with self._home.shards() as shards:
            figures, entries = shards.figures()
        with self._lock:
            reserved = sum(aligned(place.nbytes) for place in self._places.values())
            held = sum(aligned(one.nbytes) for one in self._held.values())
        whole = self._home.capacity_nbytes + self._staging.nbytes
        free = self._home.capacity_nbytes - figures.used_nbytes
        return PoolStats(
            capacity_nbytes=whole,
            backed_nbytes=whole,
            used_nbytes=figures.used_nbytes + reserved + held,
            reserved_nbytes=reserved,
            held_nbytes=held,
            largest_free_nbytes=max(0, min(free, whole - figures.used_nbytes - reserved - held)),
            entries=entries,
            evictions=figures.evictions,
            staging_nbytes=self._staging.nbytes,
        )

    def check_health(self, *, deadline: float | None) -> None:
        self._health.check(deadline=deadline)

    def close(self) -> None:
        self._home.close()
        self._staging.close()

    def _admitted(self, sizes: Mapping[int, int], *, limit: int) -> list[int]:
        """Return those of the entries that a shard of `limit` bytes and one call have room for."""
        storable = {at: size for at, size in sizes.items() if charge_of(size) <= limit}
        for at in sizes.keys() - storable:
            self._room.tell(sizes[at])
        return self._room.admitted(storable)

    def _tell_uses(self, shards: Shards) -> None:
        """Write which entries were used, a few times a second; later where that is not possible.

        Entries are found all the same while a process that reads or writes has stopped.
        """
        touched = self._memories.take_touched(at_most_now_and_then=True)
        try:
            shards.touch(touched, patiently=False)
        except PoolUnavailable as error:
            _LOG.debug("uses are written later: %s", error)
            self._memories.touch(touched)

    def _offer(self, place: Place) -> Offer:
        content = self._staging.bytes_at(place.address, place.nbytes)
        return Offer(place.key, place.tokens, content)

    def _take_back(
        self, lent: dict[int, _Lent], given: Sequence[_Lent]
    ) -> tuple[list[_Lent], list[_Lent]]:
        """Return those of `given` that were out, and are no longer, and the others."""
        known, unknown = [], []
        with self._lock:
            for one in given:
                if lent.get(one.address) is one:
                    del lent[one.address]
                    known.append(one)
                else:
                    unknown.append(one)
        return known, unknown

    def _note_failed(self, keys: Sequence[PoolKey]) -> None:
        """Remember which of these are not stored, for what misses them."""
        try:
            with self._home.shards() as shards:
                headers = shards.headers(keys)
        except PoolUnavailable:
            headers = [None] * len(keys)
        self._memories.note_failed(
            key for key, header in zip(keys, headers, strict=True) if header is None
        )


def _refuse(operation: str, unknown: Sequence[Place | Held]) -> None:
    if unknown:
        first = unknown[0]
        raise EmsException(
            f"{operation} of {len(unknown)} entries that the pool did not hand out, or that are "
            f"back already; the first is {first.key} at {first.address:#x}"
        )
