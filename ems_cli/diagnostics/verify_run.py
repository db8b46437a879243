"""Verifies saves and loads on coded caches: each rank alone, ranks beside each other, processes."""

import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from ems.common.exception import EmsException, InvalidArgument
from ems.common.units import format_nbytes
from ems.pool.base import PoolEngine
from ems.pool.faulty import FaultyPool
from ems.pool.registry import open_pool
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.check import Verdict
from ems_cli.diagnostics.npu import Runtime, versions
from ems_cli.diagnostics.position_code import Book
from ems_cli.diagnostics.session import Tell, context_caching, rank_settings, tensor_shapes
from ems_cli.diagnostics.shape import CacheShape, summary_of
from ems_cli.diagnostics.verify import (
    Ended,
    RankReport,
    StepReport,
    VerifyReport,
    VerifySettings,
)
from ems_cli.diagnostics.verify_faults import Fault, FaultKind
from ems_cli.diagnostics.verify_memory import CodedMemory, Tally, forms_of
from ems_cli.diagnostics.verify_rank import Counters, VerifiedRank, WrongError
from ems_cli.diagnostics.verify_steps import FEWEST_BLOCKS, STEPS

PADDING_NBYTES: Final = 512
_SPARE_NBYTES: Final = 8 << 20
_SHARED_MEMORY: Final = "/dev/shm"  # noqa: S108 - a folder of our own in it

Wrap = Callable[[PoolEngine], PoolEngine]


@dataclass(slots=True)
class Session:
    """All that is open while ranks are verified."""

    runtime: Runtime
    settings: VerifySettings
    tell: Tell
    model: str
    pool_url: str
    stack: ExitStack
    wrap: Wrap = lambda pool: pool
    advance: Callable[[], None] = lambda: None
    shared_pool: bool = False
    """Whether other processes see the pool."""
    counters: Counters = field(default_factory=Counters)
    book: Book = field(default_factory=Book)
    ranks: list[VerifiedRank] = field(default_factory=list)
    shapes: list[tuple[int, CacheShape]] = field(default_factory=list)
    steps: list[StepReport] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(
        self, name: str, number: int, where: str, tally: Tally, action: Callable[[], None]
    ) -> bool:
        """Run a step, take note of how it ended, and return whether it passed."""
        before = Tally(tally.elements, tally.nbytes)
        started = time.perf_counter()
        fault: Fault | None = None
        try:
            action()
        except WrongError as error:
            fault = error.fault
        except EmsException as error:
            fault = Fault(FaultKind.FAILED, f"{error} ({error.status_code().name})")
        if fault is not None:
            for rank in self.ranks:
                rank.distrust()
        self.steps.append(
            StepReport(
                name,
                number,
                where,
                Verdict.PASS if fault is None else Verdict.FAIL,
                tally.elements - before.elements,
                tally.nbytes - before.nbytes,
                time.perf_counter() - started,
                fault,
            )
        )
        self.advance()
        return fault is None


def verify_on(  # noqa: PLR0913 - what is verified, and the places where tests plant faults
    runtime: Runtime,
    caches: Sequence[tuple[int, CacheShape]],
    settings: VerifySettings,
    *,
    tell: Tell,
    advance: Callable[[], None] = lambda: None,
    wrap: Wrap = lambda pool: pool,
    beyond: Sequence[Callable[[Session, int], None]] = (),
) -> VerifyReport:
    """Verify ranks, each a device and a shape; Ctrl-C ends it, and what was found is reported.

    `beyond` are steps with more than one rank or process, called with the round. `wrap` may stand
    something in front of the pool.

    Raises:
        BadInput: a cache is too small, or the pool is.
        EmsException: nothing could be verified.
    """
    _check_shapes(caches)
    model = f"ems-cli verify {uuid.uuid4()}"
    ended: Ended = "complete"
    with ExitStack() as stack:
        url = settings.pool or _default_pool(caches, settings, stack)
        session = Session(runtime, settings, tell, model, url, stack, wrap, advance)
        session.shared_pool = not url.startswith("memory:")
        try:
            for number, (index, shape) in enumerate(caches):
                session.ranks.append(open_rank(session, index, shape, number=number))
                session.shapes.append((index, shape))
            for number in range(1, settings.rounds + 1):
                _round(session, number, beyond)
        except KeyboardInterrupt:
            if not session.steps:
                raise
            ended = "interrupted"
        return _report(session, ended)


def _round(session: Session, number: int, beyond: Sequence[Callable[[Session, int], None]]) -> None:
    for at, rank in enumerate(session.ranks):
        rng = np.random.default_rng((session.settings.seed, number, at))
        for name, step in STEPS.items():
            session.run(name, number, rank.label, rank.tally, partial(step, rank, rng))
            rank.forget()
        name = "registered anew, blocks apart"
        session.run(name, number, rank.label, rank.tally, partial(_register_anew, session, rank))
        rank.forget()
    for together in beyond:
        together(session, number)


def open_rank(session: Session, index: int, shape: CacheShape, *, number: int) -> VerifiedRank:
    """Allocate a coded cache and register it; it is closed with the session."""
    settings = rank_settings(index, shape, model=session.model)
    forms = forms_of(shape)
    session.book.add_rank(number, forms)
    memory = _memory(session, index, shape, number, padding_nbytes=0)
    pool = session.ranks[0].pool if session.ranks else _pool(session, index, shape)
    caching = session.stack.enter_context(context_caching(session.runtime, settings, pool))
    caching.register_kvcache(memory.cache.kvcache)
    parallel = shape.parallel
    label = f"npu:{index}"
    if parallel.tp * parallel.pp > 1:
        label += f" rank {parallel.rank} (tp {parallel.tp_rank}, pp {parallel.pp_rank})"
    return VerifiedRank(label, memory, caching, pool, settings, session.counters, shape.num_blocks)


