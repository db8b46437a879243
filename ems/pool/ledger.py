"""Which entry owns which memory of the pool: bookkeeping without locks, threads or waiting."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from ems.common.exception import EmsException
from ems.pool.base import EntryInfo, Held, Miss, Place, PoolKey
from ems.pool.extents import Extents

_REMEMBERED = 1 << 16
_VICTIMS_TRIED = 256


@dataclass(slots=True, eq=False)
class Entry:
    """Memory with an owner: reserved, then stored, then perhaps only held by its readers."""

    place: Place
    size: int
    """What it occupies, with alignment."""
    reserved: bool = True
    stored: bool = False
    holds: int = 0
    info: EntryInfo | None = None
    held: Held | None = None
    """Made by the first `acquire`; one value serves all, since it never changes."""


class Ledger:
    """Entries by key, by address and by age, with the memory that each owns.

    Whoever calls holds the lock of the pool. Unknown places and holds (given back twice, say) are
    a fault of the caller: the others of the same call are served, then it is raised.
    """

    def __init__(self, extents: Extents) -> None:
        self.reserved_nbytes = 0
        self.held_nbytes = 0
        self.evictions = 0
        self._extents = extents
        self._entries: dict[int, Entry] = {}  # by address, all of them
        self._stored: dict[PoolKey, Entry] = {}
        # stored and held by nobody, least recently used first: exactly what may be evicted
        self._idle: OrderedDict[PoolKey, Entry] = OrderedDict()
        self._missed: OrderedDict[PoolKey, Miss] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stored)

    def keys(self) -> list[PoolKey]:
        """Return the stored keys, least recently used first; those being read are the latest."""
        return [*self._idle, *(key for key, entry in self._stored.items() if entry.holds)]

    def lookup(self, keys: Sequence[PoolKey]) -> list[EntryInfo | None]:
        """Return what is stored under `keys`."""
        get = self._stored.get
        return [entry.info if (entry := get(key)) else None for key in keys]

    def place(self, places: Sequence[Place], *, size: int) -> None:
        """Note that memory of `size` each, taken from the extents, is reserved for entries."""
        self._entries.update((place.address, Entry(place, size)) for place in places)
        self.reserved_nbytes += size * len(places)

    def commit(self, places: Sequence[Place]) -> None:
        """Store what was reserved, where nothing as long has been stored since."""
        info = None
        unknown = []
        for place in places:
            entry = self._entries.get(place.address)
            if entry is None or entry.place is not place or not entry.reserved:
                unknown.append(place)
                continue
            entry.reserved = False
            self.reserved_nbytes -= entry.size
            key = place.key
            rival = self._stored.get(key)
            if rival and rival.place.tokens >= place.tokens:
                self._free(entry)
                continue
            if rival:
                self._unstore(rival)
            if info is None or info.tokens != place.tokens or info.nbytes != place.nbytes:
                info = EntryInfo(place.tokens, place.nbytes)
            entry.info = info
            entry.stored = True
            self._stored[key] = self._idle[key] = entry
            self._missed.pop(key, None)
        _refuse("commit", unknown)

    def abort(self, places: Sequence[Place]) -> None:
        """Free what was reserved."""
        unknown = []
        for place in places:
            entry = self._entries.get(place.address)
            if entry is None or entry.place is not place or not entry.reserved:
                unknown.append(place)
                continue
            self.reserved_nbytes -= entry.size
            self._free(entry)
        self.note_failed([place.key for place in places])
        _refuse("abort", unknown)

    def note_failed(self, keys: Sequence[PoolKey]) -> None:
        """Remember that `keys` were offered, for what misses them."""
        for key in keys:
            if key not in self._stored:
                self._note(key, Miss.SAVE_FAILED)

    def acquire(self, keys: Sequence[PoolKey], tokens: Sequence[int]) -> list[Held | Miss]:
        """Hold entries with at least `tokens` each. Asking for more makes one recent, too."""
        found: list[Held | Miss] = []
        for key, at_least in zip(keys, tokens, strict=True):
            entry = self._stored.get(key)
            if entry is None:
                found.append(self._missed.get(key, Miss.ABSENT))
                continue
            place = entry.place
            if place.tokens < at_least:
                # its fuller version is likely to come next, and must find it
                if not entry.holds:
                    self._idle.move_to_end(key)
                found.append(Miss.TOO_SHORT)
                continue
            if not entry.holds:
                del self._idle[key]
                self.held_nbytes += entry.size
            entry.holds += 1
            if entry.held is None:
                entry.held = Held(key, place.address, place.tokens, place.nbytes)
            found.append(entry.held)
        return found

    def release(self, held: Sequence[Held]) -> None:
        """End holds, and free what has been removed or replaced meanwhile."""
        unknown = []
        for one in held:
            entry = self._entries.get(one.address)
            if entry is None or entry.held is not one or not entry.holds:
                unknown.append(one)
                continue
            entry.holds -= 1
            if entry.holds:
                continue
            self.held_nbytes -= entry.size
            if entry.stored:
                self._idle[one.key] = entry
            else:
                self._free(entry)
        _refuse("release", unknown)

    def remove(self, keys: Sequence[PoolKey]) -> int:
        """Remove what is stored under `keys`, and the memory of having missed them."""
        there = [entry for key in keys if (entry := self._stored.pop(key, None))]
        for entry in there:
            self._unstore(entry)
        for key in keys:
            self._missed.pop(key, None)
        return len(there)

    def clear(self) -> int:
        """Remove everything, and every memory of it."""
        self._missed.clear()
        return self.remove(list(self._stored))

    def evict(self, size: int, *, count: int) -> list[int]:
        """Take up to `count` extents of `size` out of what the least recently used leave.

        An entry of exactly that size hands its memory on. Else entries go by age until an extent
        fits, at most as many as have `size` bytes together. Where what they left is scattered, the
        next by age goes with its neighbours in memory. So room for one entry costs about twice
        its size, never the whole pool. Nothing is found when what is held or reserved cuts up
        the memory around each of the oldest entries; what went by age is gone all the same.
        """
        starts: list[int] = []
        while len(starts) < count and self._idle:
            oldest = next(iter(self._idle.values()))
            if oldest.size == size:
                self._forget(oldest)
                del self._entries[oldest.place.address]
                starts.append(oldest.place.address)
            elif self._make_room(size):
                starts += self._extents.take(size, count - len(starts))
            else:
                break
        return starts

    def _make_room(self, size: int) -> bool:
        """Evict until a free extent of `size` exists; False when that cannot be had."""
        if size > self._extents.largest_segment_nbytes:
            return False
        given = 0
        while given < size and self._idle:
            oldest = next(iter(self._idle.values()))
            given += oldest.size
            self._evict(oldest)
            if self._extents.largest_free_nbytes >= size:
                return True
        for entry in islice(self._idle.values(), _VICTIMS_TRIED):
            going = self._extents.neighbourhood(entry.place.address, size, may_go=self._is_idle)
            if going:
                for start in going:
                    self._evict(self._entries[start])
                return True
        return False

    def _is_idle(self, start: int) -> bool:
        entry = self._entries.get(start)
        return entry is not None and entry.stored and not entry.holds

    def _evict(self, entry: Entry) -> None:
        self._forget(entry)
        self._free(entry)

    def _forget(self, entry: Entry) -> None:
        """Turn a stored entry into memory without a name."""
        key = entry.place.key
        del self._stored[key], self._idle[key]
        self.evictions += 1
        self._note(key, Miss.EVICTED)

    def _note(self, key: PoolKey, why: Miss) -> None:
        self._missed[key] = why
        if len(self._missed) > _REMEMBERED:
            self._missed.popitem(last=False)

    def _unstore(self, entry: Entry) -> None:
        """Let a stored entry go that its key names no longer: now, or when its readers have."""
        entry.stored = False
        if not entry.holds:
            del self._idle[entry.place.key]
            self._free(entry)

    def _free(self, entry: Entry) -> None:
        del self._entries[entry.place.address]
        self._extents.give(entry.place.address)


def _refuse(operation: str, unknown: Sequence[Place | Held]) -> None:
    if unknown:
        first = unknown[0]
        raise EmsException(
            f"{operation} of {len(unknown)} entries that the pool did not hand out, or that are "
            f"back already; the first is {first.key} at {first.address:#x}"
        )
