"""Where the blocks of a registered cache lie in device memory, and what lies between."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ems.layout.plane import Plane

CELLS: Final = 256
"""Cells of a picture, at most."""
GAP: Final = "."
"""A cell most of which belongs to no tensor; the others are digits, the plane's index."""
_LAST_DIGIT: Final = 9
_DIGITS: Final = 4
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
    """One character per cell: `GAP` or the plane's index."""


@dataclass(frozen=True, slots=True)
class BlockMap:
    """All tensors of a cache in the address space of their NPU."""

    places: tuple[Place, ...]
    """By layer and plane."""
    tensor_nbytes: int
    padding_nbytes: int
    """Between the blocks of a tensor."""
    gap_nbytes: int
    """Between neighbouring tensors of one picture."""
    pictures: tuple[Picture, ...]


def block_map(planes: Iterable[tuple[Plane, str]]) -> BlockMap:
    """Return the map of planes, each with what it is called."""
    found = list(planes)
    places = tuple(_place(plane, name) for plane, name in found)
    stretches = list(_stretches(places))
    payload = sum(plane.block_nbytes * plane.num_blocks for plane, _ in found)
    return BlockMap(
        places,
        payload,
        sum(place.nbytes for place in places) - payload,
        sum(_gaps(stretch) for stretch in stretches),
        tuple(_picture(stretch) for stretch in stretches),
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


def _picture(stretch: Sequence[Place]) -> Picture:
    start, end = stretch[0].address, max(place.end for place in stretch)
    width = _round(-(-(end - start) // CELLS))
    covered: list[dict[str, int]] = [{} for _ in range(-(-(end - start) // width))]
    for place in stretch:
        digit = str(min(place.plane, _LAST_DIGIT))
        first, last = (place.address - start) // width, (place.end - 1 - start) // width
        for cell in range(first, last + 1):
            low = max(place.address, start + cell * width)
            high = min(place.end, start + (cell + 1) * width)
            covered[cell][digit] = covered[cell].get(digit, 0) + high - low
    return Picture(start, end, width, "".join(_cell(parts, width) for parts in covered))


def _round(nbytes: int) -> int:
    """Return a size that is no smaller, and of few binary digits."""
    step = 1 << max(0, nbytes.bit_length() - _DIGITS)
    return -(-nbytes // step) * step


def _cell(parts: dict[str, int], width: int) -> str:
    if 2 * sum(parts.values()) < width:
        return GAP
    return max(parts, key=lambda digit: parts[digit])
