"""Steps with more than one rank or process, and with faults in the simulated NPU and the pool."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import numpy as np

from ems.common.exception import EmsException, PoolUnavailable
from ems.common.future import CcFuture
from ems.pool.faulty import Fault as PoolFault
from ems.pool.faulty import FaultyPool
from ems.simulator import control
from ems_cli.diagnostics.position_code import Ints
from ems_cli.diagnostics.shape import CacheShape
from ems_cli.diagnostics.verify import VerifySettings
from ems_cli.diagnostics.verify_faults import Fault, FaultKind
from ems_cli.diagnostics.verify_memory import Tally
from ems_cli.diagnostics.verify_process import Job, Task, run_job
from ems_cli.diagnostics.verify_rank import Chunk, VerifiedRank, WrongError, arguments
from ems_cli.diagnostics.verify_run import Session
from ems_cli.diagnostics.verify_steps import overlapping, time_outs, whole_blocks

_CHILDREN_START: Final = 1000
"""Ranks of other processes are counted from here, so that nobody's content is another's."""


def ranks_beside_each_other(session: Session, number: int) -> None:
    """Let every further rank meet the first: apart, or sharing entries where all hold the same."""
    for at, rank in enumerate(session.ranks[1:], start=1):
        first = session.ranks[0]
        shared = _share(session.shapes[0][1], session.shapes[at][1])
        name = "ranks share their entries" if shared else "ranks stay apart"
        step = _shared if shared else _apart
        where = f"{first.label}, {rank.label}"
        session.run(name, number, where, rank.tally, partial(step, first, rank))
        for each in (first, rank):
            each.forget()
    if len(session.ranks) > 1:
        tally = session.ranks[0].tally
        session.run("all ranks at once", number, "all", tally, partial(_at_once, session.ranks))


def _share(one: CacheShape, other: CacheShape) -> bool:
    """Whether both ranks hold the same, and their entries are therefore one another's."""
    same_stage = one.parallel.pp_rank == other.parallel.pp_rank
    alike = one.kvcache_type == "MLA" or one.parallel.tp_rank == other.parallel.tp_rank
    return same_stage and alike


def _shared(first: VerifiedRank, rank: VerifiedRank) -> None:
    for each in (first, rank):
        each.begin()
    chunk = first.chunk(1)
    first.save([chunk])
    rank.stored[chunk.hash] = first.stored[chunk.hash]
    rank.load([Chunk(chunk.hash, rank.slots_of(2))])


def _apart(first: VerifiedRank, rank: VerifiedRank) -> None:
    for each in (first, rank):
        each.begin()
    chunk = first.chunk(1)
    first.save([chunk])
    own = Chunk(chunk.hash, rank.slots_of(2))
    rank.load([own], hits=0)
    rank.save([own])
    for each in (rank, first):
        each.load([Chunk(chunk.hash, each.slots_of(3))])


def _at_once(ranks: Sequence[VerifiedRank]) -> None:
    futures: list[tuple[VerifiedRank, list[Chunk], CcFuture]] = []
    for rank in ranks:
        rank.begin()
    for rank in ranks:
        saved = [rank.chunk(0), rank.chunk(1)]
        rank.note_saved(saved)
        loaded = [Chunk(chunk.hash, rank.slots_of(2 + at)) for at, chunk in enumerate(saved)]
        with rank.failures_are_faults("an asynchronous call"):
            rank.caching.async_save(*arguments(saved))
            futures.append((rank, loaded, rank.caching.async_load(*arguments(loaded))))
    for rank, loaded, future in futures:
        before = rank.memory.columns.copy()
        with rank.failures_are_faults("an asynchronous call"):
            count = future.result().success
        rank.expect_loaded(loaded)
        rank.check(before)
        rank.expect_count("load", count, len(loaded))
    for rank in ranks:
        rank.forget()


def other_processes(session: Session, number: int) -> None:
    """Let other processes load what this one saved, and this one what they save."""
    for child in range(session.settings.processes - 1):
        where = f"this process and another (number {child + 1})"
        rank = session.ranks[0]
        session.run(
            "across processes",
            number,
            where,
            rank.tally,
            partial(_across, session, child),
        )
        rank.forget()


