"""Runs paired with places in entries: the spans that a batched copy moves.

An entry of t tokens holds plane after plane, each t tokens long and starting on 64 bytes. The t is
that of the *stored* entry, so that fewer tokens than stored can be loaded. Spans are built slice by
slice: a request can have millions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from ems.layout.layer_group import LayerGroup
from ems.layout.request import Chunks
from ems.layout.slots import Ints

Uints: TypeAlias = npt.NDArray[np.uint64]

ALIGNMENT = 64
"""Bytes: entries and the parts of planes in them start on a multiple."""
_MOST_LAYOUTS = 64
"""Lengths of entries whose layout is kept."""


@dataclass(frozen=True, slots=True)
class Spans:
    """Pairs of addresses and a length each, as contiguous columns."""

    device: Uints
    host: Uints
    nbytes: Uints

    def __len__(self) -> int:
        """Return how many copies these are."""
        return self.nbytes.size

    @property
    def total_nbytes(self) -> int:
        """Bytes of all spans."""
        return int(self.nbytes.sum())


def entry_nbytes(group: LayerGroup, tokens: Ints) -> Ints:
    """Return the size of entries of `tokens` each, with the parts' alignment."""
    sizes: Ints = _layouts(group, tokens)[:, -1].astype(np.int64)
    return sizes


def _layouts(group: LayerGroup, tokens: Ints) -> Uints:
    """Return [len(tokens), planes + 1]: where parts start in an entry, and where it ends.

    Where all entries are alike, which is nearly always and cheap, as a view of one row.
    """
    length = int(tokens[0])
    if (tokens == length).all():
        row = group.layouts.get(length)
        if row is None:
            if len(group.layouts) >= _MOST_LAYOUTS:
                group.layouts.clear()
            row = group.layouts[length] = _part_offsets(group, tokens[:1])
        return row if tokens.size == 1 else np.broadcast_to(row, (tokens.size, row.shape[1]))
    distinct, which = np.unique(tokens, return_inverse=True)
    return _part_offsets(group, distinct)[which]


def _part_offsets(group: LayerGroup, tokens: Ints) -> Uints:
    parts = tokens.astype(np.uint64)[:, None] * group.plane_token_nbytes
    aligned = (parts + np.uint64(ALIGNMENT - 1)) // np.uint64(ALIGNMENT) * np.uint64(ALIGNMENT)
    offsets = np.zeros((tokens.size, aligned.shape[1] + 1), np.uint64)
    np.cumsum(aligned, axis=1, out=offsets[:, 1:])
    return offsets


def plan_spans(
    group: LayerGroup, chunks: Chunks, which: Ints, addresses: Uints, stored: Ints
) -> Spans:
    """Return the spans of the chunks `which` (ascending), adjacent ones merged.

    `addresses` and `stored` are the host addresses and token counts of their entries.
    """
    if chunks.block_ids is not None:
        return _whole_block_spans(group, chunks.block_ids[which], addresses, stored)
    return _run_spans(group, chunks, which, addresses, stored)


def _whole_block_spans(group: LayerGroup, block_ids: Ints, addresses: Uints, stored: Ints) -> Spans:
    device = group.plane_addresses + block_ids.astype(np.uint64)[:, None] * group.plane_strides
    host = addresses[:, None] + _layouts(group, stored)[:, :-1]
    rows = np.empty(device.shape, np.uint64)
    rows[:] = group.plane_block_nbytes
    nbytes = rows.ravel()
    if not group.has_neighbours:
        return Spans(device.ravel(), host.ravel(), nbytes)
    first = np.zeros(device.shape, np.bool_)
    first[:, 0] = True
    return _merged(Spans(device.ravel(), host.ravel(), nbytes), first.ravel())


def _run_spans(
    group: LayerGroup, chunks: Chunks, which: Ints, addresses: Uints, stored: Ints
) -> Spans:
    runs = chunks.runs.of_chunks(which)
    entry = np.searchsorted(which, runs.chunk)
    block, within = np.divmod(runs.slot.astype(np.uint64), np.uint64(group.block_size))
    token_nbytes = group.plane_token_nbytes
    device = (
        group.plane_addresses
        + block[:, None] * group.plane_strides
        + within[:, None] * token_nbytes
    )
    host = (
        addresses[entry][:, None]
        + _layouts(group, stored)[entry, :-1]
        + runs.position.astype(np.uint64)[:, None] * token_nbytes
    )
    nbytes = runs.length.astype(np.uint64)[:, None] * token_nbytes
    first = np.ones(device.T.shape, np.bool_)
    first[:, 1:] = entry[1:] != entry[:-1]
    # plane by plane, so that runs which follow each other in memory are neighbours to merge
    return _merged(Spans(device.T.ravel(), host.T.ravel(), nbytes.T.ravel()), first.ravel())


def _merged(spans: Spans, first: npt.NDArray[np.bool_]) -> Spans:
    """Join neighbours that are adjacent on both sides, save where `first` of something begins.

    Neighbouring entries, or tensors, can be two allocations; a copy must not cross their border.
    """
    joined = ~first[1:]
    joined &= spans.device[1:] == spans.device[:-1] + spans.nbytes[:-1]
    joined &= spans.host[1:] == spans.host[:-1] + spans.nbytes[:-1]
    if not joined.any():
        return spans
    kept = np.flatnonzero(np.concatenate(([True], ~joined)))
    return Spans(spans.device[kept], spans.host[kept], np.add.reduceat(spans.nbytes, kept))


def joined(parts: Sequence[Spans]) -> Spans:
    """Return the spans of all parts, of which there is at least one."""
    if len(parts) == 1:
        return parts[0]
    return Spans(
        np.concatenate([part.device for part in parts]),
        np.concatenate([part.host for part in parts]),
        np.concatenate([part.nbytes for part in parts]),
    )


def slices_of(
    sizes: Sequence[int], slice_nbytes: int, *, first_nbytes: int | None = None
) -> list[range]:
    """Return consecutive ranges of entries of at most `slice_nbytes`, each of at least one.

    `first_nbytes` is the limit of the first one, where it is another.
    """
    slices = []
    start, filled = 0, 0
    limit = slice_nbytes if first_nbytes is None else first_nbytes
    for index, nbytes in enumerate(sizes):
        if index > start and filled + nbytes > limit:
            slices.append(range(start, index))
            start, filled, limit = index, 0, slice_nbytes
        filled += nbytes
    if start < len(sizes):
        slices.append(range(start, len(sizes)))
    return slices
