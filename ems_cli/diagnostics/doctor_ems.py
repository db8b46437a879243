"""Checks of what EMS is told by its variables: directories, the pool, the simulated NPU."""

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ems.common.exception import EmsException
from ems.common.secret import masked
from ems.pool.registry import DEFAULT_URL
from ems.pool.url import PoolUrl
from ems_cli.diagnostics.finding import Finding, failed, passed, skipped, warned
from ems_cli.diagnostics.steps import Steps

_LOG: Final = "/var/log/ems"
_DEFAULT_NBYTES: Final = 8 << 30
_STEPS: Final = ("opened", "answers", "stored", "read back", "removed")
_PREFIX: Final = "EMS_SIM_"
_REFUSED: Final = f"ems.simulator: {_PREFIX}"
_SIMULATOR: Final = frozenset(
    _PREFIX + name
    for name in (
        *("DEVICES", "MEMORY", "ACCOUNT", "STREAM_DEPTH", "STICKY", "POISON", "SOC", "VERSION"),
        *("LOG", "TRACE", "FAIL_COPY", "FAIL_LAUNCH", "DELAY", "GBPS", "GBPS_H2D", "GBPS_D2H"),
        *("GBPS_D2D", "COPY_LATENCY_US", "OP_LATENCY_US"),
    )
)


def check_log_dir(environment: Mapping[str, str], user: int) -> Finding:
    """Return whether the profile of calls can be written, where it is asked for."""
    if environment.get("ENABLE_CC_PROFILING") != "1":
        return skipped("log-dir", "no profile of calls is asked for (ENABLE_CC_PROFILING=1)")
    path = Path(environment.get("EMS_SDK_LOG") or _LOG)
    fix = "set EMS_SDK_LOG to a directory that this user can write to"
    return _writable("log-dir", "EMS_SDK_LOG", path, user, fix)


def check_run_dir(path: Path, user: int) -> Finding:
    """Return whether processes can leave descriptions for `inspect`."""
    fix = "set EMS_RUN_DIR to a directory of this user"
    try:
        status = path.lstat()
    except FileNotFoundError:
        return _writable("run-dir", "EMS_RUN_DIR", path, user, fix)
    except OSError as error:
        return failed("run-dir", f"{path}: {error.strerror}", "a directory", fix)
    wanted = f"a directory of user {user}, mode 700"
    found = f"{path}, owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}"
    if not stat.S_ISDIR(status.st_mode):
        kind = "a link" if stat.S_ISLNK(status.st_mode) else "no directory"
        return failed("run-dir", f"{found}: {kind}", wanted, fix)
    if status.st_uid != user or not os.access(path, os.W_OK | os.X_OK):
        return failed("run-dir", f"{found}: not to be used by user {user}", wanted, fix)
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return warned("run-dir", f"{found}: others can write", wanted, f"chmod 700 {path}")
    return passed("run-dir", found, wanted)


def check_pool_url(environment: Mapping[str, str]) -> Finding:
    """Return whether EMS_POOL is a URL of a pool; whether there is one behind it is not asked."""
    wanted = "not set, or a URL: memory://?capacity=8GiB"
    text = environment.get("EMS_POOL")
    if not text:
        return passed("pool-url", f"EMS_POOL is not set: {DEFAULT_URL}", wanted)
    try:
        PoolUrl.parse(text)
    except EmsException as error:
        return failed("pool-url", masked(str(error)), wanted, "mend EMS_POOL, or unset it")
    return passed("pool-url", f"EMS_POOL is {masked(text)}", wanted)


def check_pool(steps: Steps) -> Finding:
    """Return whether an entry comes back from the pool as it was put."""
    wanted = "4 KiB put, got back, compared and removed, without an NPU"
    done = [name for name in _STEPS if steps.facts(name)]
    if len(done) == len(_STEPS):
        return passed("pool", "the same bytes came back", wanted)
    next_step = _STEPS[len(done)]
    fix = "start the pool's server, or mend EMS_POOL"
    if next_step == "read back":
        fix = "the pool gives back other bytes than were put: do not use it"
    return failed("pool", masked(f"not {next_step}: {steps.end()}"), wanted, fix)


def check_simulator(
    environment: Mapping[str, str], *, cann: str | None, said: Callable[[], str] = str
) -> Finding:
    """Return which variables of the simulated NPU are set, and whether it takes them.

    `said` returns what it wrote when it started: a value that it does not understand, too.
    """
    name = "simulator"
    given = {key: value for key, value in environment.items() if key.startswith("EMS_SIM_")}
    wanted = "variables that `pydoc ems.simulator` lists; none beside a real NPU"
    if not given:
        return passed(name, "no EMS_SIM_* is set", wanted)
    found = ", ".join(f"{key}={value}" for key, value in sorted(given.items()))
    unknown = sorted(given.keys() - _SIMULATOR)
    if unknown:
        return failed(name, f"{found}: {unknown[0]} does not exist", wanted, f"unset {unknown[0]}")
    if cann == "real":
        return warned(name, f"{found}: without effect on a real NPU", wanted, "unset them")
    refused = [line for line in said().splitlines() if line.startswith(_REFUSED)]
    if refused:
        told = refused[0].removeprefix(_REFUSED)
        return failed(name, f"{_PREFIX}{told}", wanted, "mend the value, or unset it")
    return passed(name, found, wanted)


def pool_nbytes(environment: Mapping[str, str]) -> int:
    """Return the host memory that the pool of one process takes in the end.

    That of memory://, and of the local tier of a tiered pool; other pools are elsewhere.
    """
    try:
        url = PoolUrl.parse(environment.get("EMS_POOL") or DEFAULT_URL)
        sizes = [url.nbytes(*item) for item in url.query if item[0] == _SIZE.get(_engine(url))]
    except EmsException:
        return _DEFAULT_NBYTES
    if sizes:
        return sizes[0]
    return _DEFAULT_NBYTES if url.scheme == "memory" else 0


_SIZE: Final = {"memory": "capacity", "tiered": "local"}


def _engine(url: PoolUrl) -> str:
    return url.scheme.partition("+")[0]


def _writable(name: str, variable: str, path: Path, user: int, fix: str) -> Finding:
    """Return whether `path`, or the first directory above it that exists, can be written to."""
    wanted = "a directory that can be written to, or made"
    place = next((one for one in (path, *path.parents) if one.exists()), Path("/"))
    status = place.stat()
    found = f"{variable} is {path}"
    if place != path:
        found += f", not made yet; {place}"
    found += f", owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):o}"
    if not place.is_dir():
        return failed(name, f"{found}: no directory", wanted, fix)
    if not os.access(place, os.W_OK | os.X_OK):
        return failed(name, f"{found}: user {user} cannot write there", wanted, fix)
    return passed(name, found, wanted)
