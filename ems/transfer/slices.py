"""How a request is cut: into windows that the pool can hold, and slices that are copied at once."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ems.layout.copy_plan import Spans, joined, slices_of
from ems.layout.key import PoolKey
from ems.layout.part import Part
from ems.layout.prefix import servable_prefix
from ems.pool.base import Held, Place, PoolEngine
from ems.transfer.pipeline import Pipeline

SLICE_NBYTES = 32 << 20
"""Bytes of one slice. A time-out ends late by at most the slices under way."""


def is_cut(parts: Sequence[Part], pool: PoolEngine, pipeline: Pipeline) -> bool:
    """Return whether the pool cannot hold all of a request at once, beside another."""
    limit = pool.window_nbytes
    return (
        limit is not None and sum(int(one.nbytes.sum()) for one in parts) > limit // pipeline.lanes
    )


def windows_of(
    parts: Sequence[Part], pool: PoolEngine, pipeline: Pipeline
) -> Iterator[tuple[range, list[range]]]:
    """Yield positions of hashes to hold at once, and the slices to copy them in.

    Each comes when the pool has room for it: while one is copied, another is stored or fetched.
    Where a single hash needs more than its share of the room, it has the pool for itself.
    """
    by_part: list[list[int]] = [part.nbytes.tolist() for part in parts]
    sizes = [sum(one) for one in zip(*by_part, strict=True)]
    limit = pool.window_nbytes
    share = sum(sizes) if limit is None else limit // pipeline.lanes
    make_room = pipeline.make_room if max(sizes) <= share else pipeline.finish
    # A small window comes first. It moves while room is found for the others; and copies that share
    # the way and began together would end together: nothing moved until the next had started. But
    # what nothing else cuts stays whole where a layer group with a window is to be seen at once.
    whole = sum(sizes) <= share and any(part.window is not None for part in parts)
    first = None if whole or pool.first_nbytes is None else min(pool.first_nbytes, share)
    for window in slices_of(sizes, share, first_nbytes=first):
        make_room()
        slices = slices_of(sizes[window.start : window.stop], SLICE_NBYTES)
        yield window, [window[piece.start : piece.stop] for piece in slices]


class Wanted(NamedTuple):
    """One entry of a request."""

    part: int
    at: int
    """Which hash."""
    key: PoolKey
    tokens: int
    nbytes: int


def wanted_of(parts: Sequence[Part], hashes: Sequence[int]) -> list[Wanted]:
    """Return the entries of some hashes: where a hash has no tokens, it has no entry."""
    chosen = np.array(hashes, np.int64)
    return [
        Wanted(index, at, part.keys[at], tokens, nbytes)
        for index, part in enumerate(parts)
        for at, tokens, nbytes in zip(
            hashes, part.tokens[chosen].tolist(), part.nbytes[chosen].tolist(), strict=True
        )
        if tokens
    ]


def prefix_of(parts: Sequence[Part], done: npt.NDArray[np.bool_]) -> int:
    """Return how many leading hashes can be used, given which entries are `done`, by part."""
    if done.all():
        return len(parts[0].keys)
    tokens = np.max([part.tokens for part in parts], axis=0)
    return servable_prefix(list(done), [part.window for part in parts], tokens)


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
