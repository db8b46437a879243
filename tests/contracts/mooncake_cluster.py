"""A real Mooncake cluster for tests: its processes on loopback, and engines that use it."""

import ctypes
import os
import signal
import time
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
from contracts.host_memory import MappedMemory

from ems.pool.registry import open_pool


def _why_not():
    """Why Mooncake cannot be used here, or None."""
    if find_spec("mooncake") is None:
        return "mooncake is not installed"
    for library in ("libibverbs.so.1", "libcurl.so.4", "libnuma.so.1"):
        try:
            ctypes.CDLL(library)
        except OSError:
            return f"mooncake needs {library}"
    return None


WHY_NOT = _why_not()
needs_mooncake = [
    pytest.mark.mooncake,
    pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT)),
]
"""For `pytestmark` of modules that use a cluster."""


@contextmanager
def cluster(*, node=True, **settings):
    """A cluster that ends with the block, whatever happens in it; without a node, only a master."""
    from ems.pool.mooncake.trial import Trial  # noqa: PLC0415 - not where Mooncake is missing

    trial = Trial(**{"segment_nbytes": 64 << 20, **settings})
    try:
        trial.start_master()
        if node:
            trial.start_node()
        yield trial
    finally:
        for process in (*trial.nodes, trial.master):
            kill(process)  # a node that is asked takes a second to end


@contextmanager
def pool_of(trial, *, staging="2MiB", metrics=True, memory=None, **options):
    """An engine that uses the cluster."""
    url = trial.url if metrics else trial.url.partition("?")[0] + "?segment=0"
    extra = "".join(f"&{name}={value}" for name, value in options.items())
    pool = open_pool(f"{url}&staging={staging}{extra}", memory or MappedMemory())
    try:
        yield pool
    finally:
        pool.close()


def eventually(condition, *, seconds=20):
    """Wait until the condition holds, and say whether it does."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def kill(process):
    """As kill -9 does, and wait for the end."""
    process.kill()
    process.wait()


def hang(process, number):
    """Stop or continue a process: SIGSTOP, SIGCONT. Once it is stopped, no thread of it answers."""
    os.kill(process.pid, number)
    if number == signal.SIGSTOP:
        assert eventually(lambda: all(_state(task) == "T" for task in _tasks(process)))


def _tasks(process):
    return Path(f"/proc/{process.pid}/task").iterdir()


def _state(task):
    return (task / "stat").read_text().rpartition(")")[2].split()[0]
