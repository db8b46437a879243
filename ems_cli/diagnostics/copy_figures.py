"""The copies that a request comes to, and what they cost; nothing is moved."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ems.layout.copy_plan import Spans, Uints, entry_nbytes, plan_spans
from ems.layout.layer_group import LayerGroup
from ems.layout.request import Chunks
from ems.layout.slots import Ints
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.plan import SMALL_SPAN_NBYTES
from ems_cli.diagnostics.pool_layout import layer_group_of
from ems_cli.diagnostics.shape import ShapeSummary, summary_of
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of

_RANGE: Final = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_MOST_SLOTS: Final = 1 << 20
_HOST_ADDRESS: Final = 1 << 44
_SMALL_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True)
class Cost:
    """What is known of the machine."""

    launch_seconds: float
    """Of one span."""
    bytes_per_second: float | None


@dataclass(frozen=True, slots=True)
class SizeBin:
    """Spans of at least `from_nbytes`, and of less than twice as much."""

    from_nbytes: int
    spans: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Copies:
    """The spans of a request."""

    spans: int
    nbytes: int
    smallest_nbytes: int
    median_nbytes: int
    largest_nbytes: int
    small_spans: int
    """Under 64 KiB."""
    small_share: float
    sizes: tuple[SizeBin, ...]
    launch_seconds: float
    move_seconds: float | None
    seconds: float | None
    """Both; None without a bandwidth."""


@dataclass(frozen=True, slots=True)
class CopyReport:
    """Everything `ems-cli inspect plan` finds."""

    shape: ShapeSummary
    tokens: int
    hashes: int
    tokens_per_hash: int
    blocks: int
    runs: int
    """Of consecutive slots inside one block."""
    copies: Copies
    contiguous: Copies
    """The same tokens in blocks that follow each other from block 0 on."""
    cost: Cost
    warnings: tuple[str, ...]


def slots_asked_for(request: ShapeRequest, *, slots: str | None, blocks: str | None) -> list[int]:
    """Return the slots that one of the two lists names, in blocks of `request`.

    Raises:
        BadInput: both or none are given, one cannot be read, or a written shape has no such slot.
    """
    if (slots is None) == (blocks is None):
        raise BadInput("give it or --blocks, one of them", option="--slots")
    if blocks is not None:
        found = slots_of_blocks(slots_in(blocks, option="--blocks"), request.block_size)
    else:
        found = slots_in(slots or "", option="--slots")
    block, written = max(found) // request.block_size, request.written
    if written is not None and block >= written.num_blocks:
        raise BadInput(
            f"there is no block {block}: --shape has blocks 0 to {written.num_blocks - 1} of"
            f" {written.block_size} tokens",
            option="--slots" if blocks is None else "--blocks",
        )
    return found


def slots_in(text: str, *, option: str) -> list[int]:
    """Return the numbers in "0-127,300", in its order.

    Raises:
        BadInput: a part is no number and no range, or there are too many.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise BadInput(f"{part.strip()!r} is no number; write 0-127,300", option=option)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadInput(f"{part.strip()!r} runs backwards", option=option)
        if len(numbers) + last - first >= _MOST_SLOTS:
            raise BadInput(f"more than {_MOST_SLOTS} are too many", option=option)
        numbers.extend(range(first, last + 1))
    return numbers


def slots_of_blocks(blocks: Sequence[int], block_size: int) -> list[int]:
    """Return the slots of whole blocks, in their order.

    Raises:
        BadInput: there are too many.
    """
    if len(blocks) * block_size > _MOST_SLOTS:
        raise BadInput(f"more than {_MOST_SLOTS} slots are too many", option="--blocks")
    return [block * block_size + at for block in blocks for at in range(block_size)]


def copy_report(
    request: ShapeRequest, slots: Sequence[int], cost: Cost, tokens_per_hash: int | None = None
) -> CopyReport:
    """Return the copies of a save or load of `slots`, `tokens_per_hash` (a block) to a hash.

    Raises:
        BadInput: as `shape_of`.
    """
    shape = shape_of(request)
    group = layer_group_of(shape)
    each = tokens_per_hash or shape.block_size
    mine = _chunks(slots, each, shape.block_size)
    other = _chunks(range(len(slots)), each, shape.block_size)
    copies = _copies(_spans(group, mine), cost)
    contiguous = _copies(_spans(group, other), cost)
    runs = int(mine.runs.slot.size)
    return CopyReport(
        summary_of(shape),
        len(slots),
        int(mine.tokens.size),
        each,
        int(np.unique(mine.touched_blocks).size),
        runs,
        copies,
        contiguous,
        cost,
        tuple(_warnings(copies, contiguous)),
    )


def _chunks(slots: Sequence[int], each: int, block_size: int) -> Chunks:
    tokens = [min(each, len(slots) - start) for start in range(0, len(slots), each)]
    return Chunks(np.array(slots, np.int64), np.array(tokens, np.int64), block_size)


def _spans(group: LayerGroup, chunks: Chunks) -> Spans:
    which: Ints = np.arange(chunks.tokens.size)
    sizes = entry_nbytes(group, chunks.tokens)
    addresses: Uints = (np.cumsum(sizes) - sizes + _HOST_ADDRESS).astype(np.uint64)
    return plan_spans(group, chunks, which, addresses, chunks.tokens)


def _copies(spans: Spans, cost: Cost) -> Copies:
    sizes = spans.nbytes.astype(np.int64)
    small = int((sizes < SMALL_SPAN_NBYTES).sum())
    launch = cost.launch_seconds * len(spans)
    move = None if cost.bytes_per_second is None else spans.total_nbytes / cost.bytes_per_second
    return Copies(
        len(spans),
        spans.total_nbytes,
        int(sizes.min()),
        int(np.median(sizes)),
        int(sizes.max()),
        small,
        small / len(spans),
        _bins(sizes),
        launch,
        move,
        None if move is None else launch + move,
    )


def _bins(sizes: Ints) -> tuple[SizeBin, ...]:
    exponents = np.floor(np.log2(sizes)).astype(np.int64)
    return tuple(
        SizeBin(
            1 << exponent,
            int((exponents == exponent).sum()),
            int(sizes[exponents == exponent].sum()),
        )
        for exponent in np.unique(exponents).tolist()
    )


def _warnings(copies: Copies, contiguous: Copies) -> list[str]:
    found = []
    if copies.small_share > _SMALL_SHARE:
        found.append(
            f"{copies.small_spans} of {copies.spans} spans are under 64 KiB: their fixed cost "
            "counts more than their bytes"
        )
    if copies.spans > contiguous.spans:
        found.append(
            f"scattered slots make {copies.spans / contiguous.spans:.1f} times the spans that "
            "blocks in a row would"
        )
    return found
