"""What a model's cache takes in memory, and what memory holds of it; nothing is allocated."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal

import numpy as np

from ems.common.units import format_nbytes
from ems.layout.copy_plan import entry_nbytes
from ems.layout.layer_group import LayerGroup
from ems_cli.diagnostics.break_even import BreakEven, LoadTime
from ems_cli.diagnostics.pool_layout import layer_group_of
from ems_cli.diagnostics.shape import CacheShape, ShapeSummary, layers_text, summary_of
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of

SMALL_SPAN_NBYTES: Final = 64 << 10
"""Below this a copy is dominated by its fixed cost rather than by its bytes."""
SEGMENT_NBYTES: Final = 128 << 20
"""What memory:// takes from the host at a time, unless its URL says otherwise."""
_WASTE = 0.03

Scope = Literal["rank", "node", "pool"]


@dataclass(frozen=True, slots=True)
class Deployment:
    """Memory for the pool, and the sequences that are to fit."""

    capacity_nbytes: int | None
    sequence_length: int
    """Tokens."""
    ranks_per_node: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One pipeline stage; all ranks of a stage take as much."""

    pp_rank: int
    layers: str
    num_layers: int
    token_nbytes: int
    """Of one rank, without alignment."""
    block_nbytes: int
    """Of one rank, without alignment."""
    entry_nbytes: int
    """One block of one rank in the pool, with alignment."""
    entries_per_block: int
    """Entries that the stage's ranks keep of one block in a pool that they share."""


@dataclass(frozen=True, slots=True)
class PlaneSpans:
    """What one block is in tensors that look alike: a span in each."""

    name: str
    layers: str
    tensors: int
    nbytes: int
    small: bool


