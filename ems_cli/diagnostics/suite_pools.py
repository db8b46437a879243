"""The suite's caches in each kind of pool, beside raw copies and the engines' own calls."""

import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Final

from ems.common.exception import EmsException
from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import LOAD, SAVE, Operation, Run
from ems_cli.diagnostics.bench_content import Compared
from ems_cli.diagnostics.bench_figures import operation_of, operations_of
from ems_cli.diagnostics.bench_pool import await_pinning, entry_nbytes
from ems_cli.diagnostics.bench_rig import Place, rig
from ems_cli.diagnostics.bench_run import Bench
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.bench_trip import Trips
from ems_cli.diagnostics.measure import median_ratio
from ems_cli.diagnostics.shape_request import shape_of
from ems_cli.diagnostics.suite_by_hand import ByHand, Memory
from ems_cli.diagnostics.suite_kinds import POOLS, PoolName, SuitePool, needed_nbytes, opened
from ems_cli.diagnostics.suite_models import SuiteModel, cache_for, suite_models

POOL_CALLS: Final = (16, 64)
"""Blocks per call."""
SAVE_BY_HAND, LOAD_BY_HAND = "save_by_hand", "load_by_hand"
BY_HAND: Final = (SAVE_BY_HAND, LOAD_BY_HAND)
_MODELS: Final = ("Llama-3.1-8B", "Qwen3-32B, tp 8")
_QUICK_MODELS: Final = _MODELS[1:]
_FEWEST: Final = 5
_WARM_UPS: Final = 2
_LEAST_NBYTES: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class PoolExtent:
    """How much is measured."""

    quick: bool
    runs: int | None
    memory_nbytes: int
    """What a pool and its caches may take, simulated NPU and host together."""

    @property
    def seconds(self) -> float:
        """Time for the runs of one case, unless `runs` says how many."""
        return 1.0 if self.quick else 4.0

    @property
    def models(self) -> tuple[SuiteModel, ...]:
        """The caches: those of a quick suite, so that every pool holds them a few times."""
        names = _QUICK_MODELS if self.quick else _MODELS
        return tuple(model for model in suite_models(quick=True) if model.name in names)

    @property
    def steps(self) -> int:
        """Steps of progress."""
        return len(self.models) * len(POOL_CALLS) * len(POOLS)


@dataclass(frozen=True, slots=True)
class PoolCase:
    """One pool, cache and call size; waiting calls."""

    pool: PoolName
    model: str
    blocks_per_call: int
    entry_nbytes: int
    operations: Mapping[str, Operation]
    """With "save_by_hand" and "load_by_hand" where the engine has calls of its own: the same
    values through these, and copied between NPU and host meanwhile."""
    save_by_hand_share: float | None
    """Median over the runs of the save's rate by that of the engine's own calls next to it."""
    load_by_hand_share: float | None
    verified_blocks: int
    wrong_blocks: int


@dataclass(slots=True)
class PoolFindings:
    """What has been measured so far."""

    cases: list[PoolCase] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)


def measure_pools(bench: Bench, index: int, extent: PoolExtent, into: PoolFindings) -> None:
    """Measure each kind of pool on npu:`index`; what cannot be had is skipped, with the reason.

    The pools are this call's own, and gone when it returns.

    Raises:
        EmsException: a pool that was there failed.
    """
    room = max(_room_nbytes(model) for model in extent.models)
    for name in POOLS:
        needed = needed_nbytes(name, room)
        if needed > extent.memory_nbytes:
            into.skipped.append(f"{name}: takes {format_nbytes(needed)}")
            continue
        with ExitStack() as stack:
            try:
                pool = stack.enter_context(opened(name, room))
            except EmsException as error:
                into.skipped.append(f"{name}: {error}")
                continue
            for model in extent.models:
                measuring = _Measuring(bench, index, model, pool, extent)
                with closing(measuring.cases()) as cases:
                    for case in cases:
                        into.cases.append(case)
                        bench.advance()


