"""All that a benchmark needs on one NPU: cache, pool, the library's object, raw copies."""

import statistics
import uuid
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ems.common.exception import EmsException
from ems.layout.registered import key_prefixes
from ems.layout.registration import Registration
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.bench import SpanFacts
from ems_cli.diagnostics.bench_pool import bench_pool, entry_nbytes, pool_nbytes
from ems_cli.diagnostics.bench_raw import raw_spans
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.bench_trip import Parts, Trips
from ems_cli.diagnostics.measure import seconds_of
from ems_cli.diagnostics.npu import Runtime
from ems_cli.diagnostics.session import (
    Tell,
    context_caching,
    groups_of,
    plane_names,
    rank_settings,
    synthetic_cache,
)
from ems_cli.diagnostics.shape import CacheShape

_AGAIN: Final = 3
_MOST_BLOCKS: Final = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where a benchmark runs, and with what cache."""

    runtime: Runtime
    index: int
    shape: CacheShape


@dataclass(frozen=True, slots=True)
class SetUp:
    """What comes once, before the first block moves; as in `DeviceBench`."""

    registration_seconds: float
    registration_again_seconds: float
    pinned_nbytes: int
    pinning_seconds: float


@dataclass(frozen=True, slots=True)
class Rig:
    """Ready to make trips."""

    trips: Trips
    set_up: SetUp
    capacity_nbytes: int
    span_facts: SpanFacts


@contextmanager
def rig(place: Place, settings: Settings, tell: Tell) -> Generator[Rig, None, None]:
    """Allocate, register and prepare; give everything back at the end of the `with` block.

    Raises:
        BadInput: the settings do not fit the cache or the pool.
        EmsException: the NPU has no room, or fails.
    """
    runtime, index, shape = place.runtime, place.index, place.shape
    check_blocks(shape, settings)
    needed = pool_nbytes(shape, settings)
    # a model of its own keeps the entries apart from those of others in a shared pool
    rank = rank_settings(index, shape, model=f"ems-cli bench {uuid.uuid4()}")
    run_nbytes = settings.hits_per_call * settings.in_flight * entry_nbytes(shape)
    with (
        synthetic_cache(runtime, index, shape, tell) as cache,
        closing(bench_pool(runtime, index, settings.pool, needed)) as pool,
        context_caching(runtime, rank, pool) as caching,
        closing(runtime.synthetic.RawCopies(index, run_nbytes)) as raw,
    ):
        groups = groups_of(shape)
        first, *again = [
            seconds_of(lambda: caching.register_kvcache(cache.kvcache, groups))
            for _ in range(1 + _AGAIN)
        ]
        registration = caching.registration
        if registration is None:
            raise EmsException("the cache that was registered is gone")
        prefixes = key_prefixes(rank, registration)
        parts = Parts(cache, raw, caching, pool, registration, prefixes, plane_names(shape))
        yield Rig(
            Trips(parts, settings),
            SetUp(first, statistics.median(again), run_nbytes, raw.pinning_seconds),
            pool.stats().room_nbytes,
            span_facts(registration, settings),
        )


def span_facts(registration: Registration, settings: Settings) -> SpanFacts:
    """Return the copies that one run in one direction is made of."""
    blocks = range(settings.hits_per_call * settings.in_flight)
    sizes = np.sort(raw_spans(registration, blocks, 0).nbytes).tolist()
    # one of the sizes, where a mean of two would be none
    return SpanFacts(len(sizes), sizes[0], sizes[(len(sizes) - 1) // 2], sizes[-1])


def check_blocks(shape: CacheShape, settings: Settings) -> None:
    """Return if the cache has room for what is saved and the others that are loaded into.

    Raises:
        BadInput: it has not, or a group stores less than a block under one hash.
    """
    wanted = settings.hits_per_call * settings.in_flight + settings.blocks_at_once
    if wanted > shape.num_blocks:
        raise BadInput(
            f"{settings.in_flight} calls of {settings.blocks_per_call} blocks are loaded into "
            f"others than those saved: {wanted} blocks, but the cache has {shape.num_blocks}",
            option="--blocks-per-call",
        )
    for at, group in enumerate(shape.store_groups):
        size = shape.block_size_of(shape.layers[group.layers[0]])
        if group.store_block_size < size:
            raise BadInput(
                f"whole blocks of {size} tokens are moved, group {at} stores at most "
                f"{group.store_block_size} under one hash",
                option="--groups",
            )


def filled_in(settings: Settings, shape: CacheShape, blocks: int | None) -> Settings:
    """Return the settings with the blocks of a call chosen where the caller did not (0).

    `blocks` is how many the caller wants to be moved; else half of a modest cache, as it is
    loaded into the other half, but no more than 64 blocks.

    Raises:
        BadInput: a call has more blocks than the caller wants to be moved, or none would move.
    """
    usual = min(_MOST_BLOCKS, max(1, shape.num_blocks // 2 // settings.in_flight))
    chosen = replace(settings, blocks_per_call=settings.blocks_per_call or blocks or usual)
    if blocks is not None and chosen.blocks_per_call > blocks:
        raise BadInput(
            f"a call of {chosen.blocks_per_call} blocks is larger than --blocks {blocks}",
            option="--blocks-per-call",
        )
    if chosen.hits_per_call < 1:
        raise BadInput("with every block missing nothing moves", option="--miss-ratio")
    return chosen


def cache_of(shape: CacheShape, settings: Settings, blocks: int | None) -> CacheShape:
    """Return the cache with room for the blocks that are saved and as many to load into."""
    half = max(blocks or 0, settings.blocks_at_once)
    kept = () if blocks is not None else shape.notes
    wanted = 2 * half
    if blocks is None and wanted <= shape.num_blocks:
        return shape
    return replace(shape, num_blocks=wanted, notes=tuple(n for n in kept if "blocks" not in n))
