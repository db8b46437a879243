"""The directory that a pool lives in: whose it is, and who uses it."""

import fcntl
import os
import stat
from contextlib import suppress
from pathlib import Path

from ems.common.exception import InvalidArgument, PoolUnavailable
from ems.pool.lmdb.locks import OPENING_SECONDS, OWN_FILE, lock_within

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_USERS = "users"


class Directory:
    """A directory of ours alone, open and locked: whoever opens the pool does so by itself.

    Each process that uses the pool has a shared lock on the file `users`, so the one that gets an
    exclusive lock knows that it is alone. The kernel takes locks back from whoever dies.
    """

    def __init__(self, path: Path) -> None:
        """Open the directory, made where it is missing.

        Raises:
            InvalidArgument: it is a link, belongs to another user, or is open to others.
            PoolUnavailable: the system refused.
        """
        self.path = path
        self.made = False
        """Whether there was none."""
        self._users_path = path / _USERS
        self._users = -1
        try:
            self._descriptor = self._locked()
            try:
                self._users = os.open(_USERS, OWN_FILE, 0o600, dir_fd=self._descriptor)
                self.alone = self._lock_alone()
            except BaseException:
                self.close()
                raise
        except OSError as error:
            raise PoolUnavailable(f"the pool {path}: {error}") from error
        self._mark = _identity(os.fstat(self._users))

    def share(self) -> None:
        """Let others open the pool, and be known as one who uses it."""
        fcntl.flock(self._users, fcntl.LOCK_SH)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def is_current(self) -> bool:
        """Return whether this still is what others find under the path."""
        try:
            return _identity(self._users_path.lstat()) == self._mark
        except OSError:
            return False

    def read(self, name: str) -> str | None:
        """Return the text of a file, or None where there is none."""
        try:
            descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=self._descriptor)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as file:
            return file.read()

    def write(self, name: str, text: str) -> None:
        """Write a file as a whole."""
        new = f"{name}.new"
        self.unlink(new)
        descriptor = os.open(new, OWN_FILE | os.O_EXCL, 0o600, dir_fd=self._descriptor)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(new, name, src_dir_fd=self._descriptor, dst_dir_fd=self._descriptor)

    def unlink(self, name: str) -> None:
        """Remove a file, if there is one."""
        with suppress(FileNotFoundError):
            os.unlink(name, dir_fd=self._descriptor)

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [path.name for path in self.path.iterdir()]

    def remove(self) -> None:
        """Remove the directory with what is in it; for one that was made in vain."""
        for name in self.names():
            self.unlink(name)
        self.path.rmdir()

    def close(self) -> None:
        """Let go of it, and of all locks."""
        for descriptor in (self._users, self._descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._users = self._descriptor = -1

    def _locked(self) -> int:
        while True:
            with suppress(FileExistsError):
                self.path.mkdir(0o700)
                self.made = True
            descriptor = _open_own(self.path)
            if not lock_within(descriptor, OPENING_SECONDS):
                os.close(descriptor)
                raise PoolUnavailable(
                    f"the pool {self.path} is being opened by a process that seems to have stopped"
                )
            with suppress(FileNotFoundError):
                there = self.path.lstat()
                if _identity(there) == _identity(os.fstat(descriptor)):
                    return descriptor
            os.close(descriptor)  # removed while this process waited

    def _lock_alone(self) -> bool:
        try:
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _open_own(path: Path) -> int:
    try:
        descriptor = os.open(path, _DIRECTORY)
    except NotADirectoryError as error:
        raise InvalidArgument(
            f"the pool {path} is a link or a file; it must be a directory"
        ) from error
    status = os.fstat(descriptor)
    mode = stat.S_IMODE(status.st_mode)
    if status.st_uid == os.geteuid() and not mode & 0o077:
        return descriptor
    os.close(descriptor)
    if status.st_uid != os.geteuid():
        raise InvalidArgument(
            f"the pool {path} belongs to user {status.st_uid}, and this process is user "
            f"{os.geteuid()}; choose another path"
        )
    raise InvalidArgument(
        f"the pool {path} is open to other users (mode {mode:o}); set it to 700, or choose "
        "another path"
    )


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino
