"""One round trip: raw copies, save, load into other blocks, and what the bytes became."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ems.context_caching import ContextCaching
from ems.device.base import Direction
from ems.layout.copy_plan import Spans
from ems.layout.key import make_keys
from ems.layout.registration import Registration
from ems.pool.base import PoolEngine
from ems_cli.diagnostics.bench import (
    ASYNC_LOAD,
    ASYNC_SAVE,
    BOTH,
    LOAD,
    MEMCPY,
    RAW_BOTH,
    SAVE,
    Run,
)
from ems_cli.diagnostics.bench_calls import Blocks, Call, Caller, Timed, calls_of, load_calls
from ems_cli.diagnostics.bench_content import Compared, Content
from ems_cli.diagnostics.bench_raw import RAW_NAMES, raw_copies, raw_spans
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.measure import Clock, seconds_of

_NAMES = {
    (Direction.OUT, False): SAVE,
    (Direction.IN, False): LOAD,
    (Direction.OUT, True): ASYNC_SAVE,
    (Direction.IN, True): ASYNC_LOAD,
}


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

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Tokens of a block, by layer group."""
        return tuple(group.block_size for group in self.registration.groups)

    @property
    def block_nbytes(self) -> int:
        """Bytes of a block."""
        groups = self.registration.groups
        return sum(group.token_nbytes * group.block_size for group in groups)


