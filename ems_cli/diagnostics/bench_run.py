"""Measures saves and loads on synthetic caches, one NPU after another."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ems.common.exception import EmsException
from ems_cli.diagnostics.bench import (
    BenchReport,
    DeviceBench,
    Ended,
    Run,
    SpanFacts,
    Together,
    Verification,
)
from ems_cli.diagnostics.bench_content import Compared
from ems_cli.diagnostics.bench_figures import both_ways_gain, labels_of, loosest, operations_of
from ems_cli.diagnostics.bench_pool import await_pinning
from ems_cli.diagnostics.bench_reasons import reasons_of
from ems_cli.diagnostics.bench_rig import Place, SetUp, rig
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.bench_together import bench_together
from ems_cli.diagnostics.bench_trip import Trips
from ems_cli.diagnostics.host_noise import HostNoise
from ems_cli.diagnostics.machine import machine
from ems_cli.diagnostics.measure import TIGHT, HostTimes, host_times, share_of_others
from ems_cli.diagnostics.npu import Runtime, versions
from ems_cli.diagnostics.session import Tell
from ems_cli.diagnostics.shape import CacheShape, summary_of

FEWEST: Final = 10
"""Without a number of runs: no fewer, unless they take three times the seconds allowed."""
MOST: Final = 200
_PATIENCE: Final = 3
_WARM_UPS: Final = 1


@dataclass(frozen=True, slots=True)
class Bench:
    """What a benchmark has at hand besides its caches and settings."""

    runtime: Runtime
    tell: Tell
    noise: HostNoise | None = None
    advance: Callable[[], None] = lambda: None
    """Called after each run that counts."""


@dataclass(slots=True)
class _Measured:
    """What has been measured on one NPU so far."""

    index: int
    shape: CacheShape
    set_up: SetUp = field(default_factory=lambda: SetUp(0.0, 0.0, 0, 0.0))
    capacity_nbytes: int = 0
    span_facts: SpanFacts = field(default_factory=lambda: SpanFacts(0, 0, 0, 0))
    cold: dict[str, list[Run]] = field(default_factory=dict)
    runs: dict[str, list[Run]] = field(default_factory=dict)
    compared: Compared = field(default_factory=Compared)
    before: HostTimes | None = None


def bench_on(
    bench: Bench,
    caches: Sequence[tuple[int, CacheShape]],
    settings: Settings,
    *,
    together: bool = False,
) -> BenchReport:
    """Measure each device in turn. Ctrl-C or a failure ends it; what was measured is reported.

    With `together` all devices are then measured at once, against each alone.

    Raises:
        BadInput: the settings do not fit the cache or the pool.
        EmsException: nothing could be measured.
        KeyboardInterrupt: before anything was measured.
    """
    devices: list[DeviceBench] = []
    ended: Ended = "complete"
    failure: BaseException | None = None
    all_at_once: Together | None = None
    measured = _Measured(*caches[0])
    try:
        for index, shape in caches:
            measured = _Measured(index, shape)
            _measure(bench, measured, settings)
            devices.append(_device(bench, measured, settings))
        if together:
            places = [Place(bench.runtime, index, shape) for index, shape in caches]
            all_at_once = bench_together(places, settings, bench.tell)
    except KeyboardInterrupt as error:
        ended, failure = "interrupted", error
    except EmsException as error:
        ended, failure = "failed", error
    if failure is not None and len(devices) < len(caches) and measured.runs:
        devices.append(_device(bench, measured, settings))
    if failure is not None and not devices:
        raise failure
    return _report(bench, devices, settings, ended, failure, together=all_at_once)


def _measure(bench: Bench, measured: _Measured, settings: Settings) -> None:
    place = Place(bench.runtime, measured.index, measured.shape)
    with rig(place, settings, bench.tell) as ready:
        trips = ready.trips
        measured.set_up = ready.set_up
        measured.capacity_nbytes = ready.capacity_nbytes
        measured.span_facts = ready.span_facts
        trips.content.touch_every_block()
        for turn in range(_WARM_UPS):
            _pair(trips, measured.cold, turn)
        await_pinning(trips.parts.pool)
        trips.compared = measured.compared
        measured.before = host_times()
        started, done = time.monotonic(), 0
        while not _enough(done, time.monotonic() - started, settings, measured.runs):
            _pair(trips, measured.runs, done)
            done += 1
            bench.advance()


def usual_runs(settings: Settings) -> int:
    """Return how many runs there may be on each NPU."""
    return settings.runs or MOST


def _enough(done: int, seconds: float, settings: Settings, runs: dict[str, list[Run]]) -> bool:
    if settings.runs is not None:
        return done >= settings.runs
    if done < FEWEST:
        return done > 0 and seconds > _PATIENCE * settings.seconds
    loose = loosest(runs)
    return done >= MOST or seconds > settings.seconds or (loose is not None and loose <= TIGHT)


def _pair(trips: Trips, into: dict[str, list[Run]], turn: int) -> None:
    """Make one waiting and one asynchronous trip."""
    for asynchronous in (False, True):
        for name, run in trips.trip(asynchronous=asynchronous, turn=turn).items():
            into.setdefault(name, []).append(run)


def _device(bench: Bench, measured: _Measured, settings: Settings) -> DeviceBench:
    operations = operations_of(measured.cold, measured.runs)
    others = None
    if measured.before is not None:
        others = share_of_others(measured.before, host_times(), os.cpu_count() or 1)
    compared = measured.compared
    return DeviceBench(
        f"npu:{measured.index}",
        bench.runtime.synthetic.device_name(measured.index),
        summary_of(measured.shape),
        measured.set_up.registration_seconds,
        measured.set_up.registration_again_seconds,
        measured.set_up.pinned_nbytes,
        measured.set_up.pinning_seconds,
        measured.capacity_nbytes,
        measured.span_facts,
        operations,
        both_ways_gain(operations),
        Verification(compared.verified, compared.wrong, compared.first_wrong)
        if settings.verify
        else None,
        others,
        labels_of(
            simulated=bench.runtime.simulated,
            verified=settings.verify and compared.verified > 0,
            runs=min(operation.figures.runs for operation in operations.values()),
            others_cpu_share=others,
            busy=bench.noise is not None and bench.noise.busy,
        ),
        reasons_of(
            operations,
            measured.span_facts,
            others,
            noise=bench.noise,
            given_runs=settings.runs is not None,
        ),
    )


def _report(  # noqa: PLR0913 - what the report has
    bench: Bench,
    devices: Sequence[DeviceBench],
    settings: Settings,
    ended: Ended,
    failure: BaseException | None,
    *,
    together: Together | None,
) -> BenchReport:
    checked = [device.verification for device in devices]
    labels = dict.fromkeys(label for device in devices for label in device.labels)
    return BenchReport(
        simulated=bench.runtime.simulated,
        labels=tuple(labels),
        ended=ended,
        failure=str(failure) if isinstance(failure, EmsException) else None,
        verified=all(
            one is not None and one.verified_blocks > 0 and not one.wrong_blocks for one in checked
        ),
        versions=versions(),
        machine=machine(),
        noise=bench.noise,
        settings=settings,
        devices=tuple(devices),
        together=together,
    )
