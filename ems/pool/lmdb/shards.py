"""The shards of a pool as one: each entry belongs to the one that its key says."""

import heapq
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import xxhash

from ems.layout.key import PoolKey
from ems.pool.lmdb.record import Header
from ems.pool.lmdb.shard import Fetched, Shard, Wish
from ems.pool.lmdb.writing import Figures, Offer

_Member = TypeVar("_Member")
_Answer = TypeVar("_Answer")


class Shards:
    """Calls every shard with what belongs to it, and puts the answers in the order of the call."""

    def __init__(self, shards: Sequence[Shard]) -> None:
        self._shards = shards

    @property
    def capacity_nbytes(self) -> int:
        """The capacity of each shard: nothing larger can be stored."""
        return self._shards[0].capacity_nbytes

    def fitting(self, keys: Sequence[PoolKey], sizes: Sequence[int]) -> int:
        """Return how many entries, the first ones, come before a shard has to evict one of them."""
        if sum(sizes) <= self.capacity_nbytes:
            return len(keys)
        left = [self.capacity_nbytes] * len(self._shards)
        for at, (key, size) in enumerate(zip(keys, sizes, strict=True)):
            mine = _digest(key) % len(left)
            if size <= self.capacity_nbytes:
                left[mine] -= size
            if left[mine] < 0:
                return at
        return len(keys)

    def headers(self, keys: Sequence[PoolKey]) -> list[Header | None]:
        """Return what is known of the entries."""
        return self._ask(keys, keys, Shard.headers)

    def were_evicted(self, keys: Sequence[PoolKey]) -> list[bool]:
        """Return which of these keys, that are not stored, are known to have been evicted."""
        return self._ask(keys, keys, Shard.were_evicted)

    def examine(self, seen: Sequence[tuple[PoolKey, Header]]) -> list[Fetched]:
        """Return what would come of reading entries, by the sizes of their pieces alone."""
        return self._ask([key for key, _ in seen], seen, Shard.examine)

    def fetch(self, wishes: Sequence[Wish]) -> list[Fetched]:
        """Copy entries to where they are wanted."""
        return self._ask([wish.key for wish in wishes], wishes, Shard.fetch)

    def store(self, offers: Sequence[Offer], touched: Mapping[PoolKey, int]) -> None:
        """Store entries where nothing as long is stored, after noting what was used."""
        used = self._touched_of_each(touched)
        for at, members in self._shared_out([offer.key for offer in offers]):
            self._shards[at].store([offers[member] for member in members], used.pop(at, {}))
        for at, mine in used.items():
            self._shards[at].touch(mine)

    def touch(self, touched: Mapping[PoolKey, int], *, patiently: bool = True) -> None:
        """Note when entries were used."""
        for at, mine in self._touched_of_each(touched).items():
            self._shards[at].touch(mine, patiently=patiently)

    def remove(self, keys: Sequence[PoolKey]) -> int:
        """Remove entries; return how many there were."""
        return sum(
            self._shards[at].remove([keys[member] for member in members])
            for at, members in self._shared_out(keys)
        )

    def remove_damaged(self, seen: Sequence[tuple[PoolKey, Header]]) -> None:
        """Remove entries that proved damaged, unless others have taken their place."""
        for at, members in self._shared_out([key for key, _ in seen]):
            self._shards[at].remove_damaged([seen[member] for member in members])

    def clear(self) -> int:
        """Remove everything; return how many entries it was."""
        return sum(shard.clear() for shard in self._shards)

    def keys(self) -> list[PoolKey]:
        """Return all keys, least recently used first."""
        return [key for _, key in heapq.merge(*(shard.ages() for shard in self._shards))]

    def figures(self) -> tuple[Figures, int]:
        """Return the sums over all shards, and how many entries there are."""
        figures, entries = zip(*(shard.figures() for shard in self._shards), strict=True)
        return (
            Figures(
                used_nbytes=sum(one.used_nbytes for one in figures),
                evictions=sum(one.evictions for one in figures),
                damaged=sum(one.damaged for one in figures),
            ),
            sum(entries),
        )

    def probe(self, name: bytes, content: bytes) -> None:
        """Write a few bytes into every shard, and read them back."""
        for shard in self._shards:
            shard.probe(name, content)

    def reconcile(self) -> None:
        """Make the tables agree; for the first process that opens the pool."""
        for shard in self._shards:
            shard.reconcile()

    def close(self) -> None:
        """Let go of the files. Nothing of them may be in use."""
        for shard in self._shards:
            shard.close()

    def _touched_of_each(self, touched: Mapping[PoolKey, int]) -> dict[int, dict[PoolKey, int]]:
        """Return by shard which of its entries were used, and when."""
        keys = list(touched)
        return {
            at: {keys[member]: touched[keys[member]] for member in members}
            for at, members in self._shared_out(keys)
        }

    def _ask(
        self,
        keys: Sequence[PoolKey],
        members: Sequence[_Member],
        call: Callable[[Shard, Sequence[_Member]], list[_Answer]],
    ) -> list[_Answer]:
        answers: dict[int, _Answer] = {}
        for at, mine in self._shared_out(keys):
            found = call(self._shards[at], [members[member] for member in mine])
            answers.update(zip(mine, found, strict=True))
        return [answers[at] for at in range(len(keys))]

    def _shared_out(self, keys: Sequence[PoolKey]) -> list[tuple[int, list[int]]]:
        """Return shards with the positions of the keys that belong to them."""
        count = len(self._shards)
        if count == 1 and keys:
            return [(0, list(range(len(keys))))]
        members: dict[int, list[int]] = {}
        for at, key in enumerate(keys):
            members.setdefault(_digest(key) % count, []).append(at)
        return list(members.items())


def _digest(key: PoolKey) -> int:
    """Return a hash of which no bits are used for anything else."""
    return xxhash.xxh3_64_intdigest(key.encode()) >> 48