def _pool(session: Session, index: int, shape: CacheShape) -> PoolEngine:
    try:
        opened = open_pool(session.pool_url, session.runtime.ascend.PinnedMemory(index))
    except InvalidArgument as error:
        raise BadInput(str(error), option="--pool") from error
    pool = session.wrap(FaultyPool(opened) if session.settings.faults else opened)
    session.stack.enter_context(closing(pool))
    _check_capacity(pool, shape)
    return pool


def _memory(
    session: Session, index: int, shape: CacheShape, rank: int, *, padding_nbytes: int
) -> CodedMemory:
    from ems.device.guarded import GuardedCache  # noqa: PLC0415 - imports torch

    free = session.runtime.synthetic.memory_of(index).free_nbytes
    session.tell(
        f"npu:{index}: the cache takes {format_nbytes(shape.nbytes)} ({shape.nbytes} bytes) of "
        f"{format_nbytes(free)} free"
    )
    tensors = tensor_shapes(session.runtime, shape)
    cache = session.stack.enter_context(
        closing(GuardedCache(index, tensors, padding_nbytes=padding_nbytes))
    )
    return CodedMemory(rank, cache, forms_of(shape), _names(shape), session.book)


def _register_anew(session: Session, rank: VerifiedRank) -> None:
    """Save; register a cache whose blocks lie apart; load there; the first stays as it is."""
    index, shape = session.shapes[session.ranks.index(rank)]
    rank.begin()
    saved = [rank.chunk(block) for block in (1, 3)]
    rank.save(saved)
    apart = _memory(session, index, shape, rank.memory.rank, padding_nbytes=PADDING_NBYTES)
    first, rank.memory = rank.memory, apart
    rank.others.append(first)
    try:
        with rank.failures_are_faults("register_kvcache"):
            rank.caching.register_kvcache(apart.cache.kvcache)
        rank.begin()
        rank.load([chunk._replace(slots=rank.slots_of(block)) for chunk, block in
                   zip(saved, (2, 0), strict=True)])  # fmt: skip
        again = [rank.chunk(block) for block in (3, 1)]
        rank.save(again)
        rank.load([chunk._replace(slots=rank.slots_of(block)) for chunk, block in
                   zip(again, (0, 2), strict=True)])  # fmt: skip
    finally:
        with rank.failures_are_faults("register_kvcache"):
            rank.caching.register_kvcache(first.cache.kvcache)
        rank.others.remove(first)
        rank.memory = first
        apart.cache.close()


def _names(shape: CacheShape) -> list[list[str]]:
    return [
        [f"layer {layer.index} {plane.name}" for plane in layer.planes] for layer in shape.layers
    ]


def _default_pool(
    caches: Sequence[tuple[int, CacheShape]], settings: VerifySettings, stack: ExitStack
) -> str:
    """Return the URL of a pool that is large enough for every step.

    It is in this process; where others take part, in files that are removed at the end.
    """
    needed = _SPARE_NBYTES + 2 * sum(shape.nbytes for _, shape in caches)
    if settings.processes == 1:
        return f"memory://?capacity={needed}&segment={needed}"
    where = _SHARED_MEMORY if Path(_SHARED_MEMORY).is_dir() else None
    folder = stack.enter_context(TemporaryDirectory(prefix="ems-verify-", dir=where))
    return f"lmdb://{folder}/pool?capacity={needed}&staging={needed}"


def _check_capacity(pool: PoolEngine, shape: CacheShape) -> None:
    capacity = pool.stats().room_nbytes
    if capacity < 2 * shape.nbytes:
        raise BadInput(
            f"the pool holds {format_nbytes(capacity)}, and verify keeps up to twice the cache of "
            f"{format_nbytes(shape.nbytes)}; fewer --blocks need less",
            option="--pool",
        )


def _check_shapes(caches: Sequence[tuple[int, CacheShape]]) -> None:
    for _, shape in caches:
        if shape.num_blocks < FEWEST_BLOCKS:
            raise BadInput(
                f"{shape.num_blocks} blocks leave none to watch; at least {FEWEST_BLOCKS}",
                option="--blocks",
            )


def _report(session: Session, ended: Ended) -> VerifyReport:
    failed = sum(step.verdict is Verdict.FAIL for step in session.steps)
    simulated = session.runtime.simulated
    return VerifyReport(
        simulated=simulated,
        labels=("SIMULATED",) if simulated else (),
        ended=ended,
        verdict=Verdict.FAIL if failed else Verdict.PASS,
        settings=session.settings,
        versions=versions(),
        ranks=tuple(_ranks(session)),
        steps=tuple(session.steps),
        passed_steps=len(session.steps) - failed,
        failed_steps=failed,
        compared_elements=sum(step.compared_elements for step in session.steps),
        compared_nbytes=sum(step.compared_nbytes for step in session.steps),
        notes=tuple(session.notes),
    )


def _ranks(session: Session) -> Iterator[RankReport]:
    for rank, (index, shape) in zip(session.ranks, session.shapes, strict=True):
        name = session.runtime.synthetic.device_name(index)
        yield RankReport(rank.label, f"npu:{index}", str(name), summary_of(shape))


def usual_steps(ranks: int, settings: VerifySettings) -> int:
    """Return how many steps there are, for a progress bar."""
    alone = ranks * (len(STEPS) + 1)
    beside = ranks if ranks > 1 else 0
    return settings.rounds * (alone + beside + settings.processes - 1 + 8 * settings.faults)
