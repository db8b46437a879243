"""A fixed set of caches and calls in one command, each figure beside its limit."""

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ems.common.exception import EmsException
from ems.common.secret import masked
from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import Ended, Operation, Run, SpanFacts
from ems_cli.diagnostics.bench_content import Compared
from ems_cli.diagnostics.bench_figures import both_ways_gain, labels_of, operations_of
from ems_cli.diagnostics.bench_pool import await_pinning
from ems_cli.diagnostics.bench_rig import Place, Rig, rig, span_facts
from ems_cli.diagnostics.bench_run import Bench
from ems_cli.diagnostics.bench_settings import Order, Settings
from ems_cli.diagnostics.bench_trip import Trips
from ems_cli.diagnostics.host_noise import HostNoise
from ems_cli.diagnostics.machine import Machine, machine
from ems_cli.diagnostics.measure import host_times, share_of_others
from ems_cli.diagnostics.npu import versions
from ems_cli.diagnostics.submission import HeldTime, measure_submission
from ems_cli.diagnostics.suite_goals import (
    Goal,
    both_ways_goals,
    by_hand_goals,
    copying_goals,
    held_goals,
    latency_goals,
    share_goals,
    small_goals,
)
from ems_cli.diagnostics.suite_models import (
    CALLS,
    ORDERED_AT,
    SuiteModel,
    cache_for,
    needed_nbytes,
    suite_models,
)
from ems_cli.diagnostics.suite_pools import PoolCase, PoolExtent, PoolFindings, measure_pools
from ems_cli.diagnostics.suite_small import SmallFigures, small_figures

_FEWEST: Final = 5
_QUICK_NBYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True)
class Extent:
    """How much of the suite is run."""

    budget_nbytes: int
    quick: bool
    runs: int | None
    pool: str | None = None
    """URL of the pool that the cases save into; None: memory:// of the size needed, and then all
    kinds of pools in turn."""

    @property
    def seconds(self) -> float:
        """Time for the runs of one case, unless `runs` says how many."""
        return 2.0 if self.quick else 6.0

    @property
    def memory_nbytes(self) -> int:
        """What one case may take, simulated NPU and host together."""
        return min(self.budget_nbytes, _QUICK_NBYTES) if self.quick else self.budget_nbytes

    @property
    def pools(self) -> PoolExtent | None:
        """How much of the pools is measured; None where the caller has chosen one."""
        if self.pool is not None:
            return None
        return PoolExtent(self.quick, self.runs, self.memory_nbytes)

    @property
    def steps(self) -> int:
        """Steps of progress: the cases, the small figures and the pools."""
        cases = len(suite_models(quick=self.quick)) * (len(CALLS) + 1)
        return cases + 2 + (0 if self.pools is None else self.pools.steps)


@dataclass(frozen=True, slots=True)
class SuiteCase:
    """One cache, call size and order."""

    model: str
    blocks_per_call: int
    order: Order
    span_facts: SpanFacts
    operations: Mapping[str, Operation]
    both_ways_gain: float | None
    verified_blocks: int
    wrong_blocks: int


@dataclass(frozen=True, slots=True)
class SuiteReport:
    """Everything `ems-cli bench --suite` measured."""

    simulated: bool
    labels: tuple[str, ...]
    ended: Ended
    failure: str | None
    versions: Mapping[str, str]
    machine: Machine
    noise: HostNoise | None
    others_cpu_share: float | None
    device: str
    pool: str | None
    """URL, its secrets masked; None: a pool in the process for each case."""
    quick: bool
    memory_nbytes: int
    """What a case may have taken."""
    cases: tuple[SuiteCase, ...]
    held: tuple[HeldTime, ...]
    small: SmallFigures | None
    pools: tuple[PoolCase, ...]
    """Empty where the caller has chosen a pool."""
    goals: tuple[Goal, ...]
    skipped: tuple[str, ...]
    """What took too much memory, or a pool that cannot be had here, in words."""

    @property
    def all_cases(self) -> tuple[SuiteCase | PoolCase, ...]:
        """Those of the pools, too."""
        return (*self.cases, *self.pools)

    @property
    def has_problem(self) -> bool:
        """Whether bytes were wrong, or blocks failed; a missed goal may be the host's."""
        return any(
            case.wrong_blocks or any(one.figures.failed_blocks for one in case.operations.values())
            for case in self.all_cases
        )


@dataclass(slots=True)
class _Measured:
    cases: list[SuiteCase] = field(default_factory=list)
    goals: list[Goal] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    held: tuple[HeldTime, ...] = ()
    small: SmallFigures | None = None
    pools: PoolFindings = field(default_factory=PoolFindings)

    @property
    def all_cases(self) -> tuple[SuiteCase | PoolCase, ...]:
        return (*self.cases, *self.pools.cases)


