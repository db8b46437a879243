"""A Mooncake cluster for trials, for as long as it is wanted."""

import os
import signal
import socket
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Final

from ems.common.exception import PoolUnavailable
from ems.common.units import format_nbytes
from ems.pool.mooncake.trial import Trial
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.doctor_host import cgroup_memory, memory_info
from ems_cli.diagnostics.surroundings import Machine

_HOST: Final = "127.0.0.1"
_STEP_NBYTES: Final = 1 << 20
_LEAST_NBYTES: Final = 16 << 20
"""Mooncake's allocator refuses smaller ones."""
_LOOK_SECONDS: Final = 0.1
_NOT_LOADED: Final = 127
"""What the dynamic linker exits with."""
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class ServeRequest:
    """The cluster that is wanted."""

    port: int | None
    metrics_port: int | None
    capacity_nbytes: int
    lease_seconds: float


@dataclass(frozen=True, slots=True)
class ServeReport:
    """Where the pool of `ems-cli pool serve` is."""

    url: str
    """What processes of this host are given as EMS_POOL."""
    metrics_url: str
    """The master's figures, for Prometheus."""
    capacity_nbytes: int
    lease_seconds: float
    """So long what was looked up or read is not evicted."""
    pid: int
    """Of ems-cli; SIGINT or SIGTERM ends all."""
    master_pid: int
    node_pid: int


class Serving:
    """A cluster that is up."""

    def __init__(self, trial: Trial, report: ServeReport, is_unwanted: Callable[[], bool]) -> None:
        self.report = report
        self._trial = trial
        self._is_unwanted = is_unwanted

    def wait(self) -> None:
        """Return when a signal has come.

        Raises:
            PoolUnavailable: a process of the cluster has ended by itself.
        """
        while not self._is_unwanted():
            ended = _ended(self._trial)
            if ended is not None and not self._is_unwanted():  # Ctrl-C reaches all processes
                raise PoolUnavailable(f"{ended}; what the pool held is gone")
            time.sleep(_LOOK_SECONDS)


@contextmanager
def serving(request: ServeRequest) -> Generator[Serving | None, None, None]:
    """Run a cluster while the block runs; None where a signal came before it was up.

    SIGINT, SIGTERM and SIGHUP interrupt nothing in it: `Serving.wait` returns.

    Raises:
        BadInput: a port is in use, or the host has not so much memory.
        EmsException: Mooncake is missing, or does not come up.
    """
    _check_memory(request.capacity_nbytes)
    trial = _trial(request)
    with _signals_noted() as is_unwanted:
        try:
            try:
                trial.start_master()
                trial.start_node()
            except PoolUnavailable as error:
                if is_unwanted():
                    yield None
                    return
                raise PoolUnavailable(f"{error}{_hint(trial)}") from error
            yield Serving(trial, _report(trial, request), is_unwanted)
        finally:
            trial.stop()


def _report(trial: Trial, request: ServeRequest) -> ServeReport:
    ended = _ended(trial)
    if ended is not None or trial.master is None:
        raise PoolUnavailable(f"the cluster did not come up: {ended}")
    return ServeReport(
        url=trial.url,
        metrics_url=f"http://{_HOST}:{trial.metrics_port}/metrics",
        capacity_nbytes=trial.segment_nbytes,
        lease_seconds=request.lease_seconds,
        pid=os.getpid(),
        master_pid=trial.master.pid,
        node_pid=trial.nodes[0].pid,
    )


def _trial(request: ServeRequest) -> Trial:
    if request.capacity_nbytes < _LEAST_NBYTES:
        raise BadInput(
            f"{request.capacity_nbytes} bytes; Mooncake takes {format_nbytes(_LEAST_NBYTES)} or"
            " more",
            option="--capacity",
        )
    if request.port is not None and request.port == request.metrics_port:
        raise BadInput("--port has it already", option="--metrics-port")
    for option, port in (("--port", request.port), ("--metrics-port", request.metrics_port)):
        if port is not None:
            _check_port(port, option)
    trial = Trial(
        segment_nbytes=request.capacity_nbytes // _STEP_NBYTES * _STEP_NBYTES,
        lease_seconds=request.lease_seconds,
        port=request.port,
    )
    trial.metrics_port = request.metrics_port or trial.metrics_port
    return trial


def _check_port(port: int, option: str) -> None:
    """Refuse a port that something else listens on: it would be taken for the cluster."""
    with socket.socket() as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((_HOST, port))
        except OSError as error:
            raise BadInput(
                f"port {port} cannot be had: {error.strerror}; leave it out for a free one",
                option=option,
            ) from error


def _check_memory(nbytes: int) -> None:
    machine = Machine()
    left = memory_info(machine).get("MemAvailable")
    group = cgroup_memory(machine)
    if group is not None:
        inside = max(0, group.limit_nbytes - group.used_nbytes)
        left = inside if left is None else min(left, inside)
    if left is not None and nbytes > left:
        raise BadInput(
            f"{format_nbytes(nbytes)} are more than the {format_nbytes(left)} that this host has"
            " available",
            option="--capacity",
        )


def _ended(trial: Trial) -> str | None:
    """Return which process of the cluster has ended, and how."""
    for name, process in (("master", trial.master), *(("node", one) for one in trial.nodes)):
        code = None if process is None else process.poll()
        if code is not None:
            how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            return f"Mooncake's {name} has ended by itself ({how})"
    return None


def _hint(trial: Trial) -> str:
    if trial.master is not None and trial.master.poll() == _NOT_LOADED:
        return "; it needs libraries: on Debian, apt-get install libibverbs1 libcurl4 libnuma1"
    return ""


@contextmanager
def _signals_noted() -> Generator[Callable[[], bool], None, None]:
    """Yield whether one of the signals has come; they interrupt nothing meanwhile."""
    seen = []

    def note(number: int, _frame: FrameType | None) -> None:
        seen.append(number)

    before = {number: signal.signal(number, note) for number in _ENDING}
    try:
        yield lambda: bool(seen)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
