"""A trace through the real pool: what is found, at several capacities, beside the ceiling."""

import enum
import itertools
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal

from ems.layout.key import Namespace, PoolKey, digest, key_prefix, make_keys
from ems.pool.base import Held, Miss, Place, PoolEngine, Refused
from ems.pool.memory import MemoryPool
from ems_cli.diagnostics.eviction import endless_hits, fifo_hits, foresight_hits
from ems_cli.diagnostics.host_pages import HostPages
from ems_cli.diagnostics.trace_file import Problem, Request, Trace

STAND_IN_NBYTES: Final = 64
"""What an entry takes in the pool of a replay, whatever it stands for: only counts matter."""
_SWEEP: Final = (64, 32, 16, 8, 4, 2, 1)

Advance = Callable[[int], None]
Ended = Literal["complete", "interrupted"]


class Ceiling(enum.Enum):
    """How far a capacity is from what can be had."""

    REACHED = "reached"
    BELOW = "below"


@dataclass(frozen=True, slots=True)
class Entry:
    """What one block of the trace stands for."""

    source: str
    """The model's file or name, "--entry-bytes" or "nothing": only blocks are counted."""
    nbytes: int | None
    """Of one whole block, all ranks; None where nothing is known."""
    token_nbytes: float | None


@dataclass(frozen=True, slots=True)
class CapacityRun:
    """The trace through one pool."""

    capacity_blocks: int
    capacity_nbytes: int | None
    hit_blocks: int
    hit_tokens: int
    hit_share: float
    """Hit blocks by all blocks that were looked for."""
    evictions: int
    refused_blocks: int
    """Blocks that found no room at all."""
    misses: dict[str, int]
    """Blocks by the reason why they were not served; those behind a miss count as such."""
    entries_at_end: int
    loaded_nbytes: int | None
    fifo_hit_share: float | None
    foresight_hit_share: float | None
    ceiling: Ceiling


@dataclass(frozen=True, slots=True)
class ReplayReport:
    """Everything `ems-cli replay` found."""

    file: str
    kind: str
    block_tokens: int
    requests: int
    blocks: int
    """Hashes of all requests."""
    distinct_blocks: int
    tokens: int
    seconds: float | None
    """From the first request to the last, by their own times."""
    entry: Entry
    all_nbytes: int | None
    """What the distinct blocks take."""
    ceiling_hit_blocks: int
    ceiling_hit_tokens: int
    ceiling_hit_share: float
    runs: tuple[CapacityRun, ...]
    ended: Ended
    problem_count: int
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]


def replay_trace(
    trace: Trace,
    file: str,
    entry: Entry,
    *,
    capacities: Sequence[int],
    advance: Advance = lambda _: None,
) -> ReplayReport:
    """Return what a pool of each of `capacities` (in blocks; none: a sweep) finds of `trace`.

    A trace with problems is not replayed.

    Raises:
        EmsException: the host has no memory for the pool.
    """
    report = _facts(trace, file, entry)
    if trace.problem_count:
        return report
    sizes = list(capacities) or sweep(report.distinct_blocks)
    runs: list[CapacityRun] = []
    ended: Ended = "complete"
    try:
        for capacity in sizes:
            run = _run(trace, capacity, entry, report)
            runs.append(_with_policies(run, trace.requests, report.blocks))
            advance(1)
    except KeyboardInterrupt:
        ended = "interrupted"
    return replace(report, runs=tuple(runs), ended=ended)


