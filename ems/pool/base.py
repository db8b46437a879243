"""The interface of a pool engine: two phases, in batches, and honest about misses.

Saving: `reserve` memory, fill it, then `commit` (or `abort`). Nothing reserved is visible.
Loading: `acquire` entries, read them, then `release`. Nothing acquired is evicted.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from ems.common.exception import PoolUnavailable
from ems.layout.key import PoolKey

__all__ = [
    "EntryInfo",
    "Held",
    "HostMemory",
    "Miss",
    "NotStored",
    "Place",
    "PoolEngine",
    "PoolKey",
    "PoolStats",
    "Refused",
    "TooMuchAtOnce",
]


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """What the pool knows about an entry without reading it."""

    tokens: int
    """Tokens that are stored; a request for more is a miss."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Place:
    """Memory reserved for one entry. Filled by the caller, seen by nobody before `commit`."""

    key: PoolKey
    address: int
    """Host address, pinned for the NPU, a multiple of 64."""
    tokens: int
    nbytes: int


class Refused(enum.Enum):
    """Why `reserve` gave no memory for an entry."""

    ALREADY_THERE = enum.auto()
    """As many tokens or more are stored under this key: a success without a write."""
    NO_SPACE = enum.auto()
    """The pool is full and nothing in it can be evicted now."""


@dataclass(frozen=True, slots=True)
class Held:
    """A stored entry that stays where it is until `release`."""

    key: PoolKey
    address: int
    """Host address, pinned for the NPU, a multiple of 64."""
    tokens: int
    """Tokens that are stored, at least as many as were asked for."""
    nbytes: int


class Miss(enum.Enum):
    """Why `acquire` found nothing to read. A miss is an ordinary answer, never an exception."""

    ABSENT = enum.auto()
    """Nothing is stored under this key, as far as the engine remembers."""
    EVICTED = enum.auto()
    """It was stored, and has made room for others."""
    TOO_SHORT = enum.auto()
    """Fewer tokens are stored than were asked for."""
    DAMAGED = enum.auto()
    """What was stored does not match its header; it has been removed."""
    SAVE_FAILED = enum.auto()
    """It was offered to the pool, and did not get in."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The pool at one moment. used <= backed <= capacity; reserved and held are part of used."""

    capacity_nbytes: int
    backed_nbytes: int
    """Memory the pool has taken from the host so far."""
    used_nbytes: int
    """Memory that belongs to entries, stored or reserved, with alignment."""
    reserved_nbytes: int
    held_nbytes: int
    largest_free_nbytes: int
    """The largest entry that fits into what is backed now without evicting anything."""
    entries: int
    evictions: int
    staging_nbytes: int = 0
    """Of the capacity, what is of this process alone: entries pass through it, none stays."""

    @property
    def room_nbytes(self) -> int:
        """What all entries together may take; the whole capacity where it is not known."""
        return self.capacity_nbytes - self.staging_nbytes or self.capacity_nbytes


class NotStored(PoolUnavailable):
    """`commit` could not store some places, which are given up; the others are visible."""

    def __init__(self, why: str, places: Sequence[Place]) -> None:
        super().__init__(why)
        self.places = places


class TooMuchAtOnce(PoolUnavailable):
    """The entries of one `acquire` do not pass through the pool's memory together; fewer may."""


class HostMemory(Protocol):
    """Gives host memory that the NPU copies to and from directly. Slow: never within a request."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of `nbytes` of pinned memory, a multiple of 64.

        Raises:
            PoolUnavailable: the host has none left; the text names the size.
        """

    def free(self, address: int) -> None:
        """Give back what `allocate` returned."""


