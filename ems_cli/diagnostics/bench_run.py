"""Measures saves and loads on synthetic caches, one NPU after another."""

import os
import time
import uuid
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ems.common.exception import EmsException
from ems.layout.registered import key_prefixes
from ems.layout.registration import Registration
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.bench import (
    OPERATIONS,
    BenchReport,
    DeviceBench,
    Ended,
    Run,
    Settings,
    SpanFacts,
    Verification,
    labels_of,
    operation_of,
)
from ems_cli.diagnostics.bench_pool import (
    await_pinning,
    bench_pool,
    entry_nbytes,
    pool_nbytes,
)
from ems_cli.diagnostics.bench_reasons import reasons_of
from ems_cli.diagnostics.bench_trip import Compared, Parts, Trips, raw_spans
from ems_cli.diagnostics.measure import (
    HostTimes,
    host_times,
    seconds_of,
    share_of_others,
)
from ems_cli.diagnostics.npu import Runtime, versions
from ems_cli.diagnostics.session import (
    Tell,
    context_caching,
    plane_names,
    rank_settings,
    synthetic_cache,
)
from ems_cli.diagnostics.shape import CacheShape, summary_of

_BUDGET_SECONDS: Final = 20.0
"""Without a number of runs: no further ones after this long on one NPU."""
_FEWEST, _USUAL = 5, 20
_WARM_UPS: Final = 1


@dataclass(slots=True)
class _Measured:
    """What has been measured on one NPU so far."""

    index: int
    shape: CacheShape
    registration_seconds: float = 0.0
    capacity_nbytes: int = 0
    span_facts: SpanFacts | None = None
    cold: dict[str, list[Run]] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    compared: Compared = field(default_factory=Compared)
    before: HostTimes | None = None


def bench_on(
    runtime: Runtime,
    caches: Sequence[tuple[int, CacheShape]],
    settings: Settings,
    *,
    tell: Tell,
    advance: Callable[[], None] = lambda: None,
) -> BenchReport:
    """Measure each device in turn. Ctrl-C or a failure ends it; what was measured is reported.

    `advance` is called after each run that counts; `usual_runs` says how many there may be.

    Raises:
        BadInput: the settings do not fit the cache or the pool.
        EmsException: nothing could be measured.
        KeyboardInterrupt: before anything was measured.
    """
    devices: list[DeviceBench] = []
    ended: Ended = "complete"
    failure: BaseException | None = None
    for index, shape in caches:
        measured = _Measured(index, shape)
        try:
            _measure(runtime, measured, settings, tell, advance)
        except KeyboardInterrupt as error:
            ended, failure = "interrupted", error
        except EmsException as error:
            ended, failure = "failed", error
        if measured.runs:
            devices.append(_device(runtime, measured, settings))
        if failure is not None:
            break
    if failure is not None and not devices:
        raise failure
    return _report(runtime, devices, settings, ended, failure)


def _measure(
    runtime: Runtime,
    measured: _Measured,
    settings: Settings,
    tell: Tell,
    advance: Callable[[], None],
) -> None:
    with _trips(runtime, measured, settings, tell) as trips:
        trips.touch_every_block()
        for _ in range(_WARM_UPS):
            _pair(trips, measured.cold, raw_first=True)
        await_pinning(trips.parts.pool)
        trips.compared = measured.compared
        measured.before = host_times()
        started, done = time.monotonic(), 0
        while not _enough(done, time.monotonic() - started, settings.runs):
            _pair(trips, measured.runs, raw_first=bool(done % 2))
            done += 1
            advance()


def usual_runs(settings: Settings) -> int:
    """Return how many runs there are on each NPU, unless time is short."""
    return settings.runs or _USUAL


def _enough(done: int, seconds: float, wanted: int | None) -> bool:
    if wanted is not None:
        return done >= wanted
    return done >= _USUAL or (done >= _FEWEST and seconds > _BUDGET_SECONDS)


def _pair(trips: Trips, into: dict[str, list[Run]], *, raw_first: bool) -> None:
    """Make one waiting and one asynchronous trip."""
    for asynchronous in (False, True):
        for name, run in trips.trip(asynchronous=asynchronous, raw_first=raw_first).items():
            into.setdefault(name, []).append(run)


