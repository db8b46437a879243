"""Regions of wrong bytes, and where such bytes were written."""

import itertools
from dataclasses import dataclass
from typing import Final

import numpy as np

from ems_cli.diagnostics.position_code import WORD, Book, Bytes, Form, Ints, Origin, block_bytes

_MOST_SEGMENTS: Final = 6
_MOST_UNKNOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Region:
    """One block in one tensor, or one tensor's part of an entry, whose bytes are wrong."""

    layer: int
    plane: int
    block: int | None
    """None in an entry of the pool."""
    where: str
    """How a message calls it: "block 3", "in the saved entry"."""
    found: Bytes
    expected: Bytes
    columns: Ints
    """[tokens, 3]: rank, generation and slot in which each token was written."""
    before: Ints | None
    """The same for what was there before the call; None in an entry."""

    def is_bystander(self, token: int) -> bool:
        """Whether no byte of a token should have changed."""
        return self.before is not None and np.array_equal(self.before[token], self.columns[token])


def swapped_axes(region: Region, form: Form) -> str:
    """Return which axes of the expected content are exchanged in what was found."""
    shape = (len(region.columns), form.heads, form.head_size, form.itemsize)
    expected = region.expected.reshape(shape)
    for order in itertools.permutations(range(3)):
        if order == (0, 1, 2):
            continue
        written = expected.transpose(*order, 3)  # in another order, or read in another order
        read = region.expected.reshape(written.shape).transpose(*np.argsort(order), 3)
        if any(np.array_equal(each.ravel(), region.found) for each in (written, read)):
            names = ("token", "head", "dimension")
            return " and ".join(names[axis] for axis in range(3) if order[axis] != axis)
    return ""


def origins(region: Region, book: Book) -> list[tuple[int, Origin | None]]:
    """Return the origins of some wrong bytes, the first ones of each stretch."""
    left = region.found != region.expected
    found: list[tuple[int, Origin | None]] = []
    unknown = 0
    while left.any() and len(found) < _MOST_SEGMENTS and unknown < _MOST_UNKNOWN:
        at = int(np.argmax(left))
        origin = _origin_at(region.found, at, book)
        found.append((at, origin))
        if origin is None:
            unknown += 1
            left[: at + WORD] = False
            continue
        row = block_bytes(book.forms_of(origin.rank)[origin.layer][origin.plane], origin)
        length = min(row.size - origin.offset, left.size - at)
        same = row[origin.offset :][:length] == region.found[at:][:length]
        left[: at + (length if same.all() else int(np.argmin(same)))] = False
    return found


def _origin_at(found: Bytes, at: int, book: Book) -> Origin | None:
    for start in sorted(range(at - WORD + 1, at + WORD), key=lambda start: abs(start - at)):
        if start < 0 or start + WORD > found.size:
            continue
        origin = book.origin_of(found[start : start + WORD])
        if origin is None:
            continue
        offset = origin.offset + at - start
        row = block_bytes(book.forms_of(origin.rank)[origin.layer][origin.plane], origin)
        if 0 <= offset < row.size and row[offset] == found[at]:
            return Origin(
                origin.rank,
                origin.generation,
                origin.layer,
                origin.plane,
                origin.block,
                offset,
            )
    return None
