"""How a request is cut: into windows that the pool can hold, and slices that are copied at once."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from ems.layout.copy_plan import Spans, joined, slices_of
from ems.layout.part import Part
from ems.pool.base import Held, Place

SLICE_NBYTES = 32 << 20
"""Bytes of one slice. A time-out ends late by at most the slices under way."""


def windows_of(parts: Sequence[Part], limit: int | None) -> Iterator[tuple[range, list[range]]]:
    """Yield positions of hashes that the pool can hold at once, and the slices to copy them in."""
    sizes: list[int] = np.sum([part.nbytes for part in parts], axis=0).tolist()
    for window in [range(len(sizes))] if limit is None else slices_of(sizes, limit):
        slices = slices_of(sizes[window.start : window.stop], SLICE_NBYTES)
        yield window, [window[piece.start : piece.stop] for piece in slices]


def spans_between(parts: Sequence[Part], entries: Sequence[Mapping[int, Place | Held]]) -> Spans:
    """Return the copies between device memory and `entries`, by part and position of the hash."""
    return joined(
        [
            part.spans(
                np.fromiter(mine, np.int64, len(mine)),
                np.fromiter((entry.address for entry in mine.values()), np.uint64, len(mine)),
                np.fromiter((entry.tokens for entry in mine.values()), np.int64, len(mine)),
            )
            for part, mine in zip(parts, entries, strict=True)
            if mine
        ]
    )