@contextmanager
def _trips(
    runtime: Runtime, measured: _Measured, settings: Settings, tell: Tell
) -> Generator[Trips, None, None]:
    """Allocate, register and prepare all that trips need."""
    index, shape = measured.index, measured.shape
    _check_blocks(shape, settings)
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
        measured.capacity_nbytes = pool.stats().capacity_nbytes
        measured.registration_seconds = seconds_of(lambda: caching.register_kvcache(cache.kvcache))
        registration = caching.registration
        if registration is None:
            raise EmsException("the cache that was registered is gone")
        measured.span_facts = _span_facts(registration, settings)
        prefixes = key_prefixes(rank, registration)
        names = plane_names(shape)
        yield Trips(Parts(cache, raw, caching, pool, registration, prefixes, names), settings)


def _check_blocks(shape: CacheShape, settings: Settings) -> None:
    wanted = (settings.hits_per_call + settings.blocks_per_call) * settings.in_flight
    if wanted > shape.num_blocks:
        raise BadInput(
            f"{settings.in_flight} calls of {settings.blocks_per_call} blocks are loaded into "
            f"others than those saved: {wanted} blocks, but the cache has {shape.num_blocks}",
            option="--blocks-per-call",
        )


def _span_facts(registration: Registration, settings: Settings) -> SpanFacts:
    blocks = range(settings.hits_per_call * settings.in_flight)
    sizes = np.sort(raw_spans(registration, blocks, 0).nbytes).tolist()
    # one of the sizes, where a mean of two would be none
    return SpanFacts(len(sizes), sizes[0], sizes[(len(sizes) - 1) // 2], sizes[-1])


def _device(runtime: Runtime, measured: _Measured, settings: Settings) -> DeviceBench:
    operations = {
        name: operation_of(measured.cold.get(name, ()), measured.runs[name])
        for name in OPERATIONS
        if name in measured.runs
    }
    others = None
    if measured.before is not None:
        others = share_of_others(measured.before, host_times(), os.cpu_count() or 1)
    compared = measured.compared
    spans = measured.span_facts or SpanFacts(0, 0, 0, 0)
    return DeviceBench(
        f"npu:{measured.index}",
        runtime.synthetic.device_name(measured.index),
        summary_of(measured.shape),
        measured.registration_seconds,
        measured.capacity_nbytes,
        spans,
        operations,
        Verification(compared.verified, compared.wrong, compared.first_wrong)
        if settings.verify
        else None,
        others,
        labels_of(
            simulated=runtime.simulated,
            verified=settings.verify and compared.verified > 0,
            runs=min(operation.figures.runs for operation in operations.values()),
            others_cpu_share=others,
        ),
        reasons_of(operations, spans, others),
    )


def _report(
    runtime: Runtime,
    devices: Sequence[DeviceBench],
    settings: Settings,
    ended: Ended,
    failure: BaseException | None,
) -> BenchReport:
    checked = [device.verification for device in devices]
    labels = dict.fromkeys(label for device in devices for label in device.labels)
    return BenchReport(
        simulated=runtime.simulated,
        labels=tuple(labels),
        ended=ended,
        failure=str(failure) if isinstance(failure, EmsException) else None,
        verified=all(
            one is not None and one.verified_blocks > 0 and not one.wrong_blocks for one in checked
        ),
        versions=versions(),
        processors=os.cpu_count() or 1,
        settings=settings,
        devices=tuple(devices),
    )


def filled_in(settings: Settings, shape: CacheShape, blocks_per_call: int | None) -> Settings:
    """Return the settings with the blocks of a call chosen where the caller did not.

    Half of the cache, as it is loaded into the other half, but no more than 64 blocks.

    Raises:
        BadInput: the cache has too few blocks, or every block would be missing.
    """
    most = max(1, shape.num_blocks // 2 // settings.in_flight)
    chosen = replace(settings, blocks_per_call=blocks_per_call or min(_MOST_BLOCKS, most))
    if chosen.hits_per_call < 1:
        raise BadInput("with every block missing nothing moves", option="--miss-ratio")
    _check_blocks(shape, chosen)
    return chosen


_MOST_BLOCKS: Final = 64