def _across(session: Session, child: int) -> None:
    rank = session.ranks[0]
    rank.begin()
    saved = [rank.chunk(block) for block in range(rank.num_blocks // 2)]
    rank.save(saved)
    answer = run_job(_job(session, Task.EXCHANGE, _CHILDREN_START + child), rank.stored)
    _take(rank.tally, answer.tally)
    if answer.fault is not None:
        raise WrongError(answer.fault)
    _load_those_of(rank, session, answer.rank, answer.stored)


def _load_those_of(
    rank: VerifiedRank, session: Session, other: int, stored: dict[int, Ints]
) -> None:
    session.book.add_rank(other, rank.memory.forms)
    rank.stored.update(stored)
    for columns in stored.values():
        blocks = columns[:, 2] // rank.memory.block_size
        session.book.note(other, int(columns[0, 1]), np.unique(blocks).tolist())
    rank.load(
        [Chunk(one, rank.slots_of(at)) for at, one in enumerate(list(stored)[: rank.num_blocks])]
    )


def _job(session: Session, task: Task, child: int) -> Job:
    index, shape = session.shapes[0]
    return Job(
        task,
        index,
        shape,
        session.model,
        session.pool_url,
        rank=child,
        first_rank=session.ranks[0].memory.rank,
        hash=session.counters.next_hash() + ((child + 1) << 32),
        faults=session.settings.faults,
    )


def _take(tally: Tally, more: Tally) -> None:
    tally.elements += more.elements
    tally.nbytes += more.nbytes


def with_faults(session: Session, number: int) -> None:
    """Make copies slow and make them fail, and let the pool fail."""
    if not session.runtime.simulated:
        note = "copies were not made to fail: that needs the simulated NPU"
        if note not in session.notes:
            session.notes.append(note)
    else:
        for name, delay, step in _SLOW:
            _run_with(session, number, name, partial(_slowed, session, delay, step))
        for name, task in _FAILING:
            _run_with(session, number, name, partial(_failing, session, task))
    for operation in ("acquire", "commit", "reserve"):
        _run_with(
            session,
            number,
            f"the pool fails at {operation}",
            partial(_failing_pool, session, operation),
        )


def _run_with(session: Session, number: int, name: str, action: Callable[[], None]) -> None:
    rank = session.ranks[0]
    session.run(name, number, rank.label, rank.tally, action)
    rank.forget()


_SLOW: Final = (
    ("slow copies", 2_000, whole_blocks),
    ("slow copies, saves and loads at once", 2_000, overlapping),
    ("slow copies that time out", 30_000, time_outs),
)
"""Name, microseconds, step."""
_FAILING: Final = (
    ("a copy of a save fails half-way", Task.FAILING_SAVE),
    ("a copy of a load fails half-way", Task.FAILING_LOAD),
)


def _slowed(
    session: Session, microseconds: int, step: Callable[[VerifiedRank, np.random.Generator], None]
) -> None:
    delay = f"copy_h2d={microseconds},copy_d2h={microseconds}"
    rng = np.random.default_rng(session.settings.seed)
    rank = session.ranks[0]
    with control.knobs(DELAY=delay):
        step(rank, rng)
        rank.check_quiet()


def _failing(session: Session, task: Task) -> None:
    """Let another process fail, as its NPU is lost by it; then use what it has left."""
    answer = run_job(_job(session, task, _CHILDREN_START), {})
    rank = session.ranks[0]
    _take(rank.tally, answer.tally)
    if answer.fault is not None:
        raise WrongError(answer.fault)
    rank.begin()
    if session.shared_pool and answer.stored:  # what was reported as stored is whole
        _load_those_of(rank, session, answer.rank, answer.stored)
    saved = [rank.chunk(1)]
    rank.save(saved)
    rank.load([Chunk(saved[0].hash, rank.slots_of(3))])


def _failing_pool(session: Session, operation: str) -> None:
    rank = session.ranks[0]
    rank.begin()
    saved = [rank.chunk(0)]
    if operation == "acquire":
        rank.save(saved)
    else:
        rank.note_saved(saved)
    target = [Chunk(saved[0].hash, rank.slots_of(2))]
    faulty = rank.pool
    if not isinstance(faulty, FaultyPool):
        raise TypeError("with faults there is a pool that can fail")
    faulty.faults[:] = [PoolFault(operation, 0, failure=PoolUnavailable("planted by verify"))]
    started = time.perf_counter()
    try:
        if operation == "acquire":
            count = rank.caching.load(*arguments(target)).success
        else:
            count = rank.caching.save(*arguments(saved)).success
    except EmsException:
        count = 0
    finally:
        faulty.faults.clear()
    if count:
        text = f"{count} hashes done after {time.perf_counter() - started:.1f} s, though it failed"
        raise WrongError(Fault(FaultKind.WRONG_COUNT, text))
    rank.check()
    again = [rank.chunk(0)]
    rank.save(again)
    rank.load([Chunk(again[0].hash, rank.slots_of(2))])


def steps_beyond(settings: VerifySettings) -> list[Callable[[Session, int], None]]:
    """Return what is to be verified besides each rank alone."""
    steps: list[Callable[[Session, int], None]] = [ranks_beside_each_other]
    if settings.processes > 1:
        steps.append(other_processes)
    if settings.faults:
        steps.append(with_faults)
    return steps
