"""One rank that saves and loads coded blocks, and checks its memory and the pool's after each."""

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from ems.common.exception import EmsException
from ems.common.option import CcKvOption
from ems.context_caching import ContextCaching
from ems.layout.copy_plan import ALIGNMENT
from ems.layout.key import make_keys
from ems.layout.registered import key_prefixes
from ems.pool.base import Held, PoolEngine, PoolKey
from ems_cli.diagnostics.position_code import Bytes, Ints
from ems_cli.diagnostics.verify_faults import Fault, FaultKind, diagnose
from ems_cli.diagnostics.verify_memory import CodedMemory, Tally, rows_of
from ems_cli.diagnostics.verify_region import Region

PATIENT = CcKvOption(timeout=120_000)


class Chunk(NamedTuple):
    """A hash and the slots that it owns."""

    hash: int
    slots: tuple[int, ...]


Chunks: TypeAlias = Sequence[Chunk]


class WrongError(Exception):
    """A step has found a fault, and cannot go on."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.text)
        self.fault = fault


@dataclass(slots=True)
class Counters:
    """Numbers that no two ranks of a run may share."""

    generation: int = 0
    hash: int = 1 << 62

    def next_generation(self) -> int:
        """Return a generation that was never written."""
        self.generation += 1
        return self.generation

    def next_hash(self) -> int:
        """Return a hash that was never saved."""
        self.hash += 1
        return self.hash


@dataclass(slots=True)
class VerifiedRank:
    """The library's object for one rank, and all that is known of its cache and its entries."""

    label: str
    """How a message calls it."""
    memory: CodedMemory
    caching: ContextCaching
    pool: PoolEngine
    settings: Any
    counters: Counters
    num_blocks: int
    tally: Tally = field(default_factory=Tally)
    stored: dict[int, Ints] = field(default_factory=dict)
    """By hash: rank, generation and slot of each token, as `CodedMemory.columns`."""
    others: list[CodedMemory] = field(default_factory=list)
    """Caches that were registered before: nothing may write them any more."""

    def begin(self) -> None:
        """Begin a step: what the last one left must not have changed; all blocks are new."""
        if self.memory.columns.size:
            self.check_quiet()
        self.memory.fill(self.counters.next_generation(), self.num_blocks)

    def distrust(self) -> None:
        """Expect nothing of the memory any more: a step has found it wrong."""
        for memory in self.all_memory():
            memory.distrust()

    def slots_of(self, block: int) -> tuple[int, ...]:
        """Return the slots of a whole block, in order."""
        size = self.memory.block_size
        return tuple(range(block * size, (block + 1) * size))

    def chunk(self, *blocks: int) -> Chunk:
        """Return whole blocks under one new hash."""
        slots = tuple(slot for block in blocks for slot in self.slots_of(block))
        return Chunk(self.counters.next_hash(), slots)

    def save(self, chunks: Chunks, *, reuse: bool = True) -> None:
        """Save, write other content into the blocks at once, and check the entries.

        Raises:
            WrongError: the count is wrong, or an entry holds other bytes.
        """
        self.note_saved(chunks)
        with self.failures_are_faults("save"):
            count = self.caching.save(*arguments(chunks), PATIENT).success
        self.expect_count("save", count, len(chunks))
        if reuse:
            self.scribble(chunks)
        self.check_entries(chunks)

    def note_saved(self, chunks: Chunks) -> None:
        """Take note of what the entries of chunks must hold."""
        for chunk in chunks:
            self.stored[chunk.hash] = self.memory.columns[list(chunk.slots)].copy()

    def scribble(self, chunks: Chunks) -> None:
        """Write new content into the blocks of chunks: their owner uses them again."""
        blocks = {slot // self.memory.block_size for chunk in chunks for slot in chunk.slots}
        self.memory.write(self.counters.next_generation(), sorted(blocks))

    def load(self, chunks: Chunks, *, hits: int | None = None) -> None:
        """Load chunks, of which the first `hits` are stored, and check all memory.

        Raises:
            WrongError: the count is wrong, or memory holds other bytes.
        """
        before = self.memory.columns.copy()
        with self.failures_are_faults("load"):
            count = self.caching.load(*arguments(chunks), PATIENT).success
        expected = len(chunks) if hits is None else hits
        self.expect_loaded(chunks[:expected])
        self.check(before)  # before the count: wrong bytes tell more
        self.expect_count("load", count, expected)

    def expect_loaded(self, chunks: Chunks) -> None:
        """Take note that chunks have been loaded."""
        for chunk in chunks:
            self.memory.expect(chunk.slots, self.stored[chunk.hash][: len(chunk.slots)])

    def expect_count(self, operation: str, count: int, expected: int) -> None:
        """Raise unless the library counted right."""
        if count != expected:
            text = f"{operation} reported {count} hashes done, {expected} were right"
            raise WrongError(Fault(FaultKind.WRONG_COUNT, text))

    def check(self, before: Ints | None = None) -> None:
        """Compare every byte of the cache, and of those registered earlier.

        Raises:
            WrongError: bytes are wrong.
        """
        found = [self.memory.check(before, self.tally)]
        found += [other.check(None, self.tally) for other in self.others]
        _raise_first(found)

    def check_quiet(self) -> None:
        """Compare again although nothing was called.

        Raises:
            WrongError: bytes have changed.
        """
        _raise_first([each.check(None, self.tally, late=True) for each in self.all_memory()])

    def all_memory(self) -> Iterator[CodedMemory]:
        """Return the registered cache and those before it."""
        yield self.memory
        yield from self.others

    def check_entries(self, chunks: Chunks) -> None:
        """Compare what the pool holds with what was saved, past the loading side of the library.

        Raises:
            WrongError: an entry is missing, or holds other bytes.
        """
        registration = self.caching.registration
        if registration is None:
            raise AssertionError("a rank has registered its cache")
        keys = [
            make_keys(prefix, [chunk.hash])[0]
            for prefix in key_prefixes(self.settings, registration)
            for chunk in chunks
        ]
        regions = [
            region
            for key, chunk in zip(keys, chunks, strict=True)
            for region in self._wrong_regions(key, self.stored[chunk.hash])
        ]
        if regions:
            raise WrongError(diagnose(regions, self.memory.surroundings(())))

    def has_entry(self, chunk: Chunk) -> bool:
        """Return whether the pool says that it has all tokens of a chunk."""
        registration = self.caching.registration
        if registration is None:
            raise AssertionError("a rank has registered its cache")
        keys = [make_keys(prefix, [chunk.hash])[0]
                for prefix in key_prefixes(self.settings, registration)]  # fmt: skip
        found = self.pool.lookup(keys, deadline=PATIENT.deadline())
        return all(each is not None and each.tokens >= len(chunk.slots) for each in found)

    def _wrong_regions(self, key: PoolKey, columns: Ints) -> Iterator[Region]:
        """Yield what is wrong in an entry: plane after plane, each starting on `ALIGNMENT`."""
        entry, start = self._entry(key, len(columns)), 0
        for layer, planes in enumerate(self.memory.forms):
            for plane, form in enumerate(planes):
                nbytes = len(columns) * form.token_nbytes
                found = entry[start : start + nbytes]
                start += -(-nbytes // ALIGNMENT) * ALIGNMENT
                self.tally.elements += nbytes // form.itemsize
                self.tally.nbytes += nbytes
                expected = rows_of(form, layer, plane, columns)
                if not np.array_equal(found, expected):
                    yield Region(
                        layer, plane, None, "in the saved entry", found, expected, columns, None
                    )

    def _entry(self, key: PoolKey, tokens: int) -> Bytes:
        with self.failures_are_faults("reading an entry"):
            (held,) = self.pool.acquire([key], [tokens], deadline=PATIENT.deadline())
        if not isinstance(held, Held):
            text = f"the pool does not have what was saved: {held.name.lower()}"
            raise WrongError(Fault(FaultKind.WRONG_COUNT, text))
        try:
            return np.frombuffer(ctypes.string_at(held.address, held.nbytes), np.uint8)
        finally:
            self.pool.release([held])

    def forget(self) -> None:
        """Remove everything that was saved, from the pool, too."""
        registration = self.caching.registration
        if registration is not None:
            for prefix in key_prefixes(self.settings, registration):
                self.pool.remove(make_keys(prefix, list(self.stored)))
        self.stored.clear()

    @contextmanager
    def failures_are_faults(self, doing: str) -> Iterator[None]:
        """Turn a failure of the library, where there should be none, into a fault."""
        try:
            yield
        except EmsException as error:
            text = f"{doing} failed: {error} ({error.status_code().name})"
            raise WrongError(Fault(FaultKind.FAILED, text)) from error


Step: TypeAlias = Callable[[VerifiedRank, "np.random.Generator"], None]


def arguments(chunks: Chunks) -> tuple[list[int], list[int], list[int]]:
    """Return slots, hashes and offsets of a call."""
    return (
        [slot for chunk in chunks for slot in chunk.slots],
        [chunk.hash for chunk in chunks],
        [len(chunk.slots) for chunk in chunks],
    )


def _raise_first(found: Sequence[Fault | None]) -> None:
    for fault in found:
        if fault is not None:
            raise WrongError(fault)
