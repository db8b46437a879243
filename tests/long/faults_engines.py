"""What engines call to put and to get, each call counted, any of them made to fail or to hang."""

import threading
import time
from collections import Counter
from contextlib import contextmanager
from unittest import mock

import lmdb

from ems.common.exception import PoolUnavailable
from ems.pool.lmdb.transactions import Transactions
from ems.pool.lmdb.writing import Writing

_REQUESTS = {"ems-OUT", "ems-IN", "ems-mooncake"}
"""Threads on which engines are called for requests."""
_HANG_SECONDS = 0.15
"""Longer than the time-out of a request that hangs."""
_SOON_SECONDS = 0.1
"""Instead of the seconds for which a node that failed is left alone, and its memory withheld."""


class Engine:
    """Counts the calls; at the nth of one name something goes wrong."""

    def __init__(self, kinds):
        self.kinds = kinds
        """By name of a call, the ways in which it can go wrong."""
        self._lock = threading.Lock()
        self.arm()

    def arm(self, name=None, nth=0, way=None):
        with self._lock:
            self.calls, self._due = Counter(), (name, nth, way)
            self.met = False
            """Whether it has come to that."""

    def due(self, name):
        """Count a call of a request, and return in which way it goes wrong, if it does."""
        if threading.current_thread().name not in _REQUESTS:
            return None  # telemetry asks, too, whenever it likes
        with self._lock:
            self.calls[name] += 1
            wanted, nth, way = self._due
            if wanted != name or self.calls[name] != nth:
                return None
            self.met = True
            return way


class _Transaction:
    """A transaction of LMDB whose puts and gets can fail."""

    def __init__(self, txn, engine):
        self._txn, self._engine = txn, engine

    def __getattr__(self, name):
        return getattr(self._txn, name)

    def put(self, *arguments, **named):
        return self._after("put", *arguments, **named)

    def get(self, *arguments, **named):
        return self._after("get", *arguments, **named)

    def delete(self, *arguments, **named):
        return self._after("delete", *arguments, **named)

    def _after(self, name, *arguments, **named):
        way = self._engine.due(name)
        if way is not None:
            raise way("it was made to fail")
        return getattr(self._txn, name)(*arguments, **named)


def probe_lmdb(stack):
    """Stand before the transactions of LMDB pools that are opened from now on."""
    engine = Engine(
        {"get": [lmdb.Error], "put": [lmdb.Error, lmdb.MapFullError], "delete": [lmdb.Error]}
    )
    reading, begun = Transactions.reading, Writing.__init__

    @contextmanager
    def probed(transactions):
        with reading(transactions) as txn:
            yield _Transaction(txn, engine)

    def begin(writing, txn, *arguments, **named):
        begun(writing, _Transaction(txn, engine), *arguments, **named)

    stack.enter_context(mock.patch.object(Transactions, "reading", probed))
    stack.enter_context(mock.patch.object(Writing, "__init__", begin))
    return engine


def probe_mooncake(stack):
    """Stand before the calls of Mooncake's client, and before what its master is asked."""
    from ems.pool.mooncake import codes, entries, fetch  # noqa: PLC0415 - not where it is missing
    from ems.pool.mooncake.admin import Admin  # noqa: PLC0415
    from ems.pool.mooncake.library import Library  # noqa: PLC0415

    lost = [codes.TRANSFER_FAILED, codes.RPC_FAILED, "hang"]
    away = [PoolUnavailable, "hang"]
    engine = Engine(
        {
            "put": [codes.NO_ROOM, *lost],
            "get": [codes.NOT_FOUND, codes.LEASE_EXPIRED, *lost],
            "locate": away,
        }
    )

    def probed(name, call):
        def coded(library, names, *arguments):
            way = engine.due(name)
            if way == "hang":
                time.sleep(_HANG_SECONDS)
            elif way is not None:  # of the first one; the others go on
                rest = [one[1:] for one in (names, *arguments)]
                return [way, *(call(library, *rest) if rest[0] else [])]
            return call(library, names, *arguments)

        return coded

    def located(admin, names, **named):
        way = engine.due("locate")
        if way == "hang":
            time.sleep(_HANG_SECONDS)
        elif way is not None:
            raise way("it was made to fail")
        return locate(admin, names, **named)

    locate = Admin.locate
    for name in ("put", "get"):
        call = probed(name, getattr(Library, name))
        stack.enter_context(mock.patch.object(Library, name, call))
    stack.enter_context(mock.patch.object(Admin, "locate", located))
    stack.enter_context(mock.patch.object(entries, "_DEAD_SECONDS", _SOON_SECONDS))
    stack.enter_context(mock.patch.object(fetch, "_SUSPECT_SECONDS", _SOON_SECONDS))
    return engine
