"""A request seen as entries of the pool: one per hash and layer group."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ems.layout.copy_plan import Spans, entry_nbytes, joined, plan_spans, slices_of
from ems.layout.key import PoolKey, make_keys
from ems.layout.registration import LayerGroup
from ems.layout.request import Chunks, Request
from ems.layout.slots import Ints
from ems.pool.base import Held, Place

SLICE_NBYTES = 32 << 20
"""Bytes of one slice. A time-out ends late by at most the slices under way."""


@dataclass(frozen=True)
class Part:
    """What a request moves in one layer group."""

    group: LayerGroup
    chunks: Chunks
    keys: list[PoolKey]
    """One per hash of the request."""
    nbytes: Ints
    """Size of an entry, one per hash."""


def parts_of(
    request: Request, groups: Sequence[LayerGroup], key_prefixes: Sequence[str]
) -> list[Part]:
    """Return the parts of a request, one per layer group."""
    return [
        Part(group, chunks, make_keys(prefix, request.hashes), entry_nbytes(group, chunks.tokens))
        for group, chunks, prefix in zip(groups, request.chunks, key_prefixes, strict=True)
    ]


def windows_of(parts: Sequence[Part], limit: int | None) -> Iterator[tuple[range, list[range]]]:
    """Yield positions of hashes that the pool can hold at once, and the slices to copy them in."""
    sizes: list[int] = np.sum([part.nbytes for part in parts], axis=0).tolist()
    for window in [range(len(sizes))] if limit is None else slices_of(sizes, limit):
        slices = slices_of(sizes[window.start : window.stop], SLICE_NBYTES)
        yield window, [window[piece.start : piece.stop] for piece in slices]


def spans_between(parts: Sequence[Part], entries: Sequence[Mapping[int, Place | Held]]) -> Spans:
    """Return the copies between the cache and `entries`, given by part and position of the hash."""
    return joined(
        [
            plan_spans(
                part.group,
                part.chunks,
                np.fromiter(mine, np.int64, len(mine)),
                np.fromiter((entry.address for entry in mine.values()), np.uint64, len(mine)),
                np.fromiter((entry.tokens for entry in mine.values()), np.int64, len(mine)),
            )
            for part, mine in zip(parts, entries, strict=True)
            if mine
        ]
    )
