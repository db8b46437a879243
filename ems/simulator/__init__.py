"""The simulated CANN runtime, on which unmodified torch_npu runs where there is no NPU.

`ensure()` before the first import of torch is all that a program or a test needs; it does
nothing on a computer with CANN. `python -m ems.simulator` starts another program on the
simulated runtime. What is simulated is set by variables, which a process reads once:

EMS_SIM_DEVICES       how many devices there are: 8, at most 16
EMS_SIM_MEMORY        memory of each device in bytes, or as 64GiB, which is the default
EMS_SIM_ACCOUNT       processes that name the same account share the memory of their devices
EMS_SIM_STREAM_DEPTH  how many tasks a stream takes before a launch waits: 1024
EMS_SIM_STICKY        0: one synchronise takes the failure of a stream away; 1: it stays
EMS_SIM_POISON        1: fresh device memory is filled with 0xa5
EMS_SIM_SOC           name of the chip: Ascend910B2
EMS_SIM_VERSION       version of CANN: 8.5.0
EMS_SIM_LOG           least level of torch_npu's own log that is shown: 0 debug to 4 nothing
EMS_SIM_TRACE         1: tell every call and task on stderr

Faults, delays and limits may change while a process runs; `ems.simulator.control` lists them.
A variable EMS_SIM_... that does not exist, or whose value is not understood, is told on stderr,
and no device can be used.

Times and bandwidths of the simulated runtime say nothing about an NPU.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Literal

__all__ = ["HOME", "CannError", "activate", "ensure", "environment", "state"]

HOME = Path(__file__).parent / "home"
"""What stands for a CANN installation."""

_LIBRARIES = HOME / "lib64"
_RUNTIME = "libascendcl.so"
_SEARCH_PATH = "LD_LIBRARY_PATH"


class CannError(RuntimeError):
    """This computer has CANN or an NPU, but CANN cannot be loaded."""


def state() -> Literal["real", "simulated", "absent"]:
    """Return which CANN runtime torch_npu would find in this process.

    Raises:
        CannError: there are signs of CANN or an NPU, but its runtime does not load. Simulating
            it silently would hide that.
    """
    try:
        runtime = ctypes.CDLL(_RUNTIME)  # the very lookup that loading torch_npu makes
    except OSError as error:
        problem = str(error)
        if signs := ", ".join(_signs_of_cann(problem)):
            raise CannError(f"{problem} ({signs}): has CANN's set_env.sh been sourced?") from error
        return "absent"
    # a child of a simulated process finds a runtime, too: finding one does not make it real
    return "simulated" if hasattr(runtime, "ems_simulator") else "real"


def environment(variables: MutableMapping[str, str]) -> None:
    """Change `variables` so that a process started with them finds the simulated runtime.

    Raises:
        RuntimeError: the runtime has not been built; `variables` is unchanged.
    """
    _built_libraries()
    places = [str(_LIBRARIES), *variables.get(_SEARCH_PATH, "").split(os.pathsep)]
    variables[_SEARCH_PATH] = os.pathsep.join(dict.fromkeys(filter(None, places)))
    # torch_npu searches the whole current directory for CANN's version if this is not set
    variables["ASCEND_HOME_PATH"] = str(HOME)
    variables["ASCEND_OPP_PATH"] = str(HOME / "opp")


def activate() -> None:
    """Load the simulated runtime into this process, and let its children find it.

    The dynamic linker reads LD_LIBRARY_PATH only when a process starts; this process therefore
    loads the libraries by their paths, before torch_npu asks for them by their names.

    Raises:
        RuntimeError: torch_npu has been imported already, or the runtime has not been built.
            Nothing has changed.
    """
    if "torch_npu" in sys.modules:
        raise RuntimeError("torch_npu is imported already: activate the simulated runtime before")
    libraries = _built_libraries()
    environment(os.environ)
    for library in libraries:
        ctypes.CDLL(str(library))


def ensure() -> bool:
    """Activate the simulated runtime if this computer has no CANN.

    Returns whether the simulated runtime is the one in use.

    Raises:
        CannError: see `state`.
        RuntimeError: see `activate`.
    """
    found = state()
    if found == "absent":
        activate()
    return found != "real"


def _signs_of_cann(problem: str) -> Iterator[str]:
    if not problem.startswith(f"{_RUNTIME}:"):
        yield f"{_RUNTIME} exists"  # and one of the libraries that it needs does not
    for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        if os.environ.get(name, str(HOME)) != str(HOME):
            yield f"{name} is set"
    yield from sorted(str(device) for device in Path("/dev").glob("davinci[0-9]*"))


def _built_libraries() -> list[Path]:
    libraries = sorted(_LIBRARIES.glob("*.so"))
    if _LIBRARIES / _RUNTIME in libraries:
        return libraries
    if sys.platform != "linux":
        raise RuntimeError("the simulated CANN runtime exists for Linux only")
    raise RuntimeError(
        f"the simulated CANN runtime has not been built, {_LIBRARIES} does not have {_RUNTIME}: "
        "run `pip install -e .` in the source tree; with another kind of installation, start "
        "Python elsewhere than in the source tree"
    )
