"""One line per call in a file, for those who ask for it.

ENABLE_CC_PROFILING=1 turns it on, EMS_SDK_LOG names the directory (the SDK's variables and its
default, /var/log/ems). The file is `ems_cc_<pid>.log`, 16 MiB, with three older ones kept.
"""

import errno
import json
import logging
import os
import time
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from pathlib import Path

from ems.telemetry.tally import CallRecord

_log = logging.getLogger("ems")
_NBYTES = 16 << 20
_OLDER = 3


class _OwnFiles(RotatingFileHandler):
    """Writes to files of this user alone: the directory may be one that others write to."""

    def _open(self) -> TextIOWrapper:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(self.baseFilename, flags, 0o600)
        if os.fstat(file).st_uid != os.geteuid():
            os.close(file)
            raise PermissionError(errno.EPERM, "the file belongs to another user")
        return TextIOWrapper(os.fdopen(file, "ab"), encoding="utf-8", line_buffering=True)


class ProfileLog:
    """Writes call records as JSON lines."""

    def __init__(self, directory: Path) -> None:
        """Open the file.

        Raises:
            OSError: the directory cannot be made or written to.
        """
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"ems_cc_{os.getpid()}.log"
        self._file = _OwnFiles(path, maxBytes=_NBYTES, backupCount=_OLDER, delay=False)
        self._file.handleError = self._give_up  # type: ignore[method-assign]
        self._broken = False

    def add(self, call: CallRecord) -> None:
        """Write a line; a full disk ends the log, not the call."""
        if self._broken:
            return
        line = {
            "time": time.time(),
            "operation": call.operation,
            "hashes": call.hashes,
            "success": call.success,
            "nbytes": call.nbytes,
            "seconds": call.seconds,
            "phases": dict(call.phases),
            "fates": dict(call.fates),
            "code": None if call.code is None else call.code.name,
        }
        record = logging.LogRecord("ems", logging.INFO, "", 0, json.dumps(line), None, None)
        self._file.handle(record)

    def close(self) -> None:
        """Close the file; calls that end later are not written."""
        self._broken = True  # a handler that is closed would open its file again
        self._file.close()

    def _give_up(self, record: logging.LogRecord) -> None:  # noqa: ARG002
        self._broken = True
        _log.warning(
            "the profile of calls has ended: %s cannot be written", self._file.baseFilename
        )


def profile_log() -> ProfileLog | None:
    """Return the log that the environment asks for; None without, or with a warning if it fails."""
    if os.environ.get("ENABLE_CC_PROFILING") != "1":
        return None
    directory = Path(os.environ.get("EMS_SDK_LOG") or "/var/log/ems")
    try:
        return ProfileLog(directory)
    except OSError as error:
        _log.warning("no profile of calls: %s: %s", directory, error.strerror)
        return None