def suite_on(bench: Bench, index: int, extent: Extent) -> SuiteReport:
    """Measure it all on npu:`index`. Ctrl-C or a failure ends it; what was measured is reported.

    Raises:
        EmsException: nothing could be measured.
        KeyboardInterrupt: before anything was measured.
    """
    measured = _Measured()
    before = host_times()
    ended: Ended = "complete"
    failure: BaseException | None = None
    try:
        for model in suite_models(quick=extent.quick):
            _measure_model(bench, index, model, extent, measured)
        _measure_rest(bench, index, extent, measured)
        if extent.pools is not None:
            measure_pools(bench, index, extent.pools, measured.pools)
    except KeyboardInterrupt as error:
        ended, failure = "interrupted", error
    except EmsException as error:
        ended, failure = "failed", error
    if failure is not None and not measured.cases:
        raise failure
    others = share_of_others(before, host_times(), os.cpu_count() or 1)
    fewest = min(
        (one.figures.runs for case in measured.all_cases for one in case.operations.values()),
        default=0,
    )
    return SuiteReport(
        simulated=bench.runtime.simulated,
        labels=labels_of(
            simulated=bench.runtime.simulated,
            verified=all(case.verified_blocks for case in measured.all_cases),
            runs=fewest,
            others_cpu_share=others,
            busy=bench.noise is not None and bench.noise.busy,
        ),
        ended=ended,
        failure=str(failure) if isinstance(failure, EmsException) else None,
        versions=versions(),
        machine=machine(),
        noise=bench.noise,
        others_cpu_share=others,
        device=f"npu:{index}",
        pool=None if extent.pool is None else masked(extent.pool),
        quick=extent.quick,
        memory_nbytes=extent.memory_nbytes,
        cases=tuple(measured.cases),
        held=measured.held,
        small=measured.small,
        pools=tuple(measured.pools.cases),
        goals=(*measured.goals, *(g for case in measured.pools.cases for g in by_hand_goals(case))),
        skipped=(*measured.skipped, *measured.pools.skipped),
    )


def _measure_model(
    bench: Bench, index: int, model: SuiteModel, extent: Extent, measured: _Measured
) -> None:
    fitting = [n for n in CALLS if needed_nbytes(model, n) <= extent.memory_nbytes]
    for blocks in CALLS[len(fitting) :]:
        needed = format_nbytes(needed_nbytes(model, blocks))
        measured.skipped.append(f"{model.name}, {blocks} blocks per call: takes {needed}")
    if not fitting:
        return
    settings = Settings(fitting[-1], 1, 0.0, "random", verify=True, runs=None, pool=extent.pool)
    place = Place(bench.runtime, index, cache_for(model, fitting[-1]))
    with rig(place, settings, bench.tell) as ready:
        ready.trips.content.touch_every_block()
        for blocks, order in _calls(fitting):
            case = _case(
                ready, model, replace(settings, blocks_per_call=blocks, order=order), extent
            )
            measured.cases.append(case)
            measured.goals += _goals(model, case, in_memory=extent.pool is None)
            bench.advance()


def _calls(fitting: Sequence[int]) -> Iterator[tuple[int, Order]]:
    for blocks in fitting:
        yield blocks, "random"
        if blocks == ORDERED_AT:
            yield blocks, "sequential"


def _case(ready: Rig, model: SuiteModel, settings: Settings, extent: Extent) -> SuiteCase:
    """Make one pair of trips that is verified, and then those that are timed."""
    trips = ready.trips
    trips.settings, trips.compared = settings, Compared()
    cold: dict[str, list[Run]] = {}
    runs: dict[str, list[Run]] = {}
    _pair(trips, cold, 0)
    await_pinning(trips.parts.pool)
    trips.settings = replace(settings, verify=False)
    started = time.monotonic()
    while not _enough(runs, time.monotonic() - started, extent):
        _pair(trips, runs, len(next(iter(runs.values()), ())))
    operations = operations_of(cold, runs)
    return SuiteCase(
        model.name,
        settings.blocks_per_call,
        settings.order,
        span_facts(trips.parts.registration, settings),
        operations,
        both_ways_gain(operations),
        trips.compared.verified,
        trips.compared.wrong,
    )


def _enough(runs: Mapping[str, list[Run]], seconds: float, extent: Extent) -> bool:
    done = min((len(one) for one in runs.values()), default=0)
    if extent.runs is not None:
        return done >= extent.runs
    return done >= _FEWEST and seconds > extent.seconds


def _pair(trips: Trips, into: dict[str, list[Run]], turn: int) -> None:
    for asynchronous in (False, True):
        for name, run in trips.trip(asynchronous=asynchronous, turn=turn).items():
            into.setdefault(name, []).append(run)


def _goals(model: SuiteModel, case: SuiteCase, *, in_memory: bool) -> Iterator[Goal]:
    """Yield the figures that have goals; what engines elsewhere reach is shown without one."""
    least = model.least_share if in_memory else None
    if case.blocks_per_call == ORDERED_AT and case.order == "random":
        yield from share_goals(model.name, case.operations, least)
        if in_memory:
            yield from copying_goals(model.name, case.operations)
        yield from both_ways_goals(model.name, case.operations)
    if case.blocks_per_call == 1 and model.name.startswith("Llama"):
        yield from latency_goals(model.name, case.operations)


def _measure_rest(bench: Bench, index: int, extent: Extent, measured: _Measured) -> None:
    runs = extent.runs or (10 if extent.quick else 30)
    submitted = measure_submission(bench.runtime, index, runs=runs, tell=bench.tell)
    measured.held = submitted.times
    measured.goals += held_goals(submitted.times)
    bench.advance()
    cycles = 500 if extent.quick else 3000
    measured.small = small_figures(bench.runtime, index, runs=runs, cycles=cycles, tell=bench.tell)
    measured.goals += small_goals(measured.small)
    bench.advance()
