"""One round trip: raw copy, save, load into other blocks, raw copy, and what the bytes became."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from ems.common.option import CcKvOption
from ems.common.result import CcResult
from ems.context_caching import ContextCaching
from ems.device.base import Direction
from ems.layout.copy_plan import Spans, joined
from ems.layout.key import make_keys
from ems.layout.part import parts_of
from ems.layout.registration import Registration
from ems.layout.request import request_of_slots
from ems.pool.base import PoolEngine
from ems_cli.diagnostics.bench import (
    ASYNC_LOAD,
    ASYNC_SAVE,
    LOAD,
    MEMCPY,
    RAW_IN,
    RAW_OUT,
    SAVE,
    Run,
    Settings,
)
from ems_cli.diagnostics.content import block_rows, number_of, wrong_rows
from ems_cli.diagnostics.measure import Clock, seconds_of

Blocks: TypeAlias = list[int]
_Call: TypeAlias = tuple[list[int], list[int], list[int]]
"""The arguments of the library: slots, hashes, offsets."""
_PATIENCE = CcKvOption(timeout=120_000)
_BLOCKS_AT_ONCE = 64


@dataclass(slots=True)
class Compared:
    """What comparing loaded blocks has found so far."""

    verified: int = 0
    wrong: int = 0
    first_wrong: str | None = None


@dataclass(frozen=True, slots=True)
class Parts:
    """What trips work with."""

    cache: Any
    """A `SyntheticCache`."""
    raw: Any
    """`RawCopies`."""
    caching: ContextCaching
    pool: PoolEngine
    registration: Registration
    key_prefixes: Sequence[str]
    plane_names: Sequence[Sequence[str]]


@dataclass(slots=True)
class Trips:
    """Makes round trips, each of fresh content under fresh hashes into an emptied pool."""

    parts: Parts
    settings: Settings
    clock: Clock = time.perf_counter
    compared: Compared = field(default_factory=Compared)
    _numbers: int = 0
    _rng: Any = None

    def __post_init__(self) -> None:
        """Start the sequence of random blocks."""
        self._rng = np.random.default_rng(self.settings.seed)

    def touch_every_block(self) -> None:
        """Write all of the cache once, so that no first touch of its memory is timed.

        Raises:
            DeviceFailed: a copy failed.
        """
        blocks = range(self.parts.registration.groups[0].num_blocks)
        for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
            some = list(blocks[start : start + _BLOCKS_AT_ONCE])
            self._write(some, self._take(len(some)))

    def trip(self, *, asynchronous: bool, raw_first: bool) -> dict[str, Run]:
        """Make one trip and return its runs by operation.

        Raw copy and library take turns in coming first, so that neither always finds the caches
        of the host as the other left them.

        Raises:
            EmsException: a call failed; nothing of the trip stays in the pool.
        """
        sources, targets = self._choose()
        numbers = self._fresh(sources)
        hashes = [(1 << 62) + number for number in self._take(len(targets))]
        missing = hashes[len(sources) :]
        stored = hashes[: len(sources)]
        spans = raw_spans(self.parts.registration, sources, self.parts.raw.address)
        names = (ASYNC_SAVE, ASYNC_LOAD) if asynchronous else (SAVE, LOAD)
        try:
            saves = self._calls(sources, stored, self.settings.hits_per_call)
            out, save = self._both(Direction.OUT, spans, saves, asynchronous, raw_first)
            loads = self._loads(targets, stored, missing)
            into, load = self._both(Direction.IN, spans, loads, asynchronous, raw_first)
        finally:
            for prefix in self.parts.key_prefixes:
                self.parts.pool.remove(make_keys(prefix, stored))
        self._compare(targets, sources, numbers, load.moved_blocks)
        memcpy = seconds_of(lambda: self.parts.raw.copy_on_host(spans.total_nbytes), self.clock)
        return {
            MEMCPY: self._raw_run(memcpy, spans),
            RAW_OUT: out,
            RAW_IN: into,
            names[0]: save,
            names[1]: load,
        }

    def _both(
        self,
        direction: Direction,
        spans: Spans,
        calls: Sequence[_Call],
        asynchronous: bool,  # noqa: FBT001 - handed on
        raw_first: bool,  # noqa: FBT001
    ) -> tuple[Run, Run]:
        """Time the raw copy and the library's calls in one direction, in either order."""

        def raw() -> Run:
            seconds = seconds_of(lambda: self.parts.raw.copy(spans, direction), self.clock)
            return self._raw_run(seconds, spans)

        self.parts.cache.synchronize()
        raw_run = raw() if raw_first else None
        timed = self._timed(direction, calls, asynchronous=asynchronous)
        raw_run = raw_run or raw()
        return raw_run, self._run(direction, calls, timed, raw_run)

    def _timed(
        self, direction: Direction, calls: Sequence[_Call], *, asynchronous: bool
    ) -> tuple[float | None, float, list[CcResult]]:
        """Return the seconds to submit, the seconds to the end, and the results."""
        caching = self.parts.caching
        out = direction is Direction.OUT
        if not asynchronous:
            wait: Callable[..., CcResult] = caching.save if out else caching.load
            started = self.clock()
            results = [wait(*call, _PATIENCE) for call in calls]
            return None, self.clock() - started, results
        start = caching.async_save if out else caching.async_load
        started = self.clock()
        futures = [start(*call, _PATIENCE) for call in calls]
        submitted = self.clock()
        results = [future.result() for future in futures]
        return submitted - started, self.clock() - started, results

    def _run(
        self,
        direction: Direction,
        calls: Sequence[_Call],
        timed: tuple[float | None, float, list[CcResult]],
        raw: Run,
    ) -> Run:
        submit, seconds, results = timed
        requested = sum(len(hashes) for _, hashes, _ in calls)
        moved = sum(result.success for result in results)
        if direction is Direction.OUT and moved < requested:  # blocks behind one that failed
            moved = self._stored([one for _, hashes, _ in calls for one in hashes])
        settings = self.settings
        never_saved = (settings.blocks_per_call - settings.hits_per_call) * settings.in_flight
        missed = 0 if direction is Direction.OUT else min(never_saved, requested - moved)
        failed = requested - moved - missed
        nbytes = moved * self._block_nbytes
        return Run(seconds, submit, requested, moved, missed, failed, nbytes, raw.bytes_per_second)

    def _stored(self, hashes: Sequence[int]) -> int:
        found = [
            self.parts.pool.lookup(make_keys(prefix, hashes)) for prefix in self.parts.key_prefixes
        ]
        return sum(None not in entries for entries in zip(*found, strict=True))

    @property
    def _block_nbytes(self) -> int:
        registration = self.parts.registration
        return registration.token_nbytes * registration.groups[0].block_size

    def _raw_run(self, seconds: float, spans: Spans) -> Run:
        blocks = spans.total_nbytes // self._block_nbytes
        return Run(seconds, None, blocks, blocks, 0, 0, spans.total_nbytes)

    def _choose(self) -> tuple[Blocks, Blocks]:
        """Return the blocks to save, and as many others, and those to be missed, to load into."""
        settings = self.settings
        saved = settings.hits_per_call * settings.in_flight
        loaded = settings.blocks_per_call * settings.in_flight
        blocks = self.parts.registration.groups[0].num_blocks
        order = range(blocks) if settings.sequential else self._rng.permutation(blocks).tolist()
        return list(order[:saved]), list(order[saved : saved + loaded])

    def _fresh(self, blocks: Blocks) -> list[int]:
        """Write content that was nowhere before into blocks; return their numbers."""
        numbers = self._take(len(blocks))
        if self.settings.verify:
            self._write(blocks, numbers)
        return numbers

    def _write(self, blocks: Blocks, numbers: list[int]) -> None:
        for layer, planes in enumerate(self.parts.registration.planes):
            for plane in planes:
                rows = block_rows(layer, plane.index, numbers, plane.block_nbytes)
                self.parts.cache.write(layer, plane.index, blocks, rows)

    def _take(self, count: int) -> list[int]:
        first = self._numbers
        self._numbers += count
        return list(range(first, self._numbers))

    def _calls(self, blocks: Blocks, hashes: list[int], each: int) -> list[_Call]:
        """Return the arguments of one call for every `each` blocks."""
        size = self.parts.registration.groups[0].block_size
        return [
            (
                [block * size + at for block in blocks[start : start + each] for at in range(size)],
                hashes[start : start + each],
                [size] * len(blocks[start : start + each]),
            )
            for start in range(0, len(blocks), each)
        ]

    def _loads(self, targets: Blocks, stored: list[int], missing: list[int]) -> list[_Call]:
        """Return the calls that load: in each the stored hashes first, then the missing ones."""
        settings = self.settings
        hits, misses = settings.hits_per_call, settings.blocks_per_call - settings.hits_per_call
        hashes: list[int] = []
        blocks: Blocks = []
        spare = targets[len(stored) :]
        for call in range(settings.in_flight):
            hashes += stored[call * hits : (call + 1) * hits]
            hashes += missing[call * misses : (call + 1) * misses]
            blocks += targets[call * hits : (call + 1) * hits]
            blocks += spare[call * misses : (call + 1) * misses]
        return self._calls(blocks, hashes, settings.blocks_per_call)

    def _compare(self, targets: Blocks, sources: Blocks, numbers: list[int], moved: int) -> None:
        """Compare the blocks that were loaded with what was written where they came from."""
        if not self.settings.verify or moved < len(sources):
            return  # the blocks that are missing count as failed
        loaded = targets[: len(sources)]
        wrong: set[int] = set()
        for layer, planes in enumerate(self.parts.registration.planes):
            for plane in planes:
                found = self.parts.cache.read(layer, plane.index, loaded)
                expected = block_rows(layer, plane.index, numbers, plane.block_nbytes)
                rows = wrong_rows(found, expected)
                if rows and self.compared.first_wrong is None:
                    row = found[rows[0]]
                    name = self.parts.plane_names[layer][plane.index]
                    other = number_of(row, layer, plane.index, numbers)
                    self.compared.first_wrong = _told(
                        f"layer {layer} {name} block {loaded[rows[0]]}",
                        sources[rows[0]],
                        None if other is None else sources[numbers.index(other)],
                        int(np.flatnonzero(row != expected[rows[0]])[0]),
                    )
                wrong.update(rows)
        self.compared.verified += len(loaded)
        self.compared.wrong += len(wrong)


def _told(where: str, source: int, other: int | None, byte: int) -> str:
    told = f"{where}, loaded from what block {source} was saved as, differs from byte {byte} on"
    return told if other is None else f"{told}: it holds what block {other} was saved as"


def raw_spans(registration: Registration, blocks: Sequence[int], address: int) -> Spans:
    """Return the copies between whole blocks and entries that lie one after another from `address`.

    They are the very spans that the library makes of these blocks.
    """
    size = registration.groups[0].block_size
    slots = (np.array(blocks)[:, None] * size + np.arange(size)).ravel()
    request = request_of_slots(
        registration, slots, list(range(len(blocks))), [size] * len(blocks), writes=False
    )
    found = []
    for part in parts_of(request, registration.groups, [""] * len(registration.groups)):
        ends = np.cumsum(part.nbytes)
        starts = (address + np.concatenate(([0], ends[:-1]))).astype(np.uint64)
        found.append(part.spans(np.arange(len(blocks)), starts, part.tokens))
        address += int(ends[-1])
    return joined(found)
