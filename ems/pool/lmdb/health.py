"""Whether a pool answers: asked on a thread of its own, which may wait longer than its caller."""

import os
import secrets
import threading
import time

from ems.common.exception import PoolUnavailable
from ems.pool.lmdb.home import Home
from ems.pool.threads import started

_PROBE_NBYTES = 64


class Health:
    """Writes a few bytes into each shard under a name of this process, and reads them back."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._done.set()
        self._failure: Exception | None = None

    def check(self, *, deadline: float | None) -> None:
        """Return when every shard has answered.

        Raises:
            PoolUnavailable: one did not, gave other bytes, or took longer than to the deadline.
        """
        with self._lock:
            if self._done.is_set():
                self._failure = None
                try:
                    self._done.clear()
                    started(self._probe, name="ems-lmdb-health")
                except BaseException:
                    self._done.set()
                    raise
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._done.wait(left):
            raise PoolUnavailable(
                f"the pool {self._home.path} did not write and read back {_PROBE_NBYTES} bytes in "
                "time; a process that writes to it seems to have stopped"
            )
        if self._failure is not None:
            raise PoolUnavailable(str(self._failure)) from self._failure

    def _probe(self) -> None:
        name, content = f"health-{os.getpid()}".encode(), secrets.token_bytes(_PROBE_NBYTES)
        try:
            with self._home.shards() as shards:
                shards.probe(name, content)
        except Exception as error:  # noqa: BLE001 - the caller of `check` gets it
            self._failure = error
        finally:
            self._done.set()
