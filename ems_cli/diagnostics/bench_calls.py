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
    chunk_descs: list[list[tuple[int, int]]] | None = None
    """In place of slots and offsets where the layer groups have blocks of different sizes."""


class Timed(NamedTuple):
    """What came of a run's calls."""

    submit_seconds: float | None
    seconds: float
    results: list[CcResult]
    call_seconds: float
    phases: Mapping[str, float]


def calls_of(
    direction: Direction,
    blocks: Blocks,
    hashes: Sequence[int],
    *,
    each: int,
    block_sizes: Sequence[int],
) -> list[Call]:
    """Return one call for every `each` blocks; a hash owns the same block of all layer groups."""
    return [
        _call(direction, blocks[start : start + each], hashes[start : start + each], block_sizes)
        for start in range(0, len(blocks), each)
    ]


def _call(
    direction: Direction, blocks: Blocks, hashes: Sequence[int], block_sizes: Sequence[int]
) -> Call:
    if len(set(block_sizes)) > 1:
        return Call(direction, [], list(hashes), [], chunk_descs_of(blocks, block_sizes))
    size = block_sizes[0]
    slots = [block * size + at for block in blocks for at in range(size)]
    return Call(direction, slots, list(hashes), [size] * len(blocks))


def chunk_descs_of(
    blocks: Sequence[int], block_sizes: Sequence[int]
) -> list[list[tuple[int, int]]]:
    """Return start and length in slots of whole blocks, by layer group."""
    return [[(block * size, size) for block in blocks] for size in block_sizes]


def load_calls(
    settings: Settings,
    targets: Blocks,
    stored: Sequence[int],
    missing: Sequence[int],
    block_sizes: Sequence[int],
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
    each = settings.blocks_per_call
    return calls_of(Direction.IN, blocks, hashes, each=each, block_sizes=block_sizes)


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
        return wait(**_arguments(call))

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
        return start(**_arguments(call))


def _arguments(call: Call) -> dict[str, Any]:
    named: dict[str, Any] = {"hashes": call.hashes, "option": PATIENCE}
    if call.chunk_descs is None:
        return {**named, "slot_mapping": call.slots, "offsets": call.offsets}
    return {**named, "chunk_descs": call.chunk_descs}


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
