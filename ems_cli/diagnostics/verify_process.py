"""What another process does for `verify`: loads and saves in the same pool, or fails."""

import enum
import multiprocessing
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from ems.common.exception import EmsException
from ems.simulator import control
from ems_cli.diagnostics.npu import start_runtime
from ems_cli.diagnostics.position_code import Ints
from ems_cli.diagnostics.shape import CacheShape
from ems_cli.diagnostics.verify import VerifySettings
from ems_cli.diagnostics.verify_faults import Fault, FaultKind
from ems_cli.diagnostics.verify_memory import Tally
from ems_cli.diagnostics.verify_rank import Chunk, VerifiedRank, WrongError, arguments
from ems_cli.diagnostics.verify_run import Session, open_rank

_SECONDS = 300.0
"""How long another process may take."""


class Task(enum.Enum):
    """What another process is to do."""

    EXCHANGE = "load what is stored, then save"
    FAILING_SAVE = "save while a copy fails"
    FAILING_LOAD = "load while a copy fails"


@dataclass(frozen=True, slots=True)
class Job:
    """All that another process needs to know."""

    task: Task
    device: int
    shape: CacheShape
    model: str
    pool_url: str
    rank: int
    """Its own number, in the content that it writes."""
    first_rank: int
    """The number of the rank that saved what is stored."""
    hash: int
    """Its hashes follow this one."""
    faults: bool


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a job."""

    rank: int
    fault: Fault | None
    tally: Tally
    stored: dict[int, Ints] = field(default_factory=dict)
    """What it has saved, by hash, as `VerifiedRank.stored`."""


def run_job(job: Job, stored: dict[int, Ints]) -> Answer:
    """Run a job in a fresh process, and return its answer."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, job, stored), daemon=True)
    process.start()
    theirs.close()
    try:
        if not ours.poll(_SECONDS):
            return _failed(job, f"another process did not answer within {_SECONDS:.0f} s")
        answer: Answer = ours.recv()
    except EOFError:
        process.join()
        return _failed(job, f"another process ended with {process.exitcode}, without an answer")
    else:
        return answer
    finally:
        process.join(1.0)
        if process.is_alive():
            process.terminate()
            process.join()
        ours.close()


def _failed(job: Job, text: str) -> Answer:
    return Answer(job.rank, Fault(FaultKind.FAILED, text), Tally())


def _work(answer_to: Connection, job: Job, stored: dict[int, Ints]) -> None:
    """Do a job, in the process that was started for it."""
    with answer_to:
        try:
            answer_to.send(_answer(job, stored))
        except EmsException as error:
            answer_to.send(_failed(job, f"another process: {error}"))


def _answer(job: Job, stored: dict[int, Ints]) -> Answer:
    with ExitStack() as stack:
        settings = VerifySettings(1, 0, job.pool_url, 1, faults=False)
        session = Session(
            start_runtime(), settings, _keep_quiet, job.model, job.pool_url, stack, shared_pool=True
        )
        session.counters.hash = job.hash
        session.counters.generation = 1 << 20  # above those of the process that started this one
        rank = open_rank(session, job.device, job.shape, number=job.rank)
        session.book.add_rank(job.first_rank, rank.memory.forms)
        for columns in stored.values():
            blocks = sorted({int(slot) // rank.memory.block_size for slot in columns[:, 2]})
            session.book.note(job.first_rank, int(columns[0, 1]), blocks)
        fault = None
        done: dict[int, Ints] = {}
        try:
            rank.begin()
            done = _TASKS[job.task](rank, stored)
        except WrongError as error:
            text = f"in another process: {error.fault.text}"
            fault = Fault(error.fault.kind, text, error.fault.regions)
        return Answer(job.rank, fault, rank.tally, done)


def _keep_quiet(note: str) -> None:
    """Drop a note: the process that started this one has told the same."""


def _exchange(rank: VerifiedRank, stored: dict[int, Ints]) -> dict[int, Ints]:
    rank.memory.generation = 0  # what is stored was written before this process began
    rank.stored.update(stored)
    rank.load([Chunk(one, rank.slots_of(at)) for at, one in enumerate(stored)])
    rank.begin()
    saved = [rank.chunk(block) for block in range(rank.num_blocks // 2)]
    rank.save(saved)
    return {chunk.hash: rank.stored[chunk.hash] for chunk in saved}


def _failing_save(rank: VerifiedRank, stored: dict[int, Ints]) -> dict[int, Ints]:
    del stored
    chunks = [rank.chunk(0), rank.chunk(1)]
    rank.note_saved(chunks)
    _fails(rank, "save", chunks)
    return _visible(rank, chunks)


def _failing_load(rank: VerifiedRank, stored: dict[int, Ints]) -> dict[int, Ints]:
    del stored
    chunks = [rank.chunk(0)]
    rank.save(chunks)
    targets = [Chunk(chunks[0].hash, rank.slots_of(2))]
    _fails(rank, "load", targets)
    rank.scribble(targets)  # they may hold anything, and belong to somebody else from now on
    rank.check()
    return _visible(rank, chunks)


def _fails(rank: VerifiedRank, operation: str, chunks: list[Chunk]) -> None:
    """Call while the first copy fails half-way: that must not be a success."""
    call = rank.caching.save if operation == "save" else rank.caching.load
    with control.knobs(FAIL_COPY="1"):
        try:
            count = call(*arguments(chunks)).success
        except EmsException:
            return
    if count:
        text = f"{operation} reported {count} hashes done, though its first copy failed"
        raise WrongError(Fault(FaultKind.WRONG_COUNT, text))


def _visible(rank: VerifiedRank, chunks: list[Chunk]) -> dict[int, Ints]:
    """Return what the pool has of chunks; each of them must be whole."""
    there = [chunk for chunk in chunks if rank.has_entry(chunk)]
    rank.check_entries(there)
    return {chunk.hash: rank.stored[chunk.hash] for chunk in there}


_TASKS = {
    Task.EXCHANGE: _exchange,
    Task.FAILING_SAVE: _failing_save,
    Task.FAILING_LOAD: _failing_load,
}
