"""Reads and writes of one LMDB file: what fails is reported, what finds no room is tried again."""

import os
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import lmdb

from ems.common.exception import PoolUnavailable
from ems.pool.lmdb.locks import WriterLock
from ems.pool.lmdb.record import LONG_PIECE_PAGES, SHORT_PIECE_PAGES
from ems.pool.lmdb.space import batch_nbytes, map_nbytes, refuse_links, reserve_space
from ems.pool.lmdb.writing import Tables, Writing

_FULL_SECONDS = 5.0
_EVICTING_ATTEMPTS = (4, 6, 8)
_SHORT_WRITES = 256
_MAX_READERS = 1024

_Result = TypeVar("_Result")


class Transactions:
    """A file of the pool, open, and its transactions.

    Each write is one: after a kill at any moment the file is as before it, or as after it.
    """

    def __init__(self, path: Path, *, capacity_nbytes: int) -> None:
        """Open the file, made where it is missing, and reserve its space.

        Raises:
            PoolUnavailable: the file system is full, or the file is not to be used.
        """
        self.map_full = 0
        """How often LMDB found no room for short pieces; the slack is there to have it."""
        self.batch_nbytes = batch_nbytes(capacity_nbytes)
        self._path = path
        self._capacity_nbytes = capacity_nbytes
        self._short_writes = 0
        """For so many more writes pieces are short, since there was no room for a long one."""
        nbytes = map_nbytes(capacity_nbytes)
        refuse_links(path, Path(f"{path}-lock"))
        with self._reported(), ExitStack() as undo:
            self._writer = WriterLock(path.with_suffix(".mdb-writer"))
            undo.callback(self._writer.close)
            self.environment = _opened(path, nbytes)
            undo.callback(self.environment.close)
            reserve_space(path, nbytes)
            self.environment.reader_check()
            with self._writer.held():
                self.tables = Tables.open(self.environment)
            undo.pop_all()

    @contextmanager
    def reading(self) -> Iterator["lmdb.Transaction[memoryview]"]:
        """See the file as it is now, whatever is written meanwhile."""
        with self._reported(), self.environment.begin(buffers=True) as txn:
            yield txn

    def write(self, change: Callable[[Writing], _Result], *, patiently: bool = True) -> _Result:
        """Run `change` in a write transaction, again where LMDB found no room.

        A reader at work keeps freed pages only for a moment. If it is not that, pages lie so
        scattered that more has to go. Who is not patient is told at once.

        Raises:
            WriterBusy: another writer seems to have stopped.
            PoolUnavailable: the file cannot be written, or had no room for some seconds.
        """
        until = time.monotonic() + _FULL_SECONDS
        attempt = 0
        while True:
            try:
                return self._write_once(change, patiently=patiently)
            except _Full as error:
                if not patiently:
                    raise
                if not self._short_writes:
                    self._short_writes = _SHORT_WRITES
                    continue
                self.map_full += 1
                if time.monotonic() > until:
                    raise PoolUnavailable(
                        f"the pool file {self._path} has had no room for {_FULL_SECONDS:g} s; a "
                        f"process that reads it seems to have stopped: {error}"
                    ) from error
            with self._reported():
                self.environment.reader_check()
            time.sleep(min(0.001 * 2**attempt, 0.1))
            attempt += 1
            if attempt in _EVICTING_ATTEMPTS:
                with suppress(_Full):
                    self._write_once(
                        lambda writing: writing.evict(0, at_most=self.batch_nbytes), patiently=True
                    )

    def probe(self, name: bytes, content: bytes) -> None:
        """Write a few bytes, read them back and remove them.

        Raises:
            PoolUnavailable: they were not the same, or could not be written or read.
        """
        meta = self.tables.meta
        with self._reported(), self._writer.held():
            with self.environment.begin(write=True) as txn:
                txn.put(name, content, db=meta)
            with self.environment.begin() as txn:
                found = txn.get(name, db=meta)
            with self.environment.begin(write=True) as txn:
                txn.delete(name, db=meta)
        if found != content:
            raise PoolUnavailable(f"the pool file {self._path} gave back other bytes than written")

    def close(self) -> None:
        """Let go of the file. Nothing of it may be in use."""
        self.environment.close()
        self._writer.close()

    def _write_once(self, change: Callable[[Writing], _Result], *, patiently: bool) -> _Result:
        with (
            self._reported(),
            self._writer.held(patiently=patiently),
            self.environment.begin(write=True) as txn,
        ):
            writing = Writing(
                txn,
                self.tables,
                capacity_nbytes=self._capacity_nbytes,
                piece_pages=SHORT_PIECE_PAGES if self._short_writes else LONG_PIECE_PAGES,
            )
            result = change(writing)
            writing.finish()
        self._short_writes = max(0, self._short_writes - 1)
        return result

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Turn what LMDB and the file system raise into our exceptions."""
        try:
            yield
        except lmdb.MapFullError as error:
            raise _Full(str(error)) from error
        except (lmdb.Error, OSError, struct.error) as error:
            raise PoolUnavailable(f"the pool file {self._path}: {error}") from error


class _Full(PoolUnavailable):
    """LMDB found no room in the file."""


def _opened(path: Path, nbytes: int) -> lmdb.Environment:
    try:
        return lmdb.open(
            str(path),
            map_size=nbytes,
            subdir=False,
            mode=0o600,
            max_dbs=8,
            max_readers=_MAX_READERS,
            writemap=True,
            map_async=True,
            sync=False,
            metasync=False,
            meminit=False,
            readahead=False,
        )
    except lmdb.LockError as error:  # LMDB knows its readers by their pids
        raise PoolUnavailable(
            f"the pool file {path} is used by another process with this one's pid, {os.getpid()}, "
            "which must be in another container: have them share their pids (--pid=host), or not "
            f"the pool: {error}"
        ) from error
