"""A Mooncake cluster on this computer, to try things out: one master, one node, on loopback.

Its processes end with the one that started them, however that ends.

Not for production: nothing is authenticated, the node's memory dies with it, and the node's data
ports listen on all interfaces whatever its host (Mooncake 0.3.13).
"""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from ems.common.exception import InvalidArgument, PoolUnavailable

_HOST = "127.0.0.1"
_START_SECONDS = 10.0
_STOP_SECONDS = 10.0
_BOUND = """
import ctypes, os, sys
PR_SET_PDEATHSIG, SIGKILL = 1, 9
if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0) or os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started this one is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the program that it is given, which ends with whoever started it, also by kill -9.

"Whoever" is the thread that started it, as Linux takes it: it must be one that stays.
"""


class Trial:
    """The processes of a cluster."""

    def __init__(
        self,
        *,
        segment_nbytes: int = 1 << 30,
        lease_seconds: float = 2.0,
        port: int | None = None,
        master_flags: Sequence[str] = (),
    ) -> None:
        self.segment_nbytes = segment_nbytes
        self.port = port or free_port()
        self.metrics_port = free_port()
        self.master: subprocess.Popen[bytes] | None = None
        self.nodes: list[subprocess.Popen[bytes]] = []
        self._lease_ms = round(lease_seconds * 1000)
        self._master_flags = tuple(master_flags)

    @property
    def url(self) -> str:
        """What a process that uses the cluster gives as its pool."""
        return f"mooncake://{_HOST}:{self.port}?metrics={self.metrics_port}"

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start the processes, and stop them at the end of the block.

        Raises:
            PoolUnavailable: one ended, or did not come up.
        """
        try:
            self.start_master()
            self.start_node()
            yield
        finally:
            self.stop()

    def start_master(self) -> None:
        """Start the master and return when it accepts connections.

        Raises:
            PoolUnavailable: it ended, or did not come up.
        """
        self.master = _start(
            "mooncake_master",
            f"--rpc_address={_HOST}",
            f"--rpc_port={self.port}",
            f"--metrics_host={_HOST}",
            f"--metrics_port={self.metrics_port}",
            f"--default_kv_lease_ttl={self._lease_ms}",
            "--eviction_high_watermark_ratio=0.9",
            "--eviction_ratio=0.1",
            "--put_start_discard_timeout_sec=5",
            "--client_ttl=5",
            *self._master_flags,
        )
        _await_port(self.master, self.port)
        _await_port(self.master, self.metrics_port)

    def start_node(self) -> subprocess.Popen[bytes]:
        """Start a node that lends memory, and return it once the master can store there.

        Raises:
            PoolUnavailable: it ended, or did not come up.
        """
        port = free_port()
        node = _start(
            "mooncake_client",
            f"--host={_HOST}",
            f"--port={port}",
            f"--global_segment_size={self.segment_nbytes >> 20}MB",
            f"--master_server_address={_HOST}:{self.port}",
            "--metadata_server=P2PHANDSHAKE",
            "--protocol=tcp",
            "--threads=2",
        )
        self.nodes.append(node)
        _await_port(node, port)
        return node

    def stop(self) -> None:
        """End the processes; repeated calls are harmless."""
        for process in (*self.nodes, self.master):
            if process is not None:
                stop(process)


def stop(process: "subprocess.Popen[bytes]") -> None:
    """End a process of a cluster, also one that was stopped or does not want to."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
    process.wait()


def free_port() -> int:
    """Return a port that nothing listens on now."""
    with socket.socket() as listening:
        listening.bind((_HOST, 0))
        port: int = listening.getsockname()[1]
        return port


def _start(program: str, *flags: str) -> "subprocess.Popen[bytes]":
    path = _installed() / program
    if not os.access(path, os.X_OK):  # pip install --target drops the bit
        path.chmod(path.stat().st_mode | 0o111)
    bound = [sys.executable, "-ISc", _BOUND, str(os.getpid()), str(path)]
    return subprocess.Popen(  # noqa: S603 - a program of the installed package
        [*bound, *flags, "--logtostderr", "--minloglevel=2"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def _program(process: "subprocess.Popen[bytes]") -> list[str]:
    """Return the program and its flags, without what binds it to this process."""
    arguments: list[str] = list(process.args)  # type: ignore[arg-type] # it was a list
    return arguments[4:]


def _installed() -> Path:
    spec = find_spec("mooncake")
    if spec is None or spec.origin is None:
        raise InvalidArgument(
            "the Python package mooncake is not installed; pip install 'ems[mooncake]' where there "
            "is an NPU, mooncake-transfer-engine-non-cuda on others"
        )
    return Path(spec.origin).parent


def _await_port(process: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + _START_SECONDS
    while True:
        try:
            with socket.create_connection((_HOST, port), timeout=0.2):
                return
        except OSError as error:
            if process.poll() is not None:
                raise PoolUnavailable(
                    f"{' '.join(_program(process))} ended with {process.returncode}"
                ) from error
            if time.monotonic() > until:
                raise PoolUnavailable(
                    f"port {port} did not open in {_START_SECONDS:g} s"
                ) from error
        time.sleep(0.01)
