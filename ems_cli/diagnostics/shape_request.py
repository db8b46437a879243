"""What a caller asks for, and the shape it comes to."""

from dataclasses import dataclass, replace
from typing import Final

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.dtypes import dtype_named
from ems_cli.diagnostics.model_config import Wanted, shape_of_model
from ems_cli.diagnostics.model_file import model_config
from ems_cli.diagnostics.parallel import Parallel
from ems_cli.diagnostics.shape import (
    DEFAULT_BLOCK_SIZE,
    Arrangement,
    CacheShape,
    LayerShape,
    PlaneShape,
    StoreGroup,
    modest_blocks,
)
from ems_cli.diagnostics.shape_grammar import WrittenShape

DEFAULT_LAYERS: Final = 32
DEFAULT_HEADS: Final = 8
DEFAULT_HEAD_SIZE: Final = 128
DEFAULT_DTYPE: Final = "float16"


@dataclass(frozen=True, slots=True)
class ShapeRequest:
    """The options that say how a synthetic cache looks; None is what was not given."""

    model: str | None = None
    """A config.json, a folder with one, or the name of a known model."""
    layers: int | None = None
    heads: int | None = None
    """KV heads of the whole model."""
    head_size: int | None = None
    dtype: str | None = None
    block_size: int = DEFAULT_BLOCK_SIZE
    """Tokens of one block."""
    blocks: int | None = None
    tp: int = 1
    pp: int = 1
    rank: int = 0
    mtp: bool = False
    written: WrittenShape | None = None
    """What `--shape` says; its blocks are `blocks` and `block_size`, too."""
    groups: tuple[StoreGroup, ...] = ()
    arrangement: Arrangement = "separate"

    def of_rank(self, rank: int) -> "ShapeRequest":
        """Return the same request for another global rank."""
        return replace(self, rank=rank)


def shape_of(request: ShapeRequest) -> CacheShape:
    """Return the shape that `request` comes to.

    Raises:
        BadInput: options contradict each other, or one of them cannot be used.
    """
    shape = _shape_of(request)
    return replace(shape, store_groups=request.groups, arrangement=request.arrangement)


def _shape_of(request: ShapeRequest) -> CacheShape:
    parallel = Parallel(request.tp, request.pp, request.rank)
    dtype = None if request.dtype is None else dtype_named(request.dtype)
    if request.written is not None:
        return _shape_of_written(request, request.written, parallel)
    if request.model is None:
        return _shape_of_flags(request, parallel, dtype or DEFAULT_DTYPE)
    _refuse_both_sources(request)
    config, source = model_config(request.model)
    wanted = Wanted(request.block_size, request.blocks, dtype=dtype, mtp=request.mtp)
    return shape_of_model(config, source, parallel=parallel, wanted=wanted)


def shapes_on(request: ShapeRequest, devices: int) -> tuple[CacheShape, ...]:
    """Return one shape for each of `devices`, which hold the ranks from `request.rank` on.

    Without TP and PP there is only one kind of rank, and every device holds the whole model.

    Raises:
        BadInput: as `shape_of`, or there are more devices than ranks.
    """
    if request.tp * request.pp == 1:
        return (shape_of(request),) * devices
    return tuple(shape_of(request.of_rank(request.rank + place)) for place in range(devices))


def _refuse_both_sources(request: ShapeRequest) -> None:
    own = {
        "--layers": request.layers,
        "--heads": request.heads,
        "--head-size": request.head_size,
    }
    for option, value in own.items():
        if value is not None:
            raise BadInput("the model says this already; drop it or --model", option=option)


def _shape_of_written(
    request: ShapeRequest, written: WrittenShape, parallel: Parallel
) -> CacheShape:
    own = {
        "--model": request.model,
        "--layers": request.layers,
        "--heads": request.heads,
        "--head-size": request.head_size,
        "--dtype": request.dtype,
        "--mtp": request.mtp or None,
        "--tp": None if request.tp == 1 else request.tp,
        "--pp": None if request.pp == 1 else request.pp,
    }
    for option, value in own.items():
        if value is not None:
            raise BadInput("--shape says what one rank holds; drop it or --shape", option=option)
    return CacheShape(
        source="--shape",
        kvcache_type=written.kvcache_type,
        block_size=request.block_size,
        num_blocks=written.num_blocks if request.blocks is None else request.blocks,
        layers=written.layers,
        model_layers=len(written.layers),
        model_heads=written.layers[0].planes[0].heads,
        parallel=parallel,
    )


def _shape_of_flags(request: ShapeRequest, parallel: Parallel, dtype: str) -> CacheShape:
    if request.mtp:
        raise BadInput("only a --model has MTP layers", option="--mtp")
    layers = request.layers or DEFAULT_LAYERS
    heads = request.heads or DEFAULT_HEADS
    size = request.head_size or DEFAULT_HEAD_SIZE
    planes = tuple(PlaneShape(name, parallel.heads_of(heads), size, dtype) for name in ("K", "V"))
    held = tuple(LayerShape(layer, planes) for layer in parallel.layers_of(layers))
    blocks = request.blocks
    notes: tuple[str, ...] = ()
    if blocks is None:
        token_nbytes = sum(layer.token_nbytes for layer in held)
        blocks, note = modest_blocks(token_nbytes * request.block_size)
        notes = (note,)
    return CacheShape(
        source="flags",
        kvcache_type="MQA" if heads == 1 else "GQA",
        block_size=request.block_size,
        num_blocks=blocks,
        layers=held,
        model_layers=layers,
        model_heads=heads,
        parallel=parallel,
        notes=notes,
    )
