"""Whether the cluster stores and returns bytes, tried with a few of them."""

import ctypes
import threading
import time
from itertools import count

from ems.common.exception import PoolUnavailable
from ems.pool.mooncake import codes
from ems.pool.mooncake.library import Library

HEALTH_NBYTES = 4096
_SIZE = 64
_PAUSE_SECONDS = 0.02


class Health:
    """Stores, reads and removes one small object under a name of its own."""

    def __init__(self, library: Library, address: int, name: str, where: str) -> None:
        self._library = library
        self._written, self._read = address, address + _SIZE
        self._name = name
        self._where = where
        self._turns = count(1)
        self._lock = threading.Lock()

    def check(self, *, deadline: float) -> None:
        """Return if what was stored came back.

        Raises:
            PoolUnavailable: it did not, as where nothing may be evicted for it until the deadline,
                or another check still hangs.
        """
        if not self._lock.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise PoolUnavailable(f"{self._where}: another check has not ended")
        try:
            self._check(deadline)
        finally:
            self._lock.release()

    def _check(self, deadline: float) -> None:
        why = self._library.healthy()
        if why is not None:
            raise PoolUnavailable(f"{self._where}: {why}")
        content = f"{self._name[-32:]}{next(self._turns):032x}".encode()
        ctypes.memmove(self._written, content, _SIZE)
        ctypes.memset(self._read, 0, _SIZE)
        self._library.remove([self._name])  # what a check that failed has left
        self._expect("storing", 0, self._put(deadline))
        self._expect("reading", _SIZE, *self._library.get([self._name], [self._read], [_SIZE]))
        self._library.remove([self._name])
        if ctypes.string_at(self._read, _SIZE) != content:
            raise PoolUnavailable(f"{self._where}: other bytes came back than were stored")

    def _put(self, deadline: float) -> int:
        while True:
            [code] = self._library.put([self._name], [self._written], [_SIZE])
            if code != codes.NO_ROOM or time.monotonic() + _PAUSE_SECONDS > deadline:
                return code
            time.sleep(_PAUSE_SECONDS)

    def _expect(self, operation: str, expected: int, code: int) -> None:
        if code != expected:
            raise codes.failure(f"the check of its health, {operation}", code, self._where)
