"""The steps that one rank goes through by itself, each with content that was nowhere before."""

import itertools
import time
from typing import Final

import numpy as np

from ems.common.exception import EmsException, RequestTimeout
from ems.common.option import CcKvOption
from ems_cli.diagnostics.verify_faults import Fault, FaultKind
from ems_cli.diagnostics.verify_rank import Chunk, Step, VerifiedRank, WrongError, arguments

FEWEST_BLOCKS: Final = 4
_AT_ONCE: Final = 3
_GENERATIONS: Final = 3
_QUIET_SECONDS: Final = 0.1
_SHORT: Final = CcKvOption(timeout=1)


def whole_blocks(rank: VerifiedRank, rng: np.random.Generator) -> None:
    """Save whole blocks, and load them into others."""
    rank.begin()
    sources, targets = _two_sets(rank, rng)
    saved = [rank.chunk(block) for block in sources]
    rank.save(saved)
    rank.load(_into(rank, saved, targets))


def partial_blocks(rank: VerifiedRank, rng: np.random.Generator) -> None:
    """Save parts of blocks; load them, and fewer tokens than are stored."""
    size = rank.memory.block_size
    rank.begin()
    sources, targets = _two_sets(rank, rng)
    saved = []
    for block in sources:
        first, end = _stretch(size, rng)
        saved.append(Chunk(rank.counters.next_hash(), rank.slots_of(block)[first:end]))
    rank.save(saved)
    loaded = []
    for chunk, block in zip(saved, targets, strict=True):
        tokens = int(rng.integers(1, len(chunk.slots) + 1))
        first = int(rng.integers(0, size - tokens + 1))
        loaded.append(Chunk(chunk.hash, rank.slots_of(block)[first : first + tokens]))
    rank.load(loaded)


def several_blocks(rank: VerifiedRank, rng: np.random.Generator) -> None:
    """Save several blocks and a part of another under one hash."""
    rank.begin()
    sources, targets = _two_sets(rank, rng)
    tokens = int(rng.integers(1, len(sources) * rank.memory.block_size + 1))
    chunk = rank.chunk(*sources)
    saved = [Chunk(chunk.hash, chunk.slots[:tokens])]
    rank.save(saved)
    slots = [slot for block in targets for slot in rank.slots_of(block)]
    rank.load([Chunk(chunk.hash, tuple(slots[:tokens]))])


def unordered_slots(rank: VerifiedRank, rng: np.random.Generator) -> None:
    """Save and load tokens that lie anywhere, in chunks of any length."""
    rank.begin()
    size = rank.memory.block_size
    order = rng.permutation(rank.num_blocks * size).tolist()
    half = len(order) // 2
    saved: list[Chunk] = []
    start = 0
    while start < half and len(saved) < 2 * _AT_ONCE:
        tokens = int(rng.integers(1, min(size, half - start) + 1))
        saved.append(Chunk(rank.counters.next_hash(), tuple(order[start : start + tokens])))
        start += tokens
    rank.save(saved, reuse=False)
    loaded = []
    start = half
    for chunk in saved:
        loaded.append(Chunk(chunk.hash, tuple(order[start : start + len(chunk.slots)])))
        start += len(chunk.slots)
    rank.load(loaded)


def generations(rank: VerifiedRank, rng: np.random.Generator) -> None:
    """Save blocks again and again under changing hashes; every hash keeps its own."""
    rank.begin()
    sources, targets = _two_sets(rank, rng)
    source = sources[0]
    saved = []
    for _ in range(_GENERATIONS):
        chunk = rank.chunk(source)
        rank.save([chunk])
        saved.append(chunk)
    for at in rng.permutation(len(saved)).tolist():
        rank.load(_into(rank, [saved[at]], targets[:1]))


def misses(rank: VerifiedRank, rng: np.random.Generator) -> None:
    """Load hashes of which one was never saved: nothing is written from there on."""
    rank.begin()
    sources, targets = _two_sets(rank, rng)
    saved = [rank.chunk(block) for block in sources]
    rank.save(saved)
    wanted = _into(rank, saved, targets)
    gap = int(rng.integers(0, len(wanted)))
    wanted[gap] = wanted[gap]._replace(hash=rank.counters.next_hash())
    rank.load(wanted, hits=gap)


