"""The suite's figures that are not rates: look-ups, room in the pool, memory over many calls."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

from ems.common.exception import EmsException
from ems.context_caching import ContextCaching
from ems.layout.key import make_keys
from ems.layout.registered import key_prefixes
from ems.pool.base import PoolEngine
from ems.pool.registry import open_pool
from ems_cli.diagnostics.bench_calls import PATIENCE
from ems_cli.diagnostics.measure import seconds_of
from ems_cli.diagnostics.npu import Runtime
from ems_cli.diagnostics.session import Tell, context_caching, rank_settings, synthetic_cache
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of

HASHES: Final = 10_000
_BLOCKS: Final = 64
_BLOCK_SIZE: Final = 16
_POOL: Final = "memory://?capacity=64MiB&segment=64MiB"
_STATM: Final = Path("/proc/self/statm")
_PAGE: Final = 4096
_WARM_UP: Final = 200


@dataclass(frozen=True, slots=True)
class SmallFigures:
    """What was measured with one small cache."""

    exists_seconds: tuple[float, ...]
    """Of one `exists` of 10,000 hashes, none of which is stored; raw values."""
    exists_seconds_p50: float
    stored_nbytes: int
    """Of the blocks in the pool, as the cache has them."""
    used_nbytes: int
    """What the pool used for them."""
    cycles: int
    """Of save, load and removal, between the two sizes of the process."""
    resident_before_nbytes: int | None
    resident_after_nbytes: int | None
    """None where the system does not tell."""


def small_figures(
    runtime: Runtime, index: int, *, runs: int, cycles: int, tell: Tell
) -> SmallFigures:
    """Measure on npu:`index`.

    Raises:
        EmsException: a call failed.
    """
    shape = shape_of(
        ShapeRequest(layers=2, heads=8, head_size=128, blocks=_BLOCKS, block_size=_BLOCK_SIZE)
    )
    settings = rank_settings(index, shape, model="ems-cli bench --suite")
    with (
        synthetic_cache(runtime, index, shape, tell) as cache,
        closing(open_pool(_POOL, runtime.ascend.PinnedMemory(index))) as pool,
        context_caching(runtime, settings, pool) as caching,
    ):
        caching.register_kvcache(cache.kvcache)
        if caching.registration is None:
            raise EmsException("the cache that was registered is gone")
        prefixes = key_prefixes(settings, caching.registration)

        def forget(hashes: list[int]) -> None:
            for prefix in prefixes:
                pool.remove(make_keys(prefix, hashes))

        used = _used(caching, pool, forget)
        looked_for = [at * 7919 - (1 << 62) for at in range(HASHES)]
        exists = tuple(
            seconds_of(lambda: caching.exists(looked_for, PATIENCE)) for _ in range(runs + 1)
        )[1:]
        _cycle(caching, forget, _WARM_UP)
        before = _resident()
        _cycle(caching, forget, cycles)
        return SmallFigures(
            exists, median(exists), shape.block_nbytes * _BLOCKS, used, cycles, before, _resident()
        )


def _used(caching: ContextCaching, pool: PoolEngine, forget: Callable[[list[int]], None]) -> int:
    """Return what the pool uses for all blocks of the cache."""
    hashes = list(range(_BLOCKS))
    slots = list(range(_BLOCKS * _BLOCK_SIZE))
    result = caching.save(slots, hashes, [_BLOCK_SIZE] * _BLOCKS, PATIENCE)
    if result.success != _BLOCKS:
        raise EmsException(f"only {result.success} of {_BLOCKS} blocks were saved")
    used = pool.stats().used_nbytes
    forget(hashes)
    return used


def _cycle(caching: ContextCaching, forget: Callable[[list[int]], None], count: int) -> None:
    """Save a block, load it into another and remove it, again and again."""
    source, target = list(range(_BLOCK_SIZE)), list(range(_BLOCK_SIZE, 2 * _BLOCK_SIZE))
    for number in range(count):
        hashes = [1_000_000 + number]
        caching.save(source, hashes, [_BLOCK_SIZE], PATIENCE)
        caching.load(target, hashes, [_BLOCK_SIZE], PATIENCE)
        forget(hashes)


def _resident() -> int | None:
    try:
        return int(_STATM.read_text(encoding="ascii").split()[1]) * _PAGE
    except (OSError, ValueError, IndexError):
        return None
