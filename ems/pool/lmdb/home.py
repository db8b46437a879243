"""The files of a pool: opened, agreed upon, and opened anew when others have made them anew."""

import json
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from ems.common.exception import InvalidArgument, PoolUnavailable, shown
from ems.common.units import format_nbytes
from ems.pool.lmdb.directory import Directory
from ems.pool.lmdb.prefault import Prefault
from ems.pool.lmdb.settings import LmdbSettings
from ems.pool.lmdb.shard import Shard
from ems.pool.lmdb.shards import Shards
from ems.pool.lmdb.space import map_nbytes

_LOG = logging.getLogger(__name__)

_LAYOUT = 3
_AGREEMENT = "pool.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CAPACITY_NBYTES = 8 << 30
_SHARDS = 4
_MOST_SHARDS = 64
_OWN = re.compile(r"users|pool\.json(\.new)?|[0-9]+\.mdb(-lock|-writer)?")
"""The names of a pool's files."""
_SHARD_NBYTES = 256 << 20
"""Below this a shard is not worth its slack."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """What all processes that share a pool must agree on; kept beside the files."""

    capacity_nbytes: int
    shards: int
    boot: str
    """Which boot of the host the files are from: they are not synchronised with a disk, so after
    another boot nobody knows what they hold."""
    layout: int = _LAYOUT

    @classmethod
    def of(cls, capacity_nbytes: int, shards: int | None = None) -> "Agreement":
        """Return what a new pool of this capacity agrees on."""
        if shards is None:
            shards = min(_SHARDS, max(1, capacity_nbytes // _SHARD_NBYTES))
        return cls(capacity_nbytes, shards, _BOOT.read_text().strip())

    @classmethod
    def parse(cls, text: str | None) -> "Agreement | None":
        """Return what was agreed on, or None where that is not known."""
        try:
            found = None if text is None else cls(**json.loads(text))
        except (TypeError, ValueError, RecursionError):
            return None
        return found if found is not None and found.is_possible() else None

    def is_possible(self) -> bool:
        """Whether these are values that a pool can have; they come from a file."""
        numbers: tuple[object, ...] = (self.capacity_nbytes, self.shards, self.layout)
        boot: object = self.boot
        return (
            all(type(number) is int for number in numbers)
            and isinstance(boot, str)
            and 0 < self.shards <= _MOST_SHARDS
            and self.shards <= self.capacity_nbytes < 1 << 63
        )

    @property
    def shard_nbytes(self) -> int:
        """The capacity of each shard."""
        return self.capacity_nbytes // self.shards

    @property
    def file_nbytes(self) -> int:
        """What all files take from the file system."""
        return self.shards * map_nbytes(self.shard_nbytes)


class _Opened:
    """The files as they were when this process opened them."""

    def __init__(self, path: Path, wanted: Agreement | None, *, checked: bool) -> None:
        self.users = 0
        self.retired = False
        self.shards = Shards([])
        self.prefault: Prefault | None = None
        self._directory = Directory(path)
        self._checked = checked
        try:
            self.agreement = self._agree(wanted)
            self._directory.share()
            self.prefault = Prefault(self._paths(self.agreement))
        except OSError as error:
            self.close()
            raise PoolUnavailable(f"the pool {path}: {error}") from error
        except BaseException:
            self.close()
            raise

    def is_current(self) -> bool:
        return self._directory.is_current()

    def close(self) -> None:
        if self.prefault is not None:
            self.prefault.stop()
        self.shards.close()
        self._directory.close()

    def _paths(self, agreed: Agreement) -> list[Path]:
        return [self._directory.path / f"{index}.mdb" for index in range(agreed.shards)]

    def _agree(self, wanted: Agreement | None) -> Agreement:
        found = Agreement.parse(self._directory.read(_AGREEMENT))
        agreed = self._settled(found, wanted)
        if agreed == found:
            self._open_shards(agreed)
            if self._directory.alone:
                self.shards.reconcile()
            return agreed
        self._refuse_strangers(known=found is not None)
        if found is not None:
            _LOG.warning(
                "the pool %s is made anew: it is of another size, layout or boot",
                self._directory.path,
            )
        try:
            self._make(agreed)
        except BaseException:
            self._unmake()
            raise
        return agreed

    def _settled(self, found: Agreement | None, wanted: Agreement | None) -> Agreement:
        if found is None or found.boot != Agreement.of(1).boot or found.layout != _LAYOUT:
            settled = wanted or Agreement.of(_CAPACITY_NBYTES)
        else:
            settled = wanted or found
        if settled != found and not self._directory.alone:
            there = "unknown" if found is None else format_nbytes(found.capacity_nbytes)
            raise InvalidArgument(
                f"the pool {self._directory.path} is in use with a capacity of {there}; this "
                f"process wants {format_nbytes(settled.capacity_nbytes)} (leave out ?capacity= to "
                "take what there is)"
            )
        return settled

    def _refuse_strangers(self, *, known: bool) -> None:
        """Return if all files are a pool's: it is not made in the place of somebody's own."""
        strangers = [name for name in self._directory.names() if not _OWN.fullmatch(name)]
        if not strangers:
            return
        if not known and not self._directory.read("users"):
            self._directory.unlink("users")  # this process has just made it
        raise InvalidArgument(
            f"the pool {self._directory.path} cannot be made: the directory has what is not a "
            f"pool's, such as {shown(min(strangers))}; choose another path"
        )

    def _make(self, agreed: Agreement) -> None:
        for name in self._directory.names():
            if name != "users":
                self._directory.unlink(name)
        self._check_space(agreed)
        self._open_shards(agreed)
        self._directory.write(_AGREEMENT, json.dumps(asdict(agreed)))

    def _unmake(self) -> None:
        """Leave nothing of a pool that could not be made."""
        self.shards.close()
        self._directory.remove()

    def _check_space(self, agreed: Agreement) -> None:
        status = os.statvfs(self._directory.path)
        free = status.f_bavail * status.f_frsize
        if free < agreed.file_nbytes:
            raise PoolUnavailable(
                f"the pool {self._directory.path} of {format_nbytes(agreed.capacity_nbytes)} needs "
                f"files of {format_nbytes(agreed.file_nbytes)}; {format_nbytes(free)} are free on "
                "that file system: choose a smaller ?capacity=, another path, or (in a container) "
                "a larger --shm-size"
            )

    def _open_shards(self, agreed: Agreement) -> None:
        opened: list[Shard] = []
        self.shards = Shards(opened)
        opened.extend(
            Shard(path, capacity_nbytes=agreed.shard_nbytes, checked=self._checked)
            for path in self._paths(agreed)
        )


class Home:
    """The shards of a pool, for any thread; closed when the last one that uses them is done."""

    def __init__(self, settings: LmdbSettings) -> None:
        """Open the pool, made where there is none; no capacity takes the one there is.

        Raises:
            InvalidArgument: the directory is not ours alone, or the pool in it is in use and has
                another capacity.
            PoolUnavailable: there is not enough space, or a file is not to be used; a pool that
                could not be made leaves nothing behind.
        """
        self.path = settings.path
        self._wanted = None
        if settings.capacity_nbytes is not None:
            self._wanted = Agreement.of(settings.capacity_nbytes, settings.shards)
        self._checked = settings.checked
        self._lock = threading.Lock()
        self._closed = False
        self._opened = _Opened(self.path, self._wanted, checked=self._checked)

    @property
    def capacity_nbytes(self) -> int:
        """What entries may take together."""
        return self._opened.agreement.capacity_nbytes

    @contextmanager
    def shards(self) -> Iterator[Shards]:
        """Use the shards; opened anew where another process has removed or remade the files.

        Raises:
            PoolUnavailable: the pool is closed, or cannot be opened anew.
        """
        opened = self._enter()
        try:
            yield opened.shards
        finally:
            self._leave(opened)

    def close(self) -> None:
        """Let go of the files as soon as no thread uses them; waits for nothing."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._retire()

    def _enter(self) -> _Opened:
        with self._lock:
            if self._closed:
                raise PoolUnavailable("the pool is closed")
            if not self._opened.is_current():
                self._open_anew()
            self._opened.users += 1
            return self._opened

    def _leave(self, opened: _Opened) -> None:
        with self._lock:
            opened.users -= 1
            if opened.retired and not opened.users:
                opened.close()

    def _open_anew(self) -> None:
        _LOG.warning("the pool %s has been removed by someone; it is opened anew", self.path)
        try:
            new = _Opened(self.path, self._wanted, checked=self._checked)
        except InvalidArgument as error:
            raise PoolUnavailable(f"the pool was removed: {error}") from error
        self._retire()
        self._opened = new

    def _retire(self) -> None:
        self._opened.retired = True
        if not self._opened.users:
            self._opened.close()