@dataclass(slots=True)
class Trips:
    """Makes round trips, each of fresh content under fresh hashes into an emptied pool."""

    parts: Parts
    settings: Settings
    clock: Clock = time.perf_counter
    compared: Compared = field(default_factory=Compared)
    content: Content = field(init=False)
    _rng: Any = field(init=False)

    def __post_init__(self) -> None:
        """Start the sequence of random blocks."""
        parts = self.parts
        self._rng = np.random.default_rng(self.settings.seed)
        self.content = Content(parts.cache, parts.registration, parts.plane_names)

    def trip(self, *, asynchronous: bool, turn: int = 0) -> dict[str, Run]:
        """Make one trip and return its runs by operation.

        Raw copies and library take turns in coming first, so that none always finds the caches of
        the host as another left them.

        Raises:
            EmsException: a call failed; nothing of the trip stays in the pool.
        """
        sources, targets = self._choose()
        numbers = self._fresh(sources)
        hashes = self._hashes(len(targets))
        stored, missing = hashes[: len(sources)], hashes[len(sources) :]
        spans = self._spans(sources)
        settings, sizes = self.settings, self.parts.block_sizes
        found: dict[str, Run] = {}
        try:
            saves = calls_of(
                Direction.OUT, sources, stored, each=settings.hits_per_call, block_sizes=sizes
            )
            found |= self._beside(Direction.OUT, spans, saves, asynchronous, turn)
            loads = load_calls(settings, targets, stored, missing, sizes)
            found |= self._beside(Direction.IN, spans, loads, asynchronous, turn)
            loaded = found[_NAMES[Direction.IN, asynchronous]]
            self._compare(targets[: len(sources)], sources, numbers, loaded.moved_blocks)
            if asynchronous and len(sources) > 1 and not missing:
                found |= self._both_ways(sources, targets, stored, numbers, turn)
        finally:
            self._forget(stored)
        memcpy = seconds_of(lambda: self.parts.raw.copy_on_host(spans.total_nbytes), self.clock)
        return {MEMCPY: self._raw_run(memcpy, spans), **found}

    def _beside(
        self,
        direction: Direction,
        spans: Spans,
        calls: Sequence[Call],
        asynchronous: bool,  # noqa: FBT001 - handed on
        turn: int,
    ) -> dict[str, Run]:
        """Time the raw copies and the library's calls in one direction, in turns."""
        name = _NAMES[direction, asynchronous]
        seconds, timed = self._in_turns(
            raw_copies(self.parts.raw, spans, direction), calls, asynchronous, turn
        )
        runs = {raw: self._raw_run(taken, spans) for raw, taken in seconds.items()}
        one, two = RAW_NAMES[direction]
        return {**runs, name: self._run(calls, timed, runs[one], runs[two])}

    def _in_turns(
        self,
        raw: Mapping[str, Callable[[], object]],
        calls: Sequence[Call],
        asynchronous: bool,  # noqa: FBT001 - handed on
        turn: int,
    ) -> tuple[dict[str, float], Timed]:
        """Return the seconds of the raw copies by name, and what came of the calls."""
        self.parts.cache.synchronize()
        seconds: dict[str, float] = {}
        timed: Timed | None = None
        actions = [None, *raw]
        for name in actions[turn % len(actions) :] + actions[: turn % len(actions)]:
            if name is None:
                caller = Caller(self.parts.caching, self.clock)
                timed = caller.make(calls, asynchronous=asynchronous)
            else:
                seconds[name] = seconds_of(raw[name], self.clock)
        if timed is None:
            raise AssertionError("the library always has its turn")
        return seconds, timed

    def _both_ways(
        self, sources: Blocks, targets: Blocks, stored: list[int], numbers: list[int], turn: int
    ) -> dict[str, Run]:
        """Save half of the blocks while what the other half was saved as is loaded."""
        half = len(sources) // 2
        sizes, each = self.parts.block_sizes, self.settings.hits_per_call
        into, other = targets[:half], self._hashes(half)
        saves = calls_of(Direction.OUT, sources[:half], other, each=each, block_sizes=sizes)
        loads = calls_of(Direction.IN, into, stored[half : 2 * half], each=each, block_sizes=sizes)
        out_spans = self._spans(sources[:half])
        in_spans = self._spans(sources[half : 2 * half], half)
        raw = {RAW_BOTH: lambda: self.parts.raw.copy_both_ways(out_spans, in_spans)}
        calls = [*saves, *loads]
        try:
            seconds, timed = self._in_turns(raw, calls, True, turn)
            nbytes = out_spans.total_nbytes + in_spans.total_nbytes
            raw_run = self._raw_run(seconds[RAW_BOTH], nbytes=nbytes)
            run = self._run(calls, timed, raw_run, None)
        finally:
            self._forget(other)
        if not run.failed_blocks:
            self._compare(into, sources[half : 2 * half], numbers[half : 2 * half], half)
        return {RAW_BOTH: raw_run, BOTH: run}

    def _run(
        self, calls: Sequence[Call], timed: Timed, one_stream: Run, two_streams: Run | None
    ) -> Run:
        requested = sum(len(call.hashes) for call in calls)
        moved = self._moved(calls, timed)
        loads = calls[0].direction is Direction.IN
        settings = self.settings
        never_saved = (settings.blocks_per_call - settings.hits_per_call) * settings.in_flight
        missed = min(never_saved, requested - moved) if loads else 0
        return Run(
            timed.seconds,
            timed.submit_seconds,
            requested,
            moved,
            missed,
            requested - moved - missed,
            moved * self.parts.block_nbytes,
            one_stream.bytes_per_second,
            None if two_streams is None else two_streams.bytes_per_second,
            timed.call_seconds,
            timed.phases,
        )

    def _moved(self, calls: Sequence[Call], timed: Timed) -> int:
        """Return the blocks that were loaded, and those that were saved."""
        done = {Direction.IN: 0, Direction.OUT: 0}
        for call, result in zip(calls, timed.results, strict=True):
            done[call.direction] += result.success
        saves = [call for call in calls if call.direction is Direction.OUT]
        offered = [one for call in saves for one in call.hashes]
        if done[Direction.OUT] < len(offered):  # blocks behind one that failed
            done[Direction.OUT] = self._stored(offered)
        return sum(done.values())

    def _stored(self, hashes: Sequence[int]) -> int:
        found = [
            self.parts.pool.lookup(make_keys(prefix, hashes)) for prefix in self.parts.key_prefixes
        ]
        return sum(None not in entries for entries in zip(*found, strict=True))

    def _raw_run(self, seconds: float, spans: Spans | None = None, *, nbytes: int = 0) -> Run:
        moved = nbytes if spans is None else spans.total_nbytes
        blocks = moved // self.parts.block_nbytes
        return Run(seconds, None, blocks, blocks, 0, 0, moved)

    def _spans(self, blocks: Blocks, place: int = 0) -> Spans:
        """Return the raw copies of blocks, from the place of one block of the buffer on."""
        address = self.parts.raw.address + place * self.parts.block_nbytes
        return raw_spans(self.parts.registration, blocks, address)

    def _choose(self) -> tuple[Blocks, Blocks]:
        """Return the blocks to save, and as many others, and those to be missed, to load into."""
        settings = self.settings
        saved = settings.hits_per_call * settings.in_flight
        blocks = self.parts.registration.groups[0].num_blocks
        sequential = settings.order == "sequential"
        order = range(blocks) if sequential else self._rng.permutation(blocks).tolist()
        return list(order[:saved]), list(order[saved : saved + settings.blocks_at_once])

    def _fresh(self, blocks: Blocks) -> list[int]:
        """Write content that was nowhere before into blocks; return their numbers."""
        numbers = self.content.take(len(blocks))
        if self.settings.verify:
            self.content.write(blocks, numbers)
        return numbers

    def _hashes(self, count: int) -> list[int]:
        return [(1 << 62) + number for number in self.content.take(count)]

    def _forget(self, hashes: Sequence[int]) -> None:
        for prefix in self.parts.key_prefixes:
            self.parts.pool.remove(make_keys(prefix, hashes))

    def _compare(self, loaded: Blocks, sources: Blocks, numbers: list[int], moved: int) -> None:
        """Compare loaded blocks with what was written where they came from."""
        if self.settings.verify and moved >= len(sources):  # those missing count as failed
            self.content.compare(loaded, sources, numbers, self.compared)
            self.compared.note_never_saved(moved, len(sources))
