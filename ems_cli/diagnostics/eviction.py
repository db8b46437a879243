"""What other ways of making room would have hit: endless memory, first in first out, foresight.

Only counts, no pool: a dict and a heap. A request looks for its leading blocks, then stores those
that it did not find, as inference engines do.
"""

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from ems_cli.diagnostics.trace_file import Request


@dataclass(frozen=True, slots=True)
class Hits:
    """Leading blocks that were found."""

    blocks: int
    tokens: int


def endless_hits(requests: Sequence[Request], block_tokens: int) -> Hits:
    """Return the hits of a cache that forgets nothing: no cache of these blocks has more."""
    stored: dict[int, int] = {}
    blocks = tokens = 0
    for request in requests:
        wanted = request.tokens(block_tokens)
        pairs = list(zip(request.hash_ids, wanted, strict=True))
        hits = list(itertools.takewhile(lambda pair: stored.get(pair[0], 0) >= pair[1], pairs))
        blocks += len(hits)
        tokens += sum(many for _, many in hits)
        for one, many in pairs:
            stored[one] = max(many, stored.get(one, 0))
    return Hits(blocks, tokens)


def fifo_hits(requests: Sequence[Request], capacity: int) -> int:
    """Return the hit blocks where the oldest block goes first, used or not."""
    return _hits(requests, capacity, _Fifo())


def foresight_hits(requests: Sequence[Request], capacity: int) -> int:
    """Return the hit blocks where the block that is needed last, or never again, goes first.

    Belady's rule; it is the best there is for single blocks, and near it for prefixes.
    """
    return _hits(requests, capacity, _Foresight(requests))


class _Fifo:
    """Blocks in the order in which they came."""

    def __init__(self) -> None:
        self.stored: set[int] = set()
        self._order: deque[int] = deque()

    def add(self, one: int) -> None:
        """Store a block."""
        self.stored.add(one)
        self._order.append(one)

    def evict(self) -> None:
        """Remove a block."""
        self.stored.discard(self._order.popleft())

    def use(self, ids: Sequence[int]) -> None:
        """Take note that a request names these blocks."""


class _Foresight(_Fifo):
    """Blocks by the request that needs them next."""

    def __init__(self, requests: Sequence[Request]) -> None:
        super().__init__()
        self._never = len(requests)
        self._heap: list[tuple[int, int]] = []
        self._uses: defaultdict[int, deque[int]] = defaultdict(deque)
        for at, request in enumerate(requests):
            for one in set(request.hash_ids):
                self._uses[one].append(at)

    def add(self, one: int) -> None:
        self.stored.add(one)
        heapq.heappush(self._heap, (-self._next_use(one), one))

    def evict(self) -> None:
        while True:
            use, one = heapq.heappop(self._heap)
            if one in self.stored and -use == self._next_use(one):
                self.stored.discard(one)
                return

    def use(self, ids: Sequence[int]) -> None:
        for one in set(ids):
            self._uses[one].popleft()
            if one in self.stored:
                self.add(one)

    def _next_use(self, one: int) -> int:
        return self._uses[one][0] if self._uses[one] else self._never


def _hits(requests: Sequence[Request], capacity: int, cache: _Fifo) -> int:
    total = 0
    for request in requests:
        hits = sum(1 for _ in itertools.takewhile(cache.stored.__contains__, request.hash_ids))
        total += hits
        cache.use(request.hash_ids)
        for one in dict.fromkeys(request.hash_ids[hits:][:capacity]):
            if one not in cache.stored:
                if len(cache.stored) >= capacity:
                    cache.evict()
                cache.add(one)
    return total
