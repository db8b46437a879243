"""How long the caller's thread is held: submitting a large save, registering a large cache."""

import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from statistics import median
from typing import Any, Final

import numpy as np

from ems.common.exception import EmsException
from ems.common.option import CcKvOption
from ems.context_caching import ContextCaching
from ems.layout.key import make_keys
from ems.layout.plane import TensorFacts
from ems.layout.registered import key_prefixes
from ems.layout.registration import register
from ems.pool.base import PoolEngine
from ems.pool.registry import open_pool
from ems_cli.diagnostics.bench_figures import labels_of
from ems_cli.diagnostics.measure import Clock, host_times, seconds_of, share_of_others
from ems_cli.diagnostics.npu import Runtime, versions
from ems_cli.diagnostics.session import Tell, context_caching, rank_settings, synthetic_cache
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of

SLOTS: Final = 131_072
HASHES: Final = 1024
LAYERS, PLANES, BLOCKS = 61, 2, 100_000
USUAL_RUNS: Final = 30
_BLOCK_SIZE: Final = SLOTS // HASHES
_POOL = "memory://?capacity=16MiB&segment=16MiB"
_PATIENCE = CcKvOption(timeout=60_000)
_ITEMSIZE = 2
_WARM_UPS = 3


@dataclass(frozen=True, slots=True)
class HeldTime:
    """How long one kind of call kept its caller."""

    name: str
    what: str
    goal_seconds: float
    seconds: tuple[float, ...]
    """One per run, raw."""
    seconds_p50: float
    seconds_max: float
    meets_goal: bool
    """Whether the median is below the goal."""


@dataclass(frozen=True, slots=True)
class SubmitReport:
    """Everything `ems-cli bench --submit` measured."""

    simulated: bool
    labels: tuple[str, ...]
    versions: dict[str, str]
    processors: int
    others_cpu_share: float | None
    device: str
    times: tuple[HeldTime, ...]


def measure_submission(
    runtime: Runtime, index: int, *, runs: int = USUAL_RUNS, tell: Tell
) -> SubmitReport:
    """Measure on npu:`index`, with a cache whose bytes do not matter.

    Raises:
        EmsException: a call failed.
    """
    request = ShapeRequest(layers=1, heads=1, head_size=16, blocks=HASHES, block_size=_BLOCK_SIZE)
    shape = shape_of(request)
    settings = rank_settings(index, shape, model="ems-cli bench --submit")
    with (
        synthetic_cache(runtime, index, shape, tell) as cache,
        closing(open_pool(_POOL, runtime.ascend.PinnedMemory(index))) as pool,
        context_caching(runtime, settings, pool) as caching,
    ):
        caching.register_kvcache(cache.kvcache)
        if caching.registration is None:
            raise EmsException("the cache that was registered is gone")
        prefixes = key_prefixes(settings, caching.registration)
        before = host_times()
        as_list, as_array = _submissions(caching, pool, prefixes, runs)
        registering = _registrations(runs)
        others = share_of_others(before, host_times(), os.cpu_count() or 1)
    what = f"{SLOTS} slots and {HASHES} hashes"
    return SubmitReport(
        runtime.simulated,
        labels_of(simulated=runtime.simulated, verified=True, runs=runs, others_cpu_share=others),
        versions(),
        os.cpu_count() or 1,
        others,
        f"npu:{index}",
        (
            held_time("async_save, lists", what, 6e-3, as_list),
            held_time("async_save, int64 arrays", what, 1e-3, as_array),
            held_time(
                "layout of a registration",
                f"{LAYERS} layers × {PLANES} planes of {BLOCKS} blocks",
                5e-3,
                registering,
            ),
        ),
    )


def held_time(name: str, what: str, goal_seconds: float, seconds: Sequence[float]) -> HeldTime:
    """Return times with what follows from them."""
    middle = median(seconds)
    return HeldTime(
        name, what, goal_seconds, tuple(seconds), middle, max(seconds), middle < goal_seconds
    )


def _submissions(
    caching: ContextCaching, pool: PoolEngine, prefixes: Sequence[str], runs: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of both forms, which take turns."""
    slots = list(range(SLOTS))
    array = np.arange(SLOTS, dtype=np.int64)
    tokens = [_BLOCK_SIZE] * HASHES
    forms: list[tuple[Any, Callable[[list[int]], Any], Any]] = [
        (slots, list, tokens),
        (array, lambda hashes: np.array(hashes, np.int64), np.array(tokens, np.int64)),
    ]
    found: tuple[list[float], list[float]] = ([], [])
    for run in range(runs + _WARM_UPS):
        for place, (form, written, offsets) in enumerate(forms):
            first = (1 << 60) + (run * len(forms) + place) * HASHES
            hashes = list(range(first, first + HASHES))
            seconds = _submit(caching, (form, written(hashes), offsets))
            for prefix in prefixes:
                pool.remove(make_keys(prefix, hashes))
            if run >= _WARM_UPS:
                found[place].append(seconds)
    return found


def _submit(
    caching: ContextCaching, arguments: tuple[Any, Any, Any], clock: Clock = time.perf_counter
) -> float:
    """Return how long a save holds its caller; it has ended when this returns."""
    started = clock()
    future = caching.async_save(*arguments, _PATIENCE)
    seconds = clock() - started
    result = future.result()
    if result.success != result.total:
        raise EmsException(f"only {result.success} of {result.total} blocks were saved")
    return seconds


def _registrations(runs: int) -> list[float]:
    facts = _large_cache()
    return [seconds_of(lambda: register(facts, device_id=0)) for _ in range(runs)]


def _large_cache() -> list[list[TensorFacts]]:
    """Return the facts of tensors that are nowhere: only their addresses count."""
    shape = (BLOCKS, _BLOCK_SIZE, 8, 128)
    strides = (_BLOCK_SIZE * 8 * 128, 8 * 128, 128, 1)
    nbytes = shape[0] * strides[0] * _ITEMSIZE
    start = 1 << 40
    return [
        [
            TensorFacts(
                "npu:0",
                "float16",
                _ITEMSIZE,
                shape,
                strides,
                start + (layer * PLANES + plane) * nbytes,
            )
            for plane in range(PLANES)
        ]
        for layer in range(LAYERS)
    ]