def sweep(distinct: int) -> list[int]:
    """Return capacities from a 64th of all distinct blocks to all of them."""
    return sorted({max(1, -(-distinct // part)) for part in _SWEEP})


def _facts(trace: Trace, file: str, entry: Entry) -> ReplayReport:
    ceiling = endless_hits(trace.requests, trace.block_tokens)
    blocks = sum(len(request.hash_ids) for request in trace.requests)
    distinct = len({one for request in trace.requests for one in request.hash_ids})
    times = [request.seconds for request in trace.requests if request.seconds is not None]
    return ReplayReport(
        file=file,
        kind=trace.kind.value,
        block_tokens=trace.block_tokens,
        requests=len(trace.requests),
        blocks=blocks,
        distinct_blocks=distinct,
        tokens=sum(request.input_length for request in trace.requests),
        seconds=max(times) - min(times) if times else None,
        entry=entry,
        all_nbytes=None if entry.nbytes is None else distinct * entry.nbytes,
        ceiling_hit_blocks=ceiling.blocks,
        ceiling_hit_tokens=ceiling.tokens,
        ceiling_hit_share=ceiling.blocks / blocks if blocks else 0.0,
        runs=(),
        ended="complete",
        problem_count=trace.problem_count,
        problems=trace.problems,
        notes=trace.notes,
    )


def _run(trace: Trace, capacity: int, entry: Entry, report: ReplayReport) -> CapacityRun:
    nbytes = capacity * STAND_IN_NBYTES
    pool = MemoryPool(HostPages(), capacity_nbytes=nbytes, segment_nbytes=nbytes)
    with closing(pool):
        through = _Through(pool, trace.block_tokens)
        for request in trace.requests:
            through.serve(request)
        stats = pool.stats()
    reached = through.hit_blocks >= report.ceiling_hit_blocks
    return CapacityRun(
        capacity_blocks=capacity,
        capacity_nbytes=None if entry.nbytes is None else capacity * entry.nbytes,
        hit_blocks=through.hit_blocks,
        hit_tokens=through.hit_tokens,
        hit_share=through.hit_blocks / report.blocks,
        evictions=stats.evictions,
        refused_blocks=through.refused_blocks,
        misses=through.misses,
        entries_at_end=stats.entries,
        loaded_nbytes=(
            None if entry.token_nbytes is None else round(through.hit_tokens * entry.token_nbytes)
        ),
        fifo_hit_share=None,
        foresight_hit_share=None,
        ceiling=Ceiling.REACHED if reached else Ceiling.BELOW,
    )


def _with_policies(run: CapacityRun, requests: Sequence[Request], blocks: int) -> CapacityRun:
    return replace(
        run,
        fifo_hit_share=fifo_hits(requests, run.capacity_blocks) / blocks,
        foresight_hit_share=foresight_hits(requests, run.capacity_blocks) / blocks,
    )


class _Through:
    """Requests through a pool, call for call as a load and a save make them."""

    def __init__(self, pool: PoolEngine, block_tokens: int) -> None:
        namespace = Namespace(None, "replay", "replay", 1, 0, 1, 0)
        self._prefix = key_prefix(namespace, 0, digest(asdict(namespace)))
        self._pool = pool
        self._block_tokens = block_tokens
        self.hit_blocks = 0
        self.hit_tokens = 0
        self.refused_blocks = 0
        self.misses: dict[str, int] = {}

    def serve(self, request: Request) -> None:
        """Load the leading blocks that are there, then save the others."""
        keys = make_keys(self._prefix, request.hash_ids)
        tokens = request.tokens(self._block_tokens)
        found = self._pool.acquire(keys, tokens, deadline=None)
        held = [one for one in found if isinstance(one, Held)]
        hits = sum(1 for _ in itertools.takewhile(lambda one: isinstance(one, Held), found))
        self._pool.release(held)
        self.hit_blocks += hits
        self.hit_tokens += sum(tokens[:hits])
        self._count_misses(found[hits:])
        computed = dict(zip(reversed(keys[hits:]), reversed(tokens[hits:]), strict=True))
        if computed:
            self._save(dict(reversed(computed.items())))

    def _save(self, computed: dict[PoolKey, int]) -> None:
        answers = self._pool.reserve(
            list(computed),
            list(computed.values()),
            [STAND_IN_NBYTES] * len(computed),
            deadline=None,
        )
        self._pool.commit([one for one in answers if isinstance(one, Place)])
        self.refused_blocks += sum(one is Refused.NO_SPACE for one in answers)

    def _count_misses(self, found: Sequence[Held | Miss]) -> None:
        for at, one in enumerate(found):
            first = at == 0 and isinstance(one, Miss)
            reason = one.name.lower() if first and isinstance(one, Miss) else "behind_a_miss"
            self.misses[reason] = self.misses.get(reason, 0) + 1