@dataclass(frozen=True, slots=True)
class Room:
    """What the capacity holds if it belongs to a rank, a node or the whole pool."""

    scope: Scope
    pools: int
    """How many of them there are."""
    memory_nbytes: int
    """All of them together."""
    block_nbytes: int
    """One block in the pool that takes the most for it."""
    blocks: int
    tokens: int
    sequences: int


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Everything `ems-cli plan` works out."""

    shape: ShapeSummary
    ranks: int
    nodes: int
    ranks_per_node: int
    shared_by_tp_ranks: bool
    """Whether the ranks of a stage keep one common entry, as for MLA, or one each."""
    model_token_nbytes: int
    """One token of the whole model, kept once."""
    pool_token_nbytes: int
    """One token in a pool that all ranks share, without alignment."""
    pool_block_nbytes: int
    """One block in a pool that all ranks share, with alignment."""
    stages: tuple[Stage, ...]
    spans_per_block: int
    spans: tuple[PlaneSpans, ...]
    capacity_nbytes: int | None
    sequence_length: int
    sequence_pool_nbytes: int
    """One sequence in a pool that all ranks share, with alignment."""
    rooms: tuple[Room, ...]
    load: LoadTime | None
    break_even: BreakEven | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def plan_of(request: ShapeRequest, deployment: Deployment) -> PlanReport:
    """Return the plan, without the times of a load.

    Raises:
        BadInput: as `shape_of`, or a block is larger than any memory.
    """
    shape = shape_of(request)
    groups = [layer_group_of(stage) for stage in _stage_shapes(request)]
    stages = tuple(_stages(request, groups))
    rooms = () if deployment.capacity_nbytes is None else tuple(_rooms(shape, stages, deployment))
    per_node = min(deployment.ranks_per_node, _ranks(shape))
    spans = tuple(_spans(shape))
    sequence = np.array([deployment.sequence_length % request.block_size], np.int64)
    whole = deployment.sequence_length // request.block_size
    tails = [int(entry_nbytes(group, sequence)[0]) if sequence[0] else 0 for group in groups]
    return PlanReport(
        shape=summary_of(shape),
        ranks=_ranks(shape),
        nodes=-(-_ranks(shape) // per_node),
        ranks_per_node=per_node,
        shared_by_tp_ranks=_shared(shape),
        model_token_nbytes=_model_token_nbytes(request),
        pool_token_nbytes=sum(s.token_nbytes * s.entries_per_block for s in stages),
        pool_block_nbytes=sum(s.entry_nbytes * s.entries_per_block for s in stages),
        stages=stages,
        spans_per_block=sum(span.tensors for span in spans),
        spans=spans,
        capacity_nbytes=deployment.capacity_nbytes,
        sequence_length=deployment.sequence_length,
        sequence_pool_nbytes=sum(
            (whole * stage.entry_nbytes + tail) * stage.entries_per_block
            for stage, tail in zip(stages, tails, strict=True)
        ),
        rooms=rooms,
        load=None,
        break_even=None,
        notes=tuple(shape.notes),
        warnings=tuple(_warnings(shape, stages, spans, deployment)),
    )


def _ranks(shape: CacheShape) -> int:
    return shape.parallel.tp * shape.parallel.pp


def _shared(shape: CacheShape) -> bool:
    """Whether TP ranks use the same keys: the SDK leaves the TP rank out of them for MLA only."""
    return shape.kvcache_type == "MLA"


def _stage_shapes(request: ShapeRequest) -> Iterator[CacheShape]:
    for stage in range(request.pp):
        yield shape_of(request.of_rank(stage * request.tp))


def _stages(request: ShapeRequest, groups: list[LayerGroup]) -> Iterator[Stage]:
    block = np.array([request.block_size], np.int64)
    for stage, (shape, group) in enumerate(zip(_stage_shapes(request), groups, strict=True)):
        yield Stage(
            pp_rank=stage,
            layers=layers_text(layer.index for layer in shape.layers),
            num_layers=len(shape.layers),
            token_nbytes=shape.token_nbytes,
            block_nbytes=shape.block_nbytes,
            entry_nbytes=int(entry_nbytes(group, block)[0]),
            entries_per_block=1 if _shared(shape) else request.tp,
        )


def _model_token_nbytes(request: ShapeRequest) -> int:
    return shape_of(replace(request, tp=1, pp=1, rank=0)).token_nbytes


def _spans(shape: CacheShape) -> Iterator[PlaneSpans]:
    alike: dict[tuple[str, int], list[int]] = {}
    for layer in shape.layers:
        for plane in layer.planes:
            nbytes = plane.token_nbytes * shape.block_size
            alike.setdefault((plane.name, nbytes), []).append(layer.index)
    for (name, nbytes), layers in alike.items():
        small = nbytes < SMALL_SPAN_NBYTES
        yield PlaneSpans(name, layers_text(layers), len(layers), nbytes, small)


def _rooms(shape: CacheShape, stages: tuple[Stage, ...], deployment: Deployment) -> Iterator[Room]:
    capacity = deployment.capacity_nbytes or 0
    ranks = _ranks(shape)
    per_node = min(deployment.ranks_per_node, ranks)
    nodes = [range(first, min(first + per_node, ranks)) for first in range(0, ranks, per_node)]
    scopes: list[tuple[Scope, list[range]]] = [
        ("rank", [range(rank, rank + 1) for rank in range(ranks)]),
        ("node", nodes),
        ("pool", [range(ranks)]),
    ]
    for scope, pools in scopes:
        block_nbytes = max(_block_nbytes(pool, shape, stages) for pool in pools)
        blocks = capacity // block_nbytes
        yield Room(
            scope=scope,
            pools=len(pools),
            memory_nbytes=capacity * len(pools),
            block_nbytes=block_nbytes,
            blocks=blocks,
            tokens=blocks * shape.block_size,
            sequences=blocks // -(-deployment.sequence_length // shape.block_size),
        )


def _block_nbytes(ranks: range, shape: CacheShape, stages: tuple[Stage, ...]) -> int:
    """Return what one block takes in a pool that these ranks share."""
    tp = shape.parallel.tp
    entries = {(rank // tp, 0 if _shared(shape) else rank % tp) for rank in ranks}
    return sum(stages[stage].entry_nbytes for stage, _ in entries)


def _warnings(
    shape: CacheShape,
    stages: tuple[Stage, ...],
    spans: tuple[PlaneSpans, ...],
    deployment: Deployment,
) -> Iterator[str]:
    small = [span for span in spans if span.small]
    if small:
        tensors = sum(span.tensors for span in small)
        least = min(small, key=lambda span: span.nbytes)
        enough = shape.block_size * -(-SMALL_SPAN_NBYTES // least.nbytes)
        yield (
            f"{tensors} of the {sum(span.tensors for span in spans)} spans of a block are under "
            f"{format_nbytes(SMALL_SPAN_NBYTES)}, the least {format_nbytes(least.nbytes)}: their "
            f"fixed cost counts more than their bytes; blocks of {enough} tokens would mend that"
        )
    copies = shape.ranks_with_the_same_bytes
    if copies > 1 and not _shared(shape):
        yield (
            f"{copies} ranks hold the same KV head and each keeps its own entry: the pool holds "
            f"every byte {copies} times"
        )
    windows = [group for group in shape.groups if group.window is not None]
    if windows:
        layers = sum(len(group.layers) for group in windows)
        yield (
            f"{layers} layers look back only {windows[0].window} tokens; they are counted in full. "
            "StoreLayerGroupDesc with a window lets the pool drop what is behind it"
        )
    entry = max(stage.entry_nbytes for stage in stages)
    lost = SEGMENT_NBYTES % entry if entry <= SEGMENT_NBYTES else 0
    if deployment.capacity_nbytes and lost > _WASTE * SEGMENT_NBYTES:
        yield (
            f"memory:// takes {format_nbytes(SEGMENT_NBYTES)} at a time, of which "
            f"{SEGMENT_NBYTES // entry} entries of {format_nbytes(entry)} leave "
            f"{lost / SEGMENT_NBYTES:.0%} unused; &segment={_better_segment(entry)} leaves none"
        )


def _better_segment(entry: int) -> int:
    """Return a size in bytes that whole entries fill."""
    return SEGMENT_NBYTES // entry * entry
