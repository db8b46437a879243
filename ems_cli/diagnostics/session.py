"""One NPU's synthetic cache and the library's object for it, as a rank would have them."""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from typing import Any, TypeAlias

from ems.cc_v1.cc_config import CcConfig_v1, KVCacheType
from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.common.units import format_nbytes
from ems.config import EmsConfig, Settings, read_settings
from ems.context_caching import ContextCaching
from ems.pool.base import PoolEngine
from ems_cli.diagnostics.npu import Runtime
from ems_cli.diagnostics.shape import CacheShape

Tell: TypeAlias = Callable[[str], None]

_CLOSE_SECONDS = 30.0


@contextmanager
def synthetic_cache(
    runtime: Runtime, index: int, shape: CacheShape, tell: Tell
) -> Generator[Any, None, None]:
    """Allocate the cache for the length of a `with` block, after saying what it takes.

    Raises:
        DeviceFailed: it does not fit.
    """
    memory = runtime.synthetic.memory_of(index)
    tell(
        f"npu:{index}: the cache takes {format_nbytes(shape.nbytes)} ({shape.nbytes} bytes) of "
        f"{format_nbytes(memory.free_nbytes)} free"
    )
    tensors = tensor_shapes(runtime, shape)
    with closing(runtime.synthetic.SyntheticCache(index, tensors, shape.arrangement)) as cache:
        yield cache


def tensor_shapes(runtime: Runtime, shape: CacheShape) -> list[list[Any]]:
    """Return the tensors of `shape`, layers × planes."""
    return [
        [
            runtime.synthetic.TensorShape(
                (shape.num_blocks, size, plane.heads, plane.head_size), plane.dtype
            )
            for plane in layer.planes
        ]
        for layer, size in ((layer, shape.block_size_of(layer)) for layer in shape.layers)
    ]


def groups_of(shape: CacheShape) -> list[StoreLayerGroupDesc] | None:
    """Return what is passed to `register_kvcache` beside the tensors."""
    return [
        StoreLayerGroupDesc(group.store_block_size, list(group.layers), group.window)
        for group in shape.store_groups
    ] or None


def rank_settings(index: int, shape: CacheShape, model: str = "ems-cli") -> Settings:
    """Return the settings of the rank on npu:`index`; `model` keeps its entries apart.

    Raises:
        InvalidArgument: the environment has values that the SDK refuses.
    """
    parallel = shape.parallel
    config = CcConfig_v1(
        rank_id=parallel.rank,
        device_id=index,
        model_id=model,
        tp_world_size=parallel.tp,
        pp_world_size=parallel.pp,
        rank_in_tp_group=parallel.tp_rank,
        rank_in_pp_group=parallel.pp_rank,
        kvcache_type=KVCacheType[shape.kvcache_type],
    )
    settings = read_settings(EmsConfig(cc_config_v1=config))
    if settings is None:
        raise AssertionError("a configuration with cc_config_v1 has settings")
    return settings


@contextmanager
def context_caching(
    runtime: Runtime, settings: Settings, pool: PoolEngine
) -> Generator[ContextCaching, None, None]:
    """Return the library's object for one rank, which works on `pool`; closes both.

    `Ems` itself is one per process; several ranks in one process are several of these.
    """
    caching = ContextCaching(settings, pool, runtime.ascend)
    try:
        yield caching
    finally:
        caching.close(seconds=_CLOSE_SECONDS)


def plane_names(shape: CacheShape) -> Sequence[Sequence[str]]:
    """Return what the planes are called, by layer and plane."""
    return [[plane.name for plane in layer.planes] for layer in shape.layers]
