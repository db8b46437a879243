"""Keeps the counters of this process, and shows them: in its description, and in the profile."""

import logging
import os
import platform
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from ems.common.exception import EmsException
from ems.telemetry.counters import Counters
from ems.telemetry.profile_log import profile_log
from ems.telemetry.run_dir import (
    RunDirError,
    clear_away,
    default_run_dir,
    description_path,
    open_run_dir,
    process_start,
    write_description,
)
from ems.telemetry.tally import CallRecord

_log = logging.getLogger("ems")
_SCHEMA = 1
_REFRESH_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
DEAD_KEPT = 16
"""Descriptions of killed processes that a starting one leaves for `ems-cli inspect`."""
_PACKAGES = ("ems", "torch", "torch_npu")


class Recorder:
    """Takes records of calls from any thread; writes the description at most once a second.

    `describe` returns what only others know: registration, pool. It is called on the recorder's
    thread; where it raises EmsException, since the pool is away, what it said last stays. A run
    directory that cannot be used is warned about once, and costs nothing but the description.
    """

    def __init__(self, about: dict[str, Any], describe: Callable[[], dict[str, Any]]) -> None:
        """Start writing; `about` is what never changes."""
        self.counters = Counters()
        self._about = {**_process(), **about}
        self._describe = describe
        self._described: dict[str, Any] | None = None
        self._profile = profile_log()
        self._directory = default_run_dir()
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._writer = threading.Thread(target=self._write, name="ems-telemetry", daemon=True)
        self._writer.start()

    def add(self, call: CallRecord) -> None:
        """Count a call that has ended."""
        self.counters.add(call)
        if self._profile is not None:
            self._profile.add(call)
        if not self._changed.is_set():
            self._changed.set()

    def touch(self) -> None:
        """Have the description written anew."""
        self._changed.set()

    def close(self) -> None:
        """Remove the description and end."""
        self._closed.set()
        self._changed.set()
        self._writer.join(_CLOSE_SECONDS)  # a pool that hangs must not hang the process
        if self._profile is not None:
            self._profile.close()

    def _write(self) -> None:
        path = description_path(self._directory, os.getpid())
        written = False
        try:
            while self._changed.wait() and not self._closed.is_set():
                self._changed.clear()
                open_run_dir(self._directory)
                if self._look_again():
                    write_description(path, self._description())
                    if not written:
                        clear_away(self._directory, keep=DEAD_KEPT)
                    written = True
                self._closed.wait(_REFRESH_SECONDS)
        except RunDirError as error:
            _log.warning("ems-cli inspect will not see this process: %s", error)
        except Exception:  # noqa: BLE001 - telemetry never takes a process down
            _log.exception("the description of this process is not written any more")
        if written:
            with suppress(OSError):
                path.unlink()

    def _look_again(self) -> bool:
        """Ask what only others know, later again where none answers; return whether it is known."""
        try:
            self._described = self._describe()
        except EmsException as error:
            _log.debug("the description of this process keeps what it says: %s", error)
            self._changed.set()
        return self._described is not None

    def _description(self) -> dict[str, Any]:
        return {
            **self._about,
            **(self._described or {}),
            "counters": self.counters.snapshot(),
            "written": time.time(),
        }


def _process() -> dict[str, Any]:
    return {
        "schema": _SCHEMA,
        "pid": os.getpid(),
        "process_start": process_start(os.getpid()),
        "started": time.time(),
        "host": platform.node(),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "python_hash_seed": os.environ.get("PYTHONHASHSEED"),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