def overlapping(rank: VerifiedRank, rng: np.random.Generator) -> None:
    """Start saves and loads at once that need each other's blocks and hashes."""
    rank.begin()
    before = rank.memory.columns.copy()
    blocks = rng.permutation(rank.num_blocks).tolist()
    futures, chain = [], []
    with rank.failures_are_faults("an asynchronous call"):
        for source, target in itertools.pairwise(blocks):
            saved = [rank.chunk(source)]
            rank.note_saved(saved)  # what the load before it brings there
            chain += saved
            futures.append(rank.caching.async_save(*arguments(saved), _patient()))
            if rng.random() < 0.5:  # noqa: PLR2004 - every second one stays as it is
                loaded = _into(rank, saved, [target])
                rank.expect_loaded(loaded)
                futures.append(rank.caching.async_load(*arguments(loaded), _patient()))
        counts = [future.result().success for future in futures]
    rank.check(before)
    rank.check_entries(chain)
    rank.expect_count("overlapping calls", sum(counts), len(counts))


def time_outs(rank: VerifiedRank, rng: np.random.Generator) -> None:
    """Load and save with too little time: whatever ends, nothing moves afterwards."""
    rank.begin()
    sources, targets = _two_sets(rank, rng)
    saved = [rank.chunk(block) for block in sources]
    rank.save(saved)
    wanted = _into(rank, saved, targets)
    before = rank.memory.columns.copy()
    if _ends_in_time(rank, "load", wanted):
        rank.expect_loaded(wanted)
        rank.check(before)
    # the slots of a load that failed may hold anything; they belong to somebody else from now on
    rank.memory.write(rank.counters.next_generation(), targets)
    time.sleep(_QUIET_SECONDS)
    rank.check_quiet()
    fresh = [rank.chunk(block) for block in targets]
    rank.note_saved(fresh)
    in_time = _ends_in_time(rank, "save", fresh)
    rank.scribble(fresh)
    found = rank.caching.exists([chunk.hash for chunk in fresh], _patient()).success
    if in_time:
        rank.expect_count("exists", found, len(fresh))
    rank.check_entries(fresh[:found])  # what is visible is whole, whatever the save reported
    rank.load(_into(rank, saved, targets))  # and the next call works


def _ends_in_time(rank: VerifiedRank, operation: str, chunks: list[Chunk]) -> bool:
    """Call with hardly any time; return whether it was done all the same."""
    call = rank.caching.load if operation == "load" else rank.caching.save
    try:
        count = call(*arguments(chunks), _SHORT).success
    except RequestTimeout:
        return False
    except EmsException as error:
        text = f"{operation} with a time-out of 1 ms failed otherwise: {error}"
        raise WrongError(Fault(FaultKind.FAILED, text)) from error
    rank.expect_count(operation, count, len(chunks))
    return True


def _patient() -> CcKvOption:
    return CcKvOption(timeout=120_000)


def _two_sets(rank: VerifiedRank, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return blocks to save, and as many others to load into; at least two stay out of it."""
    count = max(1, min(_AT_ONCE, (rank.num_blocks - 2) // 2))
    blocks = rng.permutation(rank.num_blocks).tolist()
    return blocks[:count], blocks[count : 2 * count]


def _into(rank: VerifiedRank, saved: list[Chunk], blocks: list[int]) -> list[Chunk]:
    """Return the same hashes, to be loaded into whole blocks."""
    return [
        Chunk(chunk.hash, rank.slots_of(block)) for chunk, block in zip(saved, blocks, strict=True)
    ]


def _stretch(size: int, rng: np.random.Generator) -> tuple[int, int]:
    first = int(rng.integers(0, size))
    return first, int(rng.integers(first + 1, size + 1))


STEPS: Final[dict[str, Step]] = {
    "whole blocks": whole_blocks,
    "partial blocks": partial_blocks,
    "several blocks under one hash": several_blocks,
    "unordered slots": unordered_slots,
    "generations under changing hashes": generations,
    "a miss in the middle": misses,
    "saves and loads at once": overlapping,
    "time-outs": time_outs,
}
"""In their order; "time-outs" last, as it may leave the pool something to do."""
