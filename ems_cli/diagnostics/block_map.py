"""Where the blocks of a registered cache lie in device memory, and what lies between."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ems.layout.plane import Plane

CELLS: Final = 256
"""Cells of a picture, at most."""
GAP: Final = "."
"""A cell most of which belongs to no tensor; the others are digits, the plane's index."""
MIXED: Final = "x"
"""A cell in which several tensors take turns, page by page."""
_LAST_DIGIT: Final = 9
_DIGITS: Final = 4
_PAGES: Final = 2
"""Pages that are drawn apart where something lies between the blocks of a tensor."""
_PAGE_CELLS: Final = 64
_APART: Final = 4
"""Stretches of memory are drawn apart when the gap is this many times what lies around it."""


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor's stretch of device memory."""

    layer: int
    plane: int
    name: str
    address: int
    end: int
    """Behind the last block."""
    block_stride_nbytes: int
    token_nbytes: int
    num_blocks: int
    block_size: int

    @property
    def nbytes(self) -> int:
        """Bytes from first to last, padding included."""
        return self.end - self.address

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block, without padding."""
        return self.token_nbytes * self.block_size

    def within(self, low: int, high: int) -> int:
        """Return how many bytes between two addresses are the tensor's own."""
        return self._before(high) - self._before(low)

    def _before(self, address: int) -> int:
        blocks, rest = divmod(max(0, address - self.address), self.block_stride_nbytes)
        if blocks >= self.num_blocks:
            return self.num_blocks * self.block_nbytes
        return blocks * self.block_nbytes + min(rest, self.block_nbytes)

    def block(self, block: int) -> int:
        """Return the address of a block."""
        return self.address + block * self.block_stride_nbytes

    def slot(self, slot: int) -> int:
        """Return the address of a slot."""
        block, offset = divmod(slot, self.block_size)
        return self.block(block) + offset * self.token_nbytes


@dataclass(frozen=True, slots=True)
class Picture:
    """A stretch of device memory, drawn."""

    start: int
    end: int
    cell_nbytes: int
    cells: str
    """One character per cell: `GAP`, `MIXED` or the plane's index."""


@dataclass(frozen=True, slots=True)
class BlockMap:
    """All tensors of a cache in the address space of their NPU."""

    places: tuple[Place, ...]
    """By layer and plane."""
    tensor_nbytes: int
    padding_nbytes: int
    """Between blocks, and of no tensor."""
    gap_nbytes: int
    """Between neighbouring tensors of one picture."""
    pictures: tuple[Picture, ...]
    pages: tuple[Picture, ...]
    """The first blocks of the first tensor and what lies between, if anything does."""


def block_map(planes: Iterable[tuple[Plane, str]]) -> BlockMap:
    """Return the map of planes, each with what it is called."""
    found = list(planes)
    places = tuple(_place(plane, name) for plane, name in found)
    stretches = list(_stretches(places))
    return BlockMap(
        places,
        sum(place.block_nbytes * place.num_blocks for place in places),
        sum(_padding(stretch) for stretch in stretches),
        sum(_gaps(stretch) for stretch in stretches),
        tuple(_picture(stretch) for stretch in stretches),
        tuple(_pages(places)),
    )


def _place(plane: Plane, name: str) -> Place:
    return Place(
        plane.layer,
        plane.index,
        name,
        plane.address,
        plane.end,
        plane.block_stride,
        plane.token_nbytes,
        plane.num_blocks,
        plane.block_size,
    )


def _stretches(places: Sequence[Place]) -> Iterator[list[Place]]:
    """Yield neighbours together, in the order of their addresses."""
    ordered = sorted(places, key=lambda place: place.address)
    apart = _APART * max((place.nbytes for place in places), default=0)
    stretch: list[Place] = []
    end = 0
    for place in ordered:
        if stretch and place.address - end > apart:
            yield stretch
            stretch = []
        stretch.append(place)
        end = max(end, place.end)
    if stretch:
        yield stretch


def _gaps(stretch: Sequence[Place]) -> int:
    gaps, end = 0, stretch[0].address
    for place in stretch:
        gaps += max(0, place.address - end)
        end = max(end, place.end)
    return gaps


def _padding(stretch: Sequence[Place]) -> int:
    start, end = stretch[0].address, max(place.end for place in stretch)
    own = {(p.address, p.block_stride_nbytes, p.block_nbytes): p for p in stretch}.values()
    payload = sum(place.block_nbytes * place.num_blocks for place in own)
    return max(0, end - start - _gaps(stretch) - payload)


def _picture(stretch: Sequence[Place]) -> Picture:
    start, end = stretch[0].address, max(place.end for place in stretch)
    return _drawn(stretch, start, end, _round(-(-(end - start) // CELLS)))


def _pages(places: Sequence[Place]) -> Iterator[Picture]:
    first = min(places, key=lambda place: place.address, default=None)
    if (
        first is None
        or first.num_blocks < _PAGES
        or first.block_stride_nbytes == first.block_nbytes
    ):
        return
    end = first.address + _PAGES * first.block_stride_nbytes
    near = [place for place in places if first.address <= place.address < end]
    width = -(-first.block_stride_nbytes * _PAGES // _PAGE_CELLS)
    yield _drawn(near, first.address, end, width)


def _drawn(places: Sequence[Place], start: int, end: int, width: int) -> Picture:
    covered: list[dict[str, int]] = [{} for _ in range(-(-(end - start) // width))]
    # a cell of whole pages is shared by all whose blocks take turns in them
    sharing = {
        str(min(place.plane, _LAST_DIGIT))
        for place in places
        if place.block_nbytes < place.block_stride_nbytes <= width
    }
    for place in places:
        digit = str(min(place.plane, _LAST_DIGIT))
        last = min(place.end, end) - 1
        for cell in range((place.address - start) // width, (last - start) // width + 1):
            low = start + cell * width
            own = place.within(low, min(low + width, end))
            covered[cell][digit] = covered[cell].get(digit, 0) + own
    return Picture(start, end, width, "".join(_cell(parts, width, sharing) for parts in covered))


def _round(nbytes: int) -> int:
    """Return a size that is no smaller, and of few binary digits."""
    step = 1 << max(0, nbytes.bit_length() - _DIGITS)
    return -(-nbytes // step) * step


def _cell(parts: dict[str, int], width: int, sharing: set[str]) -> str:
    if 2 * sum(parts.values()) < width:
        return GAP
    if sum(digit in sharing and own > 0 for digit, own in parts.items()) > 1:
        return MIXED
    return max(parts, key=lambda digit: parts[digit])
