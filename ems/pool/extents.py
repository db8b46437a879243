"""Which bytes of the pool's segments are free: arithmetic on addresses, nothing is touched."""

from bisect import bisect_left, insort
from collections.abc import Callable

ALIGNMENT = 64
"""Every extent starts on a multiple of this; copies by the NPU demand it."""


def aligned(nbytes: int) -> int:
    """Return the size of the extent that holds `nbytes`."""
    return max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)


class Extents:
    """Free and taken extents of any number of segments.

    An extent is `[start, start + size)`, with both multiples of `ALIGNMENT`. Free neighbours
    within one segment are always one extent; segments never grow together, even where they
    touch, since each is given back to the host by itself.

    Taking and giving are look-ups in dicts and a bisection of the distinct free sizes.
    """

    def __init__(self) -> None:
        self.backed_nbytes = 0
        self.used_nbytes = 0
        self.whole_segments = 0
        """Segments of which nothing is taken."""
        self.largest_segment_nbytes = 0
        self._segments: dict[int, int] = {}
        self._free: dict[int, int] = {}  # start -> size
        self._free_ends: dict[int, int] = {}  # end -> start
        self._starts: dict[int, dict[int, None]] = {}  # size -> starts, used as an ordered set
        self._sizes: list[int] = []  # the keys of _starts, ascending
        self._taken: dict[int, int] = {}
        self._taken_ends: dict[int, int] = {}

    @property
    def largest_free_nbytes(self) -> int:
        """The largest extent that `take` can answer with."""
        return self._sizes[-1] if self._sizes else 0

    @property
    def segment_sizes(self) -> list[int]:
        """The bytes of each segment."""
        return list(self._segments.values())

    def add_segment(self, start: int, size: int) -> None:
        """Make a new segment available."""
        self._segments[start] = size
        self.backed_nbytes += size
        self.largest_segment_nbytes = max(self.largest_segment_nbytes, size)
        self._insert(start, size)

    def take(self, size: int, count: int) -> list[int]:
        """Take up to `count` extents of `size` and return their starts.

        Each comes from a free extent of exactly that size, else from the smallest larger one.
        What is left of that one is the smallest larger one for the next: so one look-up serves
        as many as fit into it.
        """
        starts: list[int] = []
        while len(starts) < count:
            at = bisect_left(self._sizes, size)
            if at == len(self._sizes):
                break
            found = self._sizes[at]
            start = next(reversed(self._starts[found]))
            pieces = min(count - len(starts), found // size)
            self._withdraw(start)
            end = start + pieces * size
            starts.extend(range(start, end, size))
            if end < start + found:
                self._insert(end, start + found - end)
        self._taken.update(dict.fromkeys(starts, size))
        self._taken_ends.update((start + size, start) for start in starts)
        self.used_nbytes += size * len(starts)
        return starts

    def give(self, start: int) -> None:
        """Make a taken extent free again."""
        size = self._taken.pop(start)
        end = start + size
        del self._taken_ends[end]
        self.used_nbytes -= size
        if end in self._free and end not in self._segments:
            end += self._withdraw(end)
        if start in self._free_ends and start not in self._segments:
            start = self._free_ends[start]
            self._withdraw(start)
        self._insert(start, end - start)

    def neighbourhood(self, start: int, size: int, *, may_go: Callable[[int], bool]) -> list[int]:
        """Return taken extents, `start` among them, whose going makes `size` bytes free in a row.

        They lie side by side, or with free extents between them: first upwards from `start`, then
        downwards. Empty when the segment ends, or one that may not go stands in the way, too soon.
        """
        going = [start]
        low, high = start, start + self._taken[start]
        if low not in self._segments:
            low = self._free_ends.get(low, low)
        while high - low < size and high not in self._segments:
            if high in self._taken:
                if not may_go(high):
                    break
                going.append(high)
            elif high not in self._free:
                break
            high += self._taken.get(high) or self._free[high]
        while high - low < size and low not in self._segments:
            if low in self._taken_ends:
                if not may_go(self._taken_ends[low]):
                    break
                low = self._taken_ends[low]
                going.append(low)
            else:
                low = self._free_ends[low]
        return going if high - low >= size else []

    def _insert(self, start: int, size: int) -> None:
        self._free[start] = size
        self._free_ends[start + size] = start
        same = self._starts.get(size)
        if same is None:
            self._starts[size] = {start: None}
            insort(self._sizes, size)
        else:
            same[start] = None
        self.whole_segments += self._segments.get(start) == size

    def _withdraw(self, start: int) -> int:
        """Take a whole free extent out of the books and return its size."""
        size = self._free.pop(start)
        del self._free_ends[start + size]
        same = self._starts[size]
        del same[start]
        if not same:
            del self._starts[size]
            del self._sizes[bisect_left(self._sizes, size)]
        self.whole_segments -= self._segments.get(start) == size
        return size