class PoolEngine(ABC):
    """Keeps entries under keys.

    Every method may be called from any thread. A pool that cannot answer raises
    `PoolUnavailable`; no engine may report that as a miss. After `close` every method raises it
    too, but `close` itself, and `abort` and `release` of what was out at that moment. `deadline`
    is a value of `time.monotonic()`, or None for no limit.
    """

    window_nbytes: int | None = None
    """The most that one caller should have reserved or acquired at once; None: no limit."""
    first_nbytes: int | None = None
    """The most to ask for first, where asking costs less than what the NPU could do meanwhile."""

    def view(self, *, write_local: bool, local_only: bool) -> "PoolEngine":  # noqa: ARG002
        """Return this pool as requests with these options see it: write_rcache, read_local_only.

        Only an engine of several tiers tells them apart.
        """
        return self

    def fitting(
        self,
        keys: Sequence[PoolKey],
        nbytes: Sequence[int],  # noqa: ARG002 - for engines that know their room
    ) -> int:
        """Return how many of these entries, the first ones, can be stored side by side.

        One more would evict the first of them. What finds no room even alone takes none from the
        others. All of them, where the engine does not know its room.
        """
        return len(keys)

    @abstractmethod
    def lookup(
        self, keys: Sequence[PoolKey], *, deadline: float | None = None
    ) -> list[EntryInfo | None]:
        """Return what is stored under `keys`, in their order.

        Holds nothing and does not count as use. (Mooncake alone leases what it is asked about, for
        seconds, unless its metrics port is known.)

        Raises:
            PoolUnavailable: the pool did not answer.
            RequestTimeout: the deadline passed.
        """

    @abstractmethod
    def reserve(
        self,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
        nbytes: Sequence[int],
        *,
        deadline: float | None,
    ) -> list[Place | Refused]:
        """Return memory for one entry of each key, in their order.

        Evicts the least recently used entries that nobody holds, where it must. Keys of one call
        differ. A key that is stored with fewer tokens gets a place: the fuller version replaces
        the stored one when it is committed, which stays readable until then.

        Raises:
            PoolUnavailable: the pool did not answer; nothing is reserved.
            RequestTimeout: the deadline passed while waiting for memory; nothing is reserved.
        """

    @abstractmethod
    def commit(self, places: Sequence[Place]) -> None:
        """Make filled places visible, each as a whole. They must not be touched afterwards.

        Where an entry with as many tokens has become visible since, that one stays.

        Raises:
            NotStored: for want of room, say, some are not; the others are visible.
            PoolUnavailable: the pool did not answer; places not yet visible are given up.
        """

    @abstractmethod
    def abort(self, places: Sequence[Place]) -> None:
        """Give reserved places back, unseen. Later misses of their keys say SAVE_FAILED."""

    @abstractmethod
    def acquire(
        self, keys: Sequence[PoolKey], tokens: Sequence[int], *, deadline: float | None
    ) -> list[Held | Miss]:
        """Return entries with at least `tokens` each, in the order of `keys`; counts as use.

        Raises:
            TooMuchAtOnce: as they are stored they exceed what one call may hold; nothing is held.
            PoolUnavailable: the pool did not answer; nothing is held.
            RequestTimeout: the deadline passed; nothing is held.
        """

    @abstractmethod
    def release(self, held: Sequence[Held]) -> None:
        """End the hold of acquired entries. They must not be read afterwards."""

    @abstractmethod
    def remove(self, keys: Sequence[PoolKey]) -> int:
        """Remove entries and return how many there were; one that is held goes when released."""

    @abstractmethod
    def clear(self) -> int:
        """Remove every entry, as `remove` does."""

    @abstractmethod
    def keys(self) -> Iterator[PoolKey]:
        """Return the keys stored now, least recently used first."""

    @abstractmethod
    def stats(self) -> PoolStats:
        """Return the pool's figures at this moment."""

    @abstractmethod
    def check_health(self, *, deadline: float | None) -> None:
        """Return when the pool answers.

        Raises:
            PoolUnavailable: it does not; the text says what was tried.
        """

    @abstractmethod
    def close(self) -> None:
        """Give everything back; repeated calls are harmless.

        Memory that is reserved or held at that moment stays until it is given back, since a copy
        may still be running in it.
        """
