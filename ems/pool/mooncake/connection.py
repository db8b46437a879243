"""The way to a Mooncake cluster: made when it is first needed, and again until it is there."""

import ipaddress
import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar
from uuid import uuid4

from ems.common.exception import EmsException, PoolUnavailable, RequestTimeout
from ems.pool.base import HostMemory
from ems.pool.mooncake.admin import Admin
from ems.pool.mooncake.calls import Calls
from ems.pool.mooncake.entries import HEADERS_NBYTES, Entries
from ems.pool.mooncake.health import HEALTH_NBYTES, Health
from ems.pool.mooncake.library import Library
from ems.pool.mooncake.settings import MooncakeSettings
from ems.pool.staging import Staging
from ems.pool.threads import started

_LOG = logging.getLogger(__name__)
_T = TypeVar("_T")

_PROBE_SECONDS = 1.0
_FRESH_SECONDS = 0.5
"""A master that answered so recently is not probed again."""
_RETRY_SECONDS = 0.5
"""Between two attempts to connect; what the first one said is the answer meanwhile."""
_CLOSE_SECONDS = 5.0
_CLOSE_UNCONNECTED_SECONDS = 0.3
"""There is nothing to leave then; an attempt that is under way ends by itself."""
OWN_NBYTES = HEADERS_NBYTES + HEALTH_NBYTES
"""What the connection keeps of the staging memory for look-ups and health checks."""


@dataclass(frozen=True)
class Link:
    """What a connection consists of once it is there."""

    library: Library
    staging: Staging
    entries: Entries
    health: Health
    own: int
    """Where, in staging, the memory for look-ups and health checks is; it is lent until the end."""


