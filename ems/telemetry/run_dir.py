"""The directory in which processes leave their descriptions, and how they are read."""

import json
import os
import platform
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SUFFIX = ".json"
_UNFINISHED_SECONDS = 60
"""After which a file that is half written has lost its writer."""
_FIRST_NAMESPACE = 0xEFFFFFFC
"""PROC_PID_INIT_INO of Linux: where pids are counted outside of containers."""
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


class RunDirError(Exception):
    """The directory cannot be used; the text says why."""


def default_run_dir() -> Path:
    """Return EMS_RUN_DIR, or this user's directory on /dev/shm; an absolute path."""
    named = Path(os.environ.get("EMS_RUN_DIR") or f"/dev/shm/ems-{os.getuid()}")  # noqa: S108
    return named.absolute()


def open_run_dir(path: Path) -> None:
    """Make the directory, or see that it is ours alone.

    Raises:
        RunDirError: it cannot be made, is a link, or others own it or may write to it.
    """
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.lstat()
    except OSError as error:
        raise RunDirError(f"{path} cannot be made: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise RunDirError(f"{path} is not a directory (a link is not followed)")
    if status.st_uid != os.getuid():
        raise RunDirError(f"{path} belongs to user {status.st_uid}, not to {os.getuid()}")
    if status.st_mode & _WRITABLE_BY_OTHERS:
        mode = stat.S_IMODE(status.st_mode)
        raise RunDirError(f"{path} can be written to by other users (mode {mode:04o}); chmod 700")


def write_description(path: Path, description: dict[str, Any]) -> None:
    """Replace a description file as a whole.

    Raises:
        RunDirError: it cannot be written.
    """
    text = json.dumps(description)
    try:
        handle, name = tempfile.mkstemp(prefix=".", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            Path(name).replace(path)
        except OSError:
            Path(name).unlink()
            raise
    except OSError as error:
        raise RunDirError(f"{path} cannot be written: {error.strerror}") from error


def description_path(directory: Path, pid: int) -> Path:
    """Return where a process, as this one counts pids, leaves its description.

    Containers that share the directory count by themselves, each from 1: theirs have names with
    the number of their namespace.
    """
    try:
        namespace = Path("/proc/self/ns/pid").stat().st_ino
    except OSError:
        namespace = _FIRST_NAMESPACE
    mark = "" if namespace == _FIRST_NAMESPACE else f"-{namespace}"
    return directory / f"{pid}{mark}{_SUFFIX}"


@dataclass(frozen=True)
class LiveDescription:
    """A description found in a run directory."""

    path: Path
    content: dict[str, Any]
    alive: bool
    """Whether the process that wrote it still runs."""

    @property
    def is_of_here(self) -> bool:
        """Whether it was written on this host, and in this container if it is one."""
        mine = description_path(self.path.parent, int(self.content["pid"]))
        return self.path == mine and self.content.get("host") == platform.node()


def descriptions(directory: Path) -> Iterator[LiveDescription]:
    """Yield what processes have left, in the order of their pids; reading touches none of them.

    Files that are no descriptions, or belong to somebody else, are passed over.
    """
    for path in sorted(directory.glob(f"*{_SUFFIX}"), key=lambda path: (len(path.name), path)):
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError, OverflowError):
            status = path.lstat()
            if status.st_uid != os.getuid() or not stat.S_ISREG(status.st_mode):
                continue
            content = json.loads(path.read_text(encoding="utf-8"))
            start = process_start(int(content["pid"]))
            alive = start is not None and start == content["process_start"]
            yield LiveDescription(path, content, alive)


def clear_away(directory: Path, *, keep: int) -> None:
    """Remove what killed processes of here have left, but for the newest `keep` descriptions.

    Those are for `ems-cli inspect`, which shows how processes ended. A host that starts a failing
    process again and again must not fill its memory with them.
    """
    dead = [found.path for found in descriptions(directory) if not found.alive and found.is_of_here]
    ages = {path: _age(path) for path in dead}
    dead.sort(key=lambda path: ages[path])
    unfinished = [path for path in directory.glob(".*") if _age(path) > _UNFINISHED_SECONDS]
    for path in (*dead[keep:], *unfinished):
        with suppress(OSError):
            path.unlink()


def _age(path: Path) -> float:
    """Return the seconds since a file was written; none where it is gone."""
    try:
        return time.time() - path.lstat().st_mtime
    except OSError:
        return 0.0


def process_start(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not run.

    With the pid it names a process even where pids are used again. From field 22 of
    /proc/PID/stat (proc(5)).
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    state, start = fields[0], int(fields[19])
    return None if state in "ZX" else start
