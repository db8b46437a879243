"""What one write transaction does to a shard: entries, their pieces, their order and the sums."""

import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import lmdb
import xxhash

from ems.layout.key import PoolKey
from ems.pool.lmdb.record import (
    BROKEN,
    Checksum,
    Header,
    age_name,
    charge_of,
    piece_name,
    pieces_of,
    serial_of,
    serial_of_age,
)
from ems.pool.staging import Bytes

_FIGURES = struct.Struct("<5Q")
_FIGURES_NAME = b"figures"
_GONE_SLOTS = 1 << 14
_GONE = struct.Struct("<HQ")


@dataclass(frozen=True, slots=True)
class Offer:
    """An entry to store."""

    key: PoolKey
    tokens: int
    content: Bytes


@dataclass(slots=True)
class Figures:
    """The sums that are kept with the entries, in the same transactions."""

    used_nbytes: int = 0
    next_serial: int = 1
    evictions: int = 0
    damaged: int = 0
    turns: int = 0
    """Counted up where a transaction must not be empty."""

    def pack(self) -> bytes:
        """Return the figures as they are stored."""
        return _FIGURES.pack(
            self.used_nbytes, self.next_serial, self.evictions, self.damaged, self.turns
        )


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of a shard, as LMDB's handles."""

    entries: Any
    """key → header"""
    pieces: Any
    """serial, index → bytes"""
    ages: Any
    """clock, serial → key; the least recently used first"""
    gone: Any
    """A few bits of a key → more of them, for keys that were evicted lately."""
    meta: Any

    @classmethod
    def open(cls, environment: lmdb.Environment) -> "Tables":
        """Return the tables, made where they are missing."""
        names = (b"entries", b"pieces", b"ages", b"gone", b"meta")
        with environment.begin(write=True) as txn:
            return cls(*(environment.open_db(name, txn=txn) for name in names))

    def figures(self, txn: "lmdb.Transaction[Any]") -> Figures:
        """Return the figures as the transaction sees them."""
        raw = txn.get(_FIGURES_NAME, db=self.meta)
        return Figures() if raw is None else Figures(*_FIGURES.unpack(raw))

    def was_evicted(self, txn: "lmdb.Transaction[Any]", key: PoolKey) -> bool:
        """Return whether this key was evicted, as far as is remembered."""
        slot, mark = _gone_of(key)
        raw = txn.get(slot, db=self.gone)
        return raw is not None and bytes(raw) == mark


class Writing:
    """Changes to a shard within one transaction; nobody sees any before it is committed."""

    def __init__(
        self,
        txn: "lmdb.Transaction[bytes]",
        tables: Tables,
        *,
        capacity_nbytes: int,
        piece_pages: int,
    ) -> None:
        self.figures = tables.figures(txn)
        self._txn = txn
        self._tables = tables
        self._capacity_nbytes = capacity_nbytes
        self._piece_pages = piece_pages

    def finish(self) -> None:
        """Write the figures; the last step."""
        self._txn.put(_FIGURES_NAME, self.figures.pack(), db=self._tables.meta)

    def header(self, key: PoolKey) -> Header | None:
        """Return what is stored under `key`."""
        raw = self._txn.get(key.encode(), db=self._tables.entries)
        return None if raw is None else Header.parse(raw, limit_nbytes=self._capacity_nbytes)

    def touch(self, touched: Mapping[PoolKey, int]) -> None:
        """Note when entries were used."""
        for key, clock in touched.items():
            header = self.header(key)
            if header is None or header is BROKEN or header.clock >= clock:
                continue
            self._txn.delete(age_name(header), db=self._tables.ages)
            self._write_header(key, header._replace(clock=clock))

    def store(self, offers: Sequence[Offer], *, clock: int, checked: bool) -> None:
        """Store `offers` where nothing as long is stored; evict first what would be too much."""
        new: dict[PoolKey, Offer] = {}
        for offer in offers:
            rival = new.get(offer.key) or self.header(offer.key)
            if rival is not None and rival.tokens >= offer.tokens:
                continue
            if isinstance(rival, Header):
                self.drop(offer.key, rival)
            new[offer.key] = offer
        need = sum(charge_of(offer.content.nbytes) for offer in new.values())
        self.evict(self._capacity_nbytes - need)
        for offer in new.values():
            self._write(offer, clock=clock, checked=checked)

    def spare_rival(self, offer: Offer, *, clock: int) -> int | None:
        """Return what an entry counts for that `offer` will replace, and put its eviction off.

        None if it would replace nothing, since as much is stored.
        """
        rival = self.header(offer.key)
        if rival is None or rival is BROKEN:
            return 0
        if rival.tokens >= offer.tokens:
            return None
        self.touch({offer.key: clock})
        return charge_of(rival.nbytes)

    def evict(self, down_to: int, *, at_most: int | None = None) -> int:
        """Evict by age until no more than `down_to` bytes are used; return how many went."""
        given = 0
        cursor = self._txn.cursor(db=self._tables.ages)
        while self.figures.used_nbytes > down_to and cursor.first():
            if at_most is not None and given >= at_most:
                break
            name, key = cursor.key(), _key_of(cursor.value())
            header = self.header(key)
            before = self.figures.used_nbytes
            if header is None or age_name(header) != name:
                self._txn.delete(name, db=self._tables.ages)  # left by a damaged header
                self._discharge(self._drop_stray_pieces(serial_of_age(name)))
            else:
                self.drop(key, header)
                self.figures.evictions += 1
                self._txn.put(*_gone_of(key), db=self._tables.gone)
            given += before - self.figures.used_nbytes
        return given

    def remove(self, key: PoolKey) -> bool:
        """Remove an entry and the memory of its eviction; return whether there was one."""
        slot, mark = _gone_of(key)
        if self._txn.get(slot, db=self._tables.gone) == mark:
            self._txn.delete(slot, db=self._tables.gone)
        header = self.header(key)
        if header is not None:
            self.drop(key, header)
        return header is not None

    def drop(self, key: PoolKey, header: Header) -> None:
        """Take an entry out. Of a broken header the pieces are unknown: its age leads to them."""
        self._txn.delete(key.encode(), db=self._tables.entries)
        if header is BROKEN:
            return
        self._txn.delete(age_name(header), db=self._tables.ages)
        for index in range(len(header.pieces())):
            self._txn.delete(piece_name(header.serial, index), db=self._tables.pieces)
        self._discharge(header.nbytes)

    def drop_damaged(self, key: PoolKey, header: Header) -> None:
        """Take an entry out whose header and pieces do not match."""
        self._txn.delete(key.encode(), db=self._tables.entries)
        self.figures.damaged += 1
        if header is not BROKEN:
            self._txn.delete(age_name(header), db=self._tables.ages)
            self._discharge(self._drop_stray_pieces(header.serial))

    def oldest(self, count: int) -> list[PoolKey]:
        """Return up to `count` keys, least recently used first."""
        keys = []
        with self._txn.cursor(db=self._tables.ages) as cursor:
            for raw in cursor.iternext(keys=False, values=True):
                keys.append(_key_of(raw))
                if len(keys) == count:
                    break
        return keys

    def take_turn(self) -> None:
        """Change something that does not matter, so that the transaction counts as one."""
        self.figures.turns += 1

    def reconcile(self) -> None:
        """Remove what no header, or no age, leads to, and count what is used anew.

        Transactions leave nothing to mend. This is for files that something else has changed.
        """
        sizes: dict[int, int] = {}
        for key, raw in list(self._txn.cursor(db=self._tables.entries)):
            header = Header.parse(raw, limit_nbytes=self._capacity_nbytes)
            if header is BROKEN or self._txn.get(age_name(header), db=self._tables.ages) != key:
                self._txn.delete(key, db=self._tables.entries)
            else:
                sizes[header.serial] = header.nbytes
        self._drop_strays(self._tables.ages, serial_of_age, sizes.keys())
        self._drop_strays(self._tables.pieces, serial_of, sizes.keys())
        self.figures.used_nbytes = sum(map(charge_of, sizes.values()))

    def forget_gone(self) -> None:
        """Forget what was evicted."""
        self._txn.drop(self._tables.gone, delete=False)

    def _write(self, offer: Offer, *, clock: int, checked: bool) -> None:
        nbytes = offer.content.nbytes
        serial = self.figures.next_serial
        self.figures.next_serial += 1
        checksum = Checksum(offer.key, offer.tokens, nbytes) if checked else None
        for index, (start, length) in enumerate(pieces_of(nbytes, self._piece_pages)):
            piece = offer.content[start : start + length]
            if checksum is not None:
                checksum.add(piece)
            name = piece_name(serial, index)
            self._txn.put(name, piece.data, append=True, db=self._tables.pieces)
        value = None if checksum is None else checksum.value()
        header = Header(serial, offer.tokens, nbytes, clock, value, self._piece_pages)
        self._write_header(offer.key, header)
        self.figures.used_nbytes += charge_of(nbytes)

    def _write_header(self, key: PoolKey, header: Header) -> None:
        name = key.encode()
        self._txn.put(name, header.pack(), db=self._tables.entries)
        self._txn.put(age_name(header), name, db=self._tables.ages)

    def _drop_stray_pieces(self, serial: int) -> int:
        """Drop all pieces of an entry whose header is lost; return how many bytes they had."""
        nbytes = 0
        with self._txn.cursor(db=self._tables.pieces) as cursor:
            while cursor.set_range(piece_name(serial, 0)) and serial_of(cursor.key()) == serial:
                nbytes += len(cursor.value())
                cursor.delete()
        return nbytes

    def _drop_strays(
        self, table: Any, serial_in: Callable[[bytes], int], known: Collection[int]
    ) -> None:
        with self._txn.cursor(db=table) as cursor:
            names = [name for name in cursor.iternext(values=False) if serial_in(name) not in known]
        for name in names:
            self._txn.delete(name, db=table)

    def _discharge(self, nbytes: int) -> None:
        self.figures.used_nbytes = max(0, self.figures.used_nbytes - charge_of(nbytes))


def _key_of(raw: bytes) -> PoolKey:
    """Return the key that was stored; one that is damaged is no entry's, and no error."""
    return PoolKey(raw.decode(errors="replace"))


def _gone_of(key: PoolKey) -> tuple[bytes, bytes]:
    digest = xxhash.xxh3_64_intdigest(key.encode())
    raw = _GONE.pack(digest % _GONE_SLOTS, digest)
    return raw[:2], raw[2:]
