"""Locks between processes that are not waited for without end.

The kernel takes a lock back from whoever dies, but not from whoever is stopped; LMDB's own lock of
a writer knows no limit of time, so each write takes one of these first.
"""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ems.common.exception import PoolUnavailable

WAIT_SECONDS = 2.0
"""Some hundred times what the longest write takes."""
OPENING_SECONDS = 30.0
"""Whoever makes a pool first takes all of its files from the file system."""
OWN_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
"""How the pool opens files of its own: made where they are missing, no link followed."""
_SHORT_WAIT_SECONDS = 0.02
_LONGEST_NAP_SECONDS = 0.001


class WriterBusy(PoolUnavailable):
    """Another process has been writing for longer than anyone waits for it."""


def lock_within(descriptor: int, seconds: float) -> bool:
    """Take the lock of an open file for this process alone; return whether it came in time."""
    until = time.monotonic() + seconds
    nap = 20e-6
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP_SECONDS)
        else:
            return True


class WriterLock:
    """Who writes a file: one thread of one process."""

    def __init__(self, path: Path) -> None:
        """Open the file of the lock, made where it is missing; OSError where that fails."""
        self._path = path
        self._threads = threading.Lock()
        self._patience = WAIT_SECONDS
        self._descriptor = os.open(path, OWN_FILE, 0o600)

    @contextmanager
    def held(self, *, patiently: bool = True) -> Iterator[None]:
        """Be the one who writes. Whoever waited in vain waits shortly the next time.

        Raises:
            WriterBusy: another one did not end in time.
        """
        patience = self._patience if patiently else _SHORT_WAIT_SECONDS
        until = time.monotonic() + patience
        if not self._threads.acquire(timeout=patience):
            raise self._busy()
        try:
            if not lock_within(self._descriptor, until - time.monotonic()):
                if patiently:
                    self._patience = _SHORT_WAIT_SECONDS
                raise self._busy()
            self._patience = WAIT_SECONDS
            try:
                yield
            finally:
                fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        finally:
            self._threads.release()

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _busy(self) -> WriterBusy:
        return WriterBusy(
            f"the pool file that {self._path} guards is not free to be written; a process that "
            "writes to it seems to have stopped"
        )