class Connection:
    """One client, its memory, and what is known of the master's health.

    Mooncake finds its master again by itself. While it does not, calls would block for seconds
    each: a probe before them ends that at once.
    """

    def __init__(self, settings: MooncakeSettings, memory: HostMemory) -> None:
        self.where = f"mooncake at {settings.master}"
        self.admin = (
            Admin(settings.master_host, settings.metrics_port) if settings.metrics_port else None
        )
        self.closed = False
        self._settings = settings
        self._memory = memory
        self._calls = Calls(self.where)
        self._changed = threading.Condition()
        self._link: Link | None = None
        self._staging: Staging | None = None
        self._connecting = False
        self._failure: EmsException | None = None
        self._failed_at = -math.inf
        self._answered_at = 0.0

    @property
    def staging(self) -> Staging | None:
        """The memory that entries pass through, once there is any."""
        return self._staging

    def run(
        self,
        work: Callable[[Link], _T],
        *,
        doing: str,
        deadline: float | None,
        undo: Callable[[], None] = lambda: None,
    ) -> _T:
        """Return what `work` does with the link; see `Calls.run` for `undo`.

        Raises:
            PoolUnavailable: the pool does not answer.
            RequestTimeout: the deadline passed.
        """
        try:
            link = self._connected(deadline)
        except BaseException:
            undo()
            raise

        def probed() -> _T:
            if time.monotonic() > self._answered_at + _FRESH_SECONDS:
                probe(self._settings, deadline)
            return work(link)

        try:
            answer = self._calls.run(probed, doing=doing, deadline=deadline, undo=undo)
        except EmsException:
            self._answered_at = 0.0
            raise
        self._answered_at = time.monotonic()
        return answer

    @property
    def damaged(self) -> int:
        """How many damaged entries this connection has found."""
        return self._link.entries.damaged if self._link else 0

    def doubt(self) -> None:
        """Probe the master before the next call, even if it has just answered."""
        self._answered_at = 0.0

    def check_open(self) -> None:
        """Raise PoolUnavailable after `close`."""
        if self.closed:
            raise PoolUnavailable(f"{self.where} is closed")

    def close(self) -> None:
        """Leave the cluster; waits a few seconds for calls that hang, and no longer."""
        with self._changed:
            first, self.closed = not self.closed, True
            seconds = _CLOSE_SECONDS if self._link else _CLOSE_UNCONNECTED_SECONDS
            self._changed.notify_all()
        if first:
            with suppress(PoolUnavailable):  # without a thread it is left when the process ends
                started(self._leave, name="ems-mooncake-close").join(seconds)

    def _leave(self) -> None:
        with self._changed:
            while self._connecting:
                self._changed.wait()
        if self._staging:
            self._staging.close()
        if self.admin:
            self.admin.close()
        if self._link:
            self._await_master()
            self._link.library.close()
            self._link.staging.give([self._link.own])

    def _await_master(self) -> None:
        """Wait while the master hangs, if it is to be told that memory is lent no longer.

        Mooncake asks it while no other thread of this process can run.
        """
        hangs = self._settings.segment_nbytes > 0
        while hangs:
            try:
                probe(self._settings, None, until_it_hangs_up=True)
            except PoolUnavailable as error:  # if it is dead, that costs no time
                hangs = isinstance(error, _Hangs)
            else:
                hangs = False

    def _connected(self, deadline: float | None) -> Link:
        """Return the link; where there is none, wait for one attempt to make it."""
        with self._changed:
            self.check_open()
            if self._link:
                return self._link
            just_failed = time.monotonic() < self._failed_at + _RETRY_SECONDS
            if not self._connecting and not just_failed:
                self._failure = None
                started(self._connect, name="ems-mooncake-connect")
                self._connecting = True
            while self._connecting and not self.closed:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise RequestTimeout(f"the time-out passed while connecting to {self.where}")
                self._changed.wait(left)
            self.check_open()
            if self._link:
                return self._link
            failure = self._failure or PoolUnavailable(f"{self.where} is not connected")
            raise type(failure)(str(failure)) from failure

    def _connect(self) -> None:
        link, failure = None, None
        try:
            link = self._make_link()
        except EmsException as error:
            failure = error
        except Exception as error:  # noqa: BLE001 - whoever waits must hear of it
            failure = EmsException(f"connecting to {self.where}: {error!r}")
            failure.__cause__ = error
        with self._changed:
            self._link, self._failure = link, failure
            self._connecting = False
            self._failed_at = time.monotonic() if failure else -math.inf
            self._answered_at = time.monotonic() if link else 0.0
            self._changed.notify_all()

    def _make_link(self) -> Link:
        settings = self._settings
        # a setup with a master that hangs keeps all threads of this process from running, for
        # minutes (https://github.com/kvcache-ai/Mooncake/pull/3947)
        local = probe(settings, None, until_it_hangs_up=True)
        library = Library(settings)
        library.setup(settings.host or local)
        try:
            if self._staging is None:
                self._staging = Staging(self._memory, settings.staging_nbytes + OWN_NBYTES)
            [own] = self._staging.take([OWN_NBYTES], deadline=time.monotonic())
            library.register(own, self._staging.nbytes)
        except BaseException:
            library.close()
            raise
        _LOG.debug("connected to %s as %s", self.where, settings.host or local)
        return Link(
            library,
            self._staging,
            Entries(library, self.admin, own, self.where, checksum=settings.checksum),
            Health(library, own + HEADERS_NBYTES, f"emshealth-{uuid4().hex}", self.where),
            own,
        )


class _Hangs(PoolUnavailable):
    """The master does not react within the time of a probe."""


def probe(
    settings: MooncakeSettings, deadline: float | None, *, until_it_hangs_up: bool = False
) -> str:
    """Return this host's address towards the master, which accepts connections.

    The system accepts them for a master that is stopped, but never hangs up for it.

    Raises:
        PoolUnavailable: it does not.
        RequestTimeout: the deadline has passed.
    """
    seconds = _PROBE_SECONDS
    if deadline is not None:
        seconds = min(seconds, deadline - time.monotonic())
    if seconds <= 0:
        raise RequestTimeout(f"the time-out passed before mooncake at {settings.master} was asked")
    try:
        address = settings.master_host, settings.master_port
        with socket.create_connection(address, timeout=seconds) as connection:
            local = str(connection.getsockname()[0])
            if until_it_hangs_up:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1)
    except TimeoutError as error:
        raise _Hangs(f"mooncake's master at {settings.master} hangs: {error}") from error
    except OSError as error:
        raise PoolUnavailable(
            f"mooncake's master at {settings.master} does not accept connections: {error}"
        ) from error
    return f"[{local}]" if ipaddress.ip_address(local.partition("%")[0]).version > 4 else local  # noqa: PLR2004
