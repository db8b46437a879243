"""The pool that a benchmark saves into: large enough, and pinned before anything is timed."""

import time
from typing import Final

from ems.common.exception import InvalidArgument
from ems.common.units import format_nbytes
from ems.layout.copy_plan import ALIGNMENT
from ems.pool.base import PoolEngine
from ems.pool.registry import open_pool
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.npu import Runtime
from ems_cli.diagnostics.shape import CacheShape

_SEGMENT_NBYTES: Final = 128 << 20
_QUIET_SECONDS: Final = 0.5
_PIN_SECONDS: Final = 30.0


def entry_nbytes(shape: CacheShape) -> int:
    """Return the size of one block's entry, with the alignment of its parts."""
    parts = [
        plane.token_nbytes * shape.block_size_of(layer)
        for layer in shape.layers
        for plane in layer.planes
    ]
    return sum(-(-nbytes // ALIGNMENT) * ALIGNMENT for nbytes in parts)


def pool_nbytes(shape: CacheShape, settings: Settings) -> int:
    """Return the memory that holds the entries of one run, in whole segments.

    While half of them are loaded, as much again is saved.
    """
    entry, saved = entry_nbytes(shape), settings.hits_per_call * settings.in_flight
    entries = saved + saved // 2
    if entry * entries <= _SEGMENT_NBYTES or entry > _SEGMENT_NBYTES:
        return entry * entries
    return -(-entries // (_SEGMENT_NBYTES // entry)) * _SEGMENT_NBYTES


def bench_pool(runtime: Runtime, index: int, url: str | None, needed: int) -> PoolEngine:
    """Return the pool of `url`, or one in this process that is just large enough.

    Raises:
        BadInput: the URL is wrong, or its pool too small.
    """
    chosen = url or f"memory://?capacity={needed}&segment={min(needed, _SEGMENT_NBYTES)}"
    try:
        pool = open_pool(chosen, runtime.ascend.PinnedMemory(index))
    except InvalidArgument as error:
        raise BadInput(str(error), option="--pool") from error
    capacity = pool.stats().room_nbytes
    if capacity < needed:
        pool.close()
        raise BadInput(
            f"the pool holds {format_nbytes(capacity)} ({capacity} bytes), one run needs "
            f"{format_nbytes(needed)} ({needed} bytes)",
            option="--pool",
        )
    return pool


def await_pinning(pool: PoolEngine) -> None:
    """Wait until the pool takes no more memory from the host: that would be in the figures."""
    backed, since = -1, time.monotonic()
    end = since + _PIN_SECONDS
    while (now := time.monotonic()) < end and now - since < _QUIET_SECONDS:
        stats = pool.stats()
        if stats.backed_nbytes >= stats.capacity_nbytes:
            return
        if stats.backed_nbytes != backed:
            backed, since = stats.backed_nbytes, now
        time.sleep(0.01)