@dataclass(frozen=True, slots=True)
class _Measuring:
    """One cache in one pool."""

    bench: Bench
    index: int
    model: SuiteModel
    pool: SuitePool
    extent: PoolExtent

    def cases(self) -> Generator[PoolCase, None, None]:
        """Yield each case once it is measured."""
        most = POOL_CALLS[-1]
        settings = Settings(most, 1, 0.0, "random", verify=True, runs=None, pool=self.pool.url)
        place = Place(self.bench.runtime, self.index, cache_for(self.model, most))
        with rig(place, settings, self.bench.tell) as ready, ExitStack() as stack:
            ready.trips.content.touch_every_block()
            raw = ready.trips.parts.raw
            memory = Memory(raw.address, most * entry_nbytes(place.shape))
            store = self.pool.by_hand and stack.enter_context(self.pool.by_hand(memory))
            device = self.bench.runtime.ascend.AscendDevice(self.index)
            for blocks in POOL_CALLS:
                ready.trips.settings = replace(settings, blocks_per_call=blocks)
                ready.trips.compared = Compared()
                if store is None:
                    yield self._case(ready.trips, None)
                else:
                    made = ByHand(device, store, memory, ready.trips.parts.registration, blocks)
                    with closing(made) as by_hand:
                        self._verify(by_hand, ready.trips)
                        yield self._case(ready.trips, by_hand)

    def _verify(self, by_hand: ByHand, trips: Trips) -> None:
        """Make one trip by hand and compare what it loads: a limit that moves other bytes is none.

        Raises:
            EmsException: it does.
        """
        numbers, compared = trips.content.take(len(by_hand.sources)), Compared()
        trips.content.write(by_hand.sources, numbers)
        trips.parts.cache.synchronize()
        by_hand.trip(blank=True)
        trips.content.compare(by_hand.targets, by_hand.sources, numbers, compared)
        if compared.wrong:
            raise EmsException(f"{self.pool.name}, by hand: {compared.first_wrong}")

    def _case(self, trips: Trips, by_hand: ByHand | None) -> PoolCase:
        """Make one trip that is verified, a few that warm up, and then those that are timed."""
        cold: dict[str, list[Run]] = {}
        runs: dict[str, list[Run]] = {}
        _trip(trips, by_hand, cold)
        await_pinning(trips.parts.pool)
        trips.settings = replace(trips.settings, verify=False)
        for _ in range(_WARM_UPS):
            _trip(trips, by_hand, cold)
        started = time.monotonic()
        while not self._enough(runs, time.monotonic() - started):
            _trip(trips, by_hand, runs)
        own = {name: operation_of(cold[name], runs[name]) for name in BY_HAND if name in runs}
        return PoolCase(
            self.pool.name,
            self.model.name,
            trips.settings.blocks_per_call,
            trips.parts.block_nbytes,
            {**operations_of(cold, runs), **own},
            _share(runs, SAVE, SAVE_BY_HAND),
            _share(runs, LOAD, LOAD_BY_HAND),
            trips.compared.verified,
            trips.compared.wrong,
        )

    def _enough(self, runs: Mapping[str, list[Run]], seconds: float) -> bool:
        done = len(runs.get(SAVE, ()))
        if self.extent.runs is not None:
            return done >= self.extent.runs
        return done >= _FEWEST and seconds > self.extent.seconds


def _trip(trips: Trips, by_hand: ByHand | None, into: dict[str, list[Run]]) -> None:
    turn = len(into.get(SAVE, ()))
    found = trips.trip(asynchronous=False, turn=turn)
    if by_hand is not None:
        moved = found[SAVE].requested_blocks
        for name, seconds in zip(BY_HAND, by_hand.trip(), strict=True):
            found[name] = Run(seconds, None, moved, moved, 0, 0, moved * by_hand.nbytes)
    for name, run in found.items():
        into.setdefault(name, []).append(run)


def _share(runs: Mapping[str, list[Run]], name: str, by_hand: str) -> float | None:
    if by_hand not in runs:
        return None
    ours, others = ([run.bytes_per_second for run in runs[one]] for one in (name, by_hand))
    return median_ratio(ours, others)


def _room_nbytes(model: SuiteModel) -> int:
    """Return twice what the largest calls save; engines have a least size."""
    return max(_LEAST_NBYTES, 2 * max(POOL_CALLS) * entry_nbytes(shape_of(model.request)))
