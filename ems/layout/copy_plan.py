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

from ems.layout.registration import LayerGroup
from ems.layout.request import Chunks
from ems.layout.slots import Ints

Uints: TypeAlias = npt.NDArray[np.uint64]

ALIGNMENT = 64
"""Bytes: entries and the parts of planes in them start on a multiple."""


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
    distinct, which = np.unique(tokens, return_inverse=True)
    ends = _part_offsets(group, distinct)[:, -1].astype(np.int64)
    sizes: Ints = ends[which]
    return sizes


def _part_offsets(group: LayerGroup, tokens: Ints) -> Uints:
    """Return [len(tokens), planes + 1]: where parts start in an entry, and where it ends."""
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
    host = addresses[:, None] + _entry_offsets(group, stored)
    block_nbytes = np.uint64(group.block_size) * group.plane_token_nbytes
    nbytes = np.broadcast_to(block_nbytes, device.shape)
    first = np.zeros(device.shape, np.bool_)
    first[:, 0] = True
    return _merged(Spans(device.ravel(), host.ravel(), nbytes.ravel()), first.ravel())


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
        + _entry_offsets(group, stored)[entry]
        + runs.position.astype(np.uint64)[:, None] * token_nbytes
    )
    nbytes = runs.length.astype(np.uint64)[:, None] * token_nbytes
    first = np.ones(device.T.shape, np.bool_)
    first[:, 1:] = entry[1:] != entry[:-1]
    # plane by plane, so that runs which follow each other in memory are neighbours to merge
    return _merged(Spans(device.T.ravel(), host.T.ravel(), nbytes.T.ravel()), first.ravel())


def _entry_offsets(group: LayerGroup, stored: Ints) -> Uints:
    distinct, which = np.unique(stored, return_inverse=True)
    return _part_offsets(group, distinct)[which, :-1]


def _merged(spans: Spans, first: npt.NDArray[np.bool_]) -> Spans:
    """Join neighbours that are adjacent on both sides, save where `first` of something begins.

    Neighbouring entries, or tensors, can be two allocations; a copy must not cross their border.
    """
    joined = ~first[1:]
    joined &= spans.device[1:] == spans.device[:-1] + spans.nbytes[:-1]
    joined &= spans.host[1:] == spans.host[:-1] + spans.nbytes[:-1]
    if not joined.any():
        return Spans(spans.device, spans.host, np.ascontiguousarray(spans.nbytes))
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


def slices_of(sizes: Sequence[int], slice_nbytes: int) -> list[range]:
    """Return consecutive ranges of entries of at most `slice_nbytes`, each of at least one."""
    slices = []
    start, filled = 0, 0
    for index, nbytes in enumerate(sizes):
        if index > start and filled + nbytes > slice_nbytes:
            slices.append(range(start, index))
            start, filled = index, 0
        filled += nbytes
    if start < len(sizes):
        slices.append(range(start, len(sizes)))
    return slices
