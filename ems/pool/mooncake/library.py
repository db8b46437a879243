"""Mooncake's client behind a guard: the only importer of `mooncake`.

A call before setup, after a failed one or after close ends the process (SIGSEGV), as does a close
during a call. So each call passes here: it is refused unless the client is set up, and close waits
for the calls that are running.
"""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ems.common.exception import InvalidArgument, PoolUnavailable
from ems.pool.mooncake.codes import failure
from ems.pool.mooncake.settings import MooncakeSettings

# Read at the import, once. TRACE, INFO, WARNING or ERROR; unset, each client writes 18 lines.
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")

try:
    from mooncake import store as _store
except ModuleNotFoundError:
    raise
except ImportError as error:
    raise InvalidArgument(
        f"the Python package mooncake does not load: {error}; on Debian, apt-get install "
        "libibverbs1 libcurl4 libnuma1; the -npu package also needs CANN"
    ) from error

_NO_COPYING_NBYTES = 0
"""Memory for calls that copy through Mooncake; all calls here are zero-copy."""


@dataclass(frozen=True, slots=True)
class Located:
    """Where the master says that an object is; equal values mean the same object in practice."""

    size: int
    address: int
    endpoint: str
    """The node's data port; "" where it is on a disk."""


class Library:
    """One client of a Mooncake cluster."""

    def __init__(self, settings: MooncakeSettings) -> None:
        self._settings = settings
        self._store: Any = None
        self._idle = threading.Condition()
        self._running = 0

    def setup(self, host: str) -> None:
        """Join the cluster as `host`. May block for 90 s where the master dies meanwhile.

        Raises:
            PoolUnavailable: it did not work; this object is of no further use.
        """
        settings = self._settings
        if settings.protocol == "ascend":
            _check_npu_build(settings)
        store = _store.MooncakeDistributedStore()
        code = store.setup(
            host,
            "P2PHANDSHAKE",
            settings.segment_nbytes,
            _NO_COPYING_NBYTES,
            settings.protocol,
            settings.device,
            settings.master,
        )
        if code:
            raise failure("joining", code, settings.master)
        with self._idle:
            self._store = store

    def close(self) -> None:
        """Leave the cluster once no call is running any more; takes a second or two."""
        with self._idle:
            store, self._store = self._store, None
            while self._running:
                self._idle.wait()
        if store is not None:
            store.close()

    def register(self, address: int, nbytes: int) -> None:
        """Let the network reach this memory until `close`.

        Raises:
            PoolUnavailable: it cannot be registered.
        """
        code = self._call("register_buffer", address, nbytes)
        if code:
            raise failure(f"registering {nbytes} bytes", code, self._settings.master)

    def healthy(self) -> str | None:
        """Return None while the client's own heartbeat succeeds, else why not."""
        code = self._call("health_check")
        return None if code == 0 else f"mooncake's health check says {code}"

    def exist(self, names: Sequence[str]) -> list[bool]:
        """Return which objects are there. Leases those for the master's default time.

        Raises:
            PoolUnavailable: the master does not answer.
        """
        codes: list[int] = self._call("batch_is_exist", list(names))
        for code in codes:
            if code < 0:
                raise failure("a look-up", code, self._settings.master)
        return [code == 1 for code in codes]

    def locate(self, names: Sequence[str]) -> list[Located | None]:
        """Return where objects are. Leases them; a missing one costs a line on stderr."""
        found = self._call("batch_get_replica_desc", list(names)) if names else {}
        return [_located(found.get(name)) for name in names]

    def put(self, names: Sequence[str], starts: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Store memory under names and return codes. 0 also where the name exists: it is kept."""
        codes: list[int] = self._call("batch_put_from", list(names), list(starts), list(sizes))
        return codes

    def get(self, names: Sequence[str], starts: Sequence[int], sizes: Sequence[int]) -> list[int]:
        """Read objects into memory and return their sizes, or codes; leases them."""
        codes: list[int] = self._call("batch_get_into", list(names), list(starts), list(sizes))
        return codes

    def get_starts(self, names: Sequence[str], address: int, nbytes: int) -> list[int]:
        """Read the first bytes of each object, side by side, and return their count, or codes."""
        wanted = [[0]] * len(names)
        places = [[at * nbytes] for at in range(len(names))]
        sizes = [[nbytes]] * len(names)
        [answer] = self._call(
            "get_into_ranges", [address], [list(names)], [places], [wanted], [sizes]
        )
        return [one[0] for one in answer]

    def remove(self, names: Sequence[str]) -> list[int]:
        """Remove objects, leased or not, and return codes."""
        codes: list[int] = self._call("batch_remove", list(names), True)
        return codes

    def remove_matching(self, pattern: str) -> int:
        """Remove the objects whose names match, leased or not, and return their number."""
        count: int = self._call("remove_by_regex", pattern, True)
        if count < 0:
            raise failure("a removal", count, self._settings.master)
        return count

    def _call(self, name: str, *arguments: Any) -> Any:
        with self._idle:
            store = self._store
            if store is None:
                raise PoolUnavailable(f"mooncake at {self._settings.master} is not connected")
            self._running += 1
        try:
            return getattr(store, name)(*arguments)
        finally:
            with self._idle:
                self._running -= 1
                self._idle.notify_all()


def _located(replicas: Any) -> Located | None:
    complete = [one for one in replicas or () if one.status == _store.ReplicaStatus.COMPLETE]
    for replica in complete:
        if replica.is_memory_replica():
            memory = replica.get_memory_descriptor().buffer_descriptor
            return Located(memory.size, memory.buffer_address, memory.transport_endpoint)
    for replica in complete:
        if replica.is_disk_replica():
            return Located(replica.get_disk_descriptor().object_size, 0, "")
    return None


def _check_npu_build(settings: MooncakeSettings) -> None:
    """Refuse protocol=ascend where Mooncake is not built for it: its setup fails after 22 s."""
    if b"libascendcl.so" not in Path(_store.__file__).read_bytes():
        raise InvalidArgument(
            f"the pool {settings.text}: protocol is ascend, but the installed Mooncake is not "
            "built for NPUs; pip install mooncake-transfer-engine-npu instead of the other variants"
        )
