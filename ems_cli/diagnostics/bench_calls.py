"""The calls of one run: their arguments, and what comes of making them."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from ems.common.option import CcKvOption
from ems.common.result import CcResult
from ems.context_caching import ContextCaching
from ems.device.base import Direction
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.measure import Clock

Blocks: TypeAlias = list[int]
PATIENCE = CcKvOption(timeout=120_000)


class Call(NamedTuple):
    """What is passed to one save or load."""

    direction: Direction
    slots: list[int]
    hashes: list[int]
    offsets: list[int]


class Timed(NamedTuple):
    """What came of a run's calls."""

    submit_seconds: float | None
    seconds: float
    results: list[CcResult]
    call_seconds: float
    phases: Mapping[str, float]


def calls_of(
    direction: Direction, blocks: Blocks, hashes: Sequence[int], *, each: int, block_size: int
) -> list[Call]:
    """Return one call for every `each` blocks."""
    return [
        Call(
            direction,
            [
                block * block_size + at
                for block in blocks[start : start + each]
                for at in range(block_size)
            ],
            list(hashes[start : start + each]),
            [block_size] * len(blocks[start : start + each]),
        )
        for start in range(0, len(blocks), each)
    ]


def load_calls(
    settings: Settings, targets: Blocks, stored: Sequence[int], missing: Sequence[int], size: int
) -> list[Call]:
    """Return the calls that load: in each the stored hashes first, then the missing ones."""
    hits, misses = settings.hits_per_call, settings.blocks_per_call - settings.hits_per_call
    hashes: list[int] = []
    blocks: Blocks = []
    spare = targets[len(stored) :]
    for call in range(settings.in_flight):
        hashes += stored[call * hits : (call + 1) * hits]
        hashes += missing[call * misses : (call + 1) * misses]
        blocks += targets[call * hits : (call + 1) * hits]
        blocks += spare[call * misses : (call + 1) * misses]
    return calls_of(Direction.IN, blocks, hashes, each=settings.blocks_per_call, block_size=size)


@dataclass(frozen=True, slots=True)
class Caller:
    """Makes calls and times them."""

    caching: ContextCaching
    clock: Clock = time.perf_counter

    def make(self, calls: Sequence[Call], *, asynchronous: bool) -> Timed:
        """Make all calls, at once or one after another.

        Raises:
            EmsException: one of them failed.
        """
        before = self.caching.counters()
        made = self._at_once(calls) if asynchronous else self._in_turn(calls)
        submit_seconds, seconds, results = made
        noted, phases = noted_between(before, self.caching.counters())
        return Timed(submit_seconds, seconds, results, noted, phases)

    def _in_turn(self, calls: Sequence[Call]) -> tuple[float | None, float, list[CcResult]]:
        started = self.clock()
        results = [self._wait_for(call) for call in calls]
        return None, self.clock() - started, results

    def _wait_for(self, call: Call) -> CcResult:
        wait = self.caching.save if call.direction is Direction.OUT else self.caching.load
        return wait(call.slots, call.hashes, call.offsets, PATIENCE)

    def _at_once(self, calls: Sequence[Call]) -> tuple[float | None, float, list[CcResult]]:
        started = self.clock()
        futures = [self._start(call) for call in calls]
        submitted = self.clock()
        results = [future.result() for future in futures]
        return submitted - started, self.clock() - started, results

    def _start(self, call: Call) -> Any:
        start: Callable[..., Any] = self.caching.async_load
        if call.direction is Direction.OUT:
            start = self.caching.async_save
        return start(call.slots, call.hashes, call.offsets, PATIENCE)


def noted_between(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> tuple[float, dict[str, float]]:
    """Return what the library's own notes of saves and loads grew by: seconds, and by phase."""
    phases: Counter[str] = Counter()
    seconds = 0.0
    for operation in ("save", "load"):
        then, now = before.get(operation, {}), after.get(operation, {})
        seconds += now.get("seconds", 0.0) - then.get("seconds", 0.0)
        earlier = then.get("seconds_by_phase", {})
        for name, value in now.get("seconds_by_phase", {}).items():
            phases[name] += value - earlier.get(name, 0.0)
    return seconds, dict(phases)
