"""One LMDB file of the pool, with its own writer lock, capacity and order of eviction."""

import enum
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from ems.layout.key import PoolKey
from ems.pool.lmdb.record import BROKEN, Checksum, Header, charge_of, piece_name
from ems.pool.lmdb.transactions import Transactions
from ems.pool.lmdb.writing import Figures, Offer, Writing
from ems.pool.staging import Bytes

_LOG = logging.getLogger(__name__)

_STEP_NBYTES = 256 << 10


class Fetched(enum.Enum):
    """What came of reading an entry."""

    READ = enum.auto()
    CHANGED = enum.auto()
    """It is no longer the one whose header was seen."""
    DAMAGED = enum.auto()


@dataclass(frozen=True, slots=True)
class Wish:
    """An entry to read, the header that was seen, and where the bytes go."""

    key: PoolKey
    header: Header
    target: Bytes


class Shard:
    """Entries in one file. Every process that has it open may read and write at any time.

    Each write is one transaction: after a kill at any moment the file is as before it, or as after
    it. A reader sees the file as it was when it began, so eviction does not disturb it.
    """

    def __init__(self, path: Path, *, capacity_nbytes: int, checked: bool) -> None:
        """Open the file, made where it is missing, and reserve its space.

        Raises:
            PoolUnavailable: the file system is full, or the file is not to be used.
        """
        self.capacity_nbytes = capacity_nbytes
        self._path = path
        self._checked = checked
        self._transactions = Transactions(path, capacity_nbytes=capacity_nbytes)
        self._tables = self._transactions.tables
        self._reading = self._transactions.reading
        self._write = self._transactions.write

    @property
    def map_full(self) -> int:
        """How often LMDB found no room for short pieces."""
        return self._transactions.map_full

    def close(self) -> None:
        """Let go of the file. Nothing of it may be in use."""
        self._transactions.close()

    def headers(self, keys: Sequence[PoolKey]) -> list[Header | None]:
        """Return what is known of the entries, in the order of `keys`."""
        get = self._tables.entries
        with self._reading() as txn:
            raws = [txn.get(key.encode(), db=get) for key in keys]
            return [None if raw is None else self._parse(raw) for raw in raws]

    def were_evicted(self, keys: Sequence[PoolKey]) -> list[bool]:
        """Return which of these keys, that are not stored, were evicted, if that is remembered."""
        with self._reading() as txn:
            return [self._tables.was_evicted(txn, key) for key in keys]

    def examine(self, seen: Sequence[tuple[PoolKey, Header]]) -> list[Fetched]:
        """Return what would come of reading entries, by the sizes of their pieces alone."""
        with self._reading() as txn:
            return [self._examine(txn, key, header) for key, header in seen]

    def fetch(self, wishes: Sequence[Wish]) -> list[Fetched]:
        """Copy entries to where they are wanted. What is not READ may have been copied in part."""
        fetched: list[Fetched] = []
        for batch in self._batches(wishes, lambda wish: wish.header.nbytes):
            with self._reading() as txn:
                fetched += [self._fetch(txn, wish) for wish in batch]
        return fetched

    def store(self, offers: Sequence[Offer], touched: Mapping[PoolKey, int]) -> None:
        """Store entries where nothing as long is stored, each visible as a whole.

        What was used is noted before, so that it is not what has to go.
        """
        for batch in self._batches(offers, lambda offer: offer.content.nbytes):
            if len(batch) == 1 and self._exceeds_a_batch(batch[0]):
                self.touch(touched)
                touched = {}
                self._make_room(batch[0])

            def write(
                writing: Writing,
                batch: Sequence[Offer] = batch,
                touched: Mapping[PoolKey, int] = touched,
            ) -> None:
                writing.touch(touched)
                writing.store(batch, clock=time.monotonic_ns(), checked=self._checked)

            self._write(write)
            touched = {}

    def touch(self, touched: Mapping[PoolKey, int], *, patiently: bool = True) -> None:
        """Note when entries were used."""
        self._write(lambda writing: writing.touch(touched), patiently=patiently)

    def remove(self, keys: Sequence[PoolKey]) -> int:
        """Remove entries; return how many there were."""
        return sum(self._write(lambda writing: [writing.remove(key) for key in keys]))

    def remove_damaged(self, wishes: Sequence[tuple[PoolKey, Header]]) -> None:
        """Remove entries that proved damaged, unless others have taken their place."""

        def drop(writing: Writing) -> None:
            for key, header in wishes:
                found = writing.header(key)
                if found is not None and found.serial == header.serial:
                    writing.drop_damaged(key, found)

        self._write(drop)
        _LOG.warning("%d entries of %s were damaged and are removed", len(wishes), self._path)

    def clear(self) -> int:
        """Remove everything, in steps that never free too much at once; return how many it was."""
        removed = 0
        while keys := self._write(lambda writing: writing.oldest(256)):
            removed += self.remove(keys)
        self._write(Writing.forget_gone)
        return removed

    def ages(self) -> list[tuple[bytes, PoolKey]]:
        """Return all keys with what sorts them by their last use."""
        with self._reading() as txn, txn.cursor(db=self._tables.ages) as cursor:
            return [
                (bytes(name), PoolKey(bytes(key).decode(errors="replace"))) for name, key in cursor
            ]

    def figures(self) -> tuple[Figures, int]:
        """Return the sums, and how many entries there are."""
        with self._reading() as txn:
            entries: int = txn.stat(self._tables.entries)["entries"]
            return self._tables.figures(txn), entries

    def probe(self, name: bytes, content: bytes) -> None:
        """Write a few bytes, read them back and remove them.

        Raises:
            PoolUnavailable: they were not the same, or could not be written or read.
        """
        self._transactions.probe(name, content)

    def reconcile(self) -> None:
        """Make the tables agree; for the first process that opens the pool."""
        self._write(Writing.reconcile)

    def _found(
        self, txn: "lmdb.Transaction[Any]", key: PoolKey, seen: Header
    ) -> tuple[Header, list[Any]] | Fetched:
        """Return the entry's header and pieces, or why it is not what `seen` said."""
        raw = txn.get(key.encode(), db=self._tables.entries)
        header = None if raw is None else self._parse(raw)
        if header is None or header.serial != seen.serial:
            return Fetched.CHANGED
        if header is BROKEN:
            return Fetched.DAMAGED
        pieces = []
        for index, (_, length) in enumerate(header.pieces()):
            piece = txn.get(piece_name(header.serial, index), db=self._tables.pieces)
            if piece is None or len(piece) != length:
                return Fetched.DAMAGED
            pieces.append(piece)
        return header, pieces

    def _examine(self, txn: "lmdb.Transaction[Any]", key: PoolKey, seen: Header) -> Fetched:
        found = self._found(txn, key, seen)
        return found if isinstance(found, Fetched) else Fetched.READ

    def _fetch(self, txn: "lmdb.Transaction[Any]", wish: Wish) -> Fetched:
        found = self._found(txn, wish.key, wish.header)
        if isinstance(found, Fetched):
            return found
        header, pieces = found
        checksum = None
        if self._checked and header.checksum is not None:
            checksum = Checksum(wish.key, header.tokens, header.nbytes)
        for (start, length), piece in zip(header.pieces(), pieces, strict=True):
            _copy(np.frombuffer(piece, np.uint8), wish.target[start : start + length], checksum)
        if checksum is not None and checksum.value() != header.checksum:
            return Fetched.DAMAGED
        return Fetched.READ

    def _parse(self, raw: Any) -> Header:
        return Header.parse(raw, limit_nbytes=self.capacity_nbytes)

    def _batches(self, members: Any, size_of: Any) -> Iterator[Any]:
        """Yield runs of `members` of at most a batch, or single ones that are larger."""
        batch: list[Any] = []
        nbytes = 0
        for member in members:
            size = charge_of(size_of(member))
            if batch and nbytes + size > self._transactions.batch_nbytes:
                yield batch
                batch, nbytes = [], 0
            batch.append(member)
            nbytes += size
        if batch:
            yield batch

    def _exceeds_a_batch(self, offer: Offer) -> bool:
        return charge_of(offer.content.nbytes) > self._transactions.batch_nbytes

    def _make_room(self, offer: Offer) -> None:
        """Evict ahead for an entry larger than a batch, and let the pages come free."""
        need = charge_of(offer.content.nbytes)

        def evict(writing: Writing) -> int:
            leaving = writing.spare_rival(offer, clock=time.monotonic_ns())
            if leaving is None:
                return 0
            down_to = self.capacity_nbytes - need + leaving
            return writing.evict(down_to, at_most=self._transactions.batch_nbytes)

        while self._write(evict):
            pass
        for _ in range(2):
            self._write(Writing.take_turn)


def _copy(source: Bytes, target: Bytes, checksum: Checksum | None) -> None:
    """Copy a piece, with a checksum in steps that the processor's cache holds."""
    if checksum is None:
        np.copyto(target, source)
        return
    for start in range(0, source.nbytes, _STEP_NBYTES):
        step = target[start : start + _STEP_NBYTES]
        np.copyto(step, source[start : start + _STEP_NBYTES])
        checksum.add(step)
