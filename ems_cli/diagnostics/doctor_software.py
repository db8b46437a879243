"""Checks of Python, packages and CANN, from what was found of them."""

import sys
from collections.abc import Mapping
from typing import Final

from ems_cli.diagnostics.finding import Finding, failed, passed, skipped, warned
from ems_cli.diagnostics.steps import Steps

OLDEST_PYTHON: Final = (3, 10)
OLDEST_TORCH: Final = (2, 7)
TESTED: Final = {"torch": "2.13", "torch_npu": "2.13"}
"""The pair that the tests of this version run with."""
_INSTALL = "pip install torch torch_npu, both of the version that fits CANN"
_SET_ENV = "source set_env.sh of CANN, for example /usr/local/Ascend/ascend-toolkit/set_env.sh"
_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"
_SLOW_SECONDS = 30.0


def check_python(version: tuple[int, ...] = tuple(sys.version_info[:3])) -> Finding:
    """Return whether Python is new enough."""
    found, oldest = (".".join(map(str, one)) for one in (version, OLDEST_PYTHON))
    wanted = f"at least {oldest}"
    if version[: len(OLDEST_PYTHON)] < OLDEST_PYTHON:
        return failed("python", found, wanted, f"use Python {oldest} or newer")
    return passed("python", found, wanted)


def check_packages(versions: Mapping[str, str | None]) -> Finding:
    """Return whether torch and torch_npu are installed in versions that belong together."""
    found = ", ".join(f"{name} {version or 'missing'}" for name, version in versions.items())
    pair = " and ".join(f"{name} {version}" for name, version in TESTED.items())
    wanted = f"torch of at least 2.7, torch_npu of the same version; tested: {pair}"
    missing = [name for name in TESTED if versions.get(name) is None]
    if missing:
        return failed("packages", found, wanted, _INSTALL)
    numbers = {name: _numbers(versions[name] or "") for name in TESTED}
    if numbers["torch"] != numbers["torch_npu"]:
        return failed("packages", found, wanted, "install the torch_npu that belongs to this torch")
    if numbers["torch"] < OLDEST_TORCH:
        return failed("packages", found, wanted, _INSTALL)
    if numbers["torch"] != _numbers(TESTED["torch"]):
        return warned("packages", found, wanted, "nothing if `ems-cli verify` is content")
    return passed("packages", found, wanted)


def check_cann(steps: Steps) -> Finding:
    """Return whether CANN is there and loads."""
    wanted = "CANN, or no sign of it: then the NPU is simulated"
    found = steps.facts("runtime")
    if found is None:
        text = f"looking for it {steps.end()}"
        return failed("cann", text, wanted, "run `python -m ems_cli.diagnostics.probe runtime`")
    if found["state"] == "broken":
        return failed("cann", f"does not load: {found['error']}", wanted, _SET_ENV)
    if found["state"] == "real":
        return passed("cann", "loads", wanted)
    kind = "its simulation is the one in use" if found["state"] == "simulated" else "none"
    return passed("cann", f"{kind}; SIMULATED: figures say nothing about hardware", wanted)


def check_import(package: str, steps: Steps, *, before: str | None) -> Finding:
    """Return whether `package` can be imported; `before` is what is imported ahead of it."""
    wanted = f"imports within {_SLOW_SECONDS:.0f} s"
    facts = steps.facts(package)
    if facts is not None:
        found = f"{facts['version']}, imported in {facts['seconds']:.1f} s"
        if facts["seconds"] > _SLOW_SECONDS:
            return warned(package, found, wanted, "look at the disk that Python is installed on")
        return passed(package, found, wanted)
    if before is not None and steps.facts(before) is None:
        return skipped(package, f"{before} was not reached")
    fix = _SET_ENV if "cannot open shared object" in steps.end() else _INSTALL
    return failed(package, f"import {steps.end()}", wanted, fix)


def check_autoload(
    environment: Mapping[str, str], *, cann: str | None, has_torch_npu: bool
) -> Finding:
    """Return what `import torch` does by itself, with the state of CANN."""
    name = "autoload"
    value = environment.get(_AUTOLOAD)
    found = f"{_AUTOLOAD} is {'not set' if value is None else repr(value)}"
    if not has_torch_npu:
        return skipped(name, "no torch_npu that torch could load by itself")
    if cann in ("real", "simulated"):
        return passed(name, f"{found}; `import torch` loads torch_npu, or is told not to", "any")
    wanted = "0 where there is no CANN: torch loads torch_npu by itself, which needs CANN"
    if value == "0":
        return passed(name, found, wanted)
    return warned(
        name,
        f"{found}: a plain `import torch` fails here",
        wanted,
        "start scripts by `python -m ems.simulator script.py`, or set it to 0; ems-cli needs none",
    )


def check_task_queue(environment: Mapping[str, str]) -> Finding:
    """Return whether torch_npu's queue mode is one that exists."""
    value = environment.get("TASK_QUEUE_ENABLE")
    wanted = "not set, 0, 1 or 2"
    found = "not set" if value is None else repr(value)
    if value in (None, "0", "1", "2"):
        return passed("task-queue", f"TASK_QUEUE_ENABLE is {found}", wanted)
    return warned("task-queue", f"TASK_QUEUE_ENABLE is {found}", wanted, "unset it, or set it to 1")


def check_hash_seed(environment: Mapping[str, str]) -> Finding:
    """Return whether Python's hash() gives the same in every process."""
    value = environment.get("PYTHONHASHSEED")
    wanted = "the same number in all processes that share a pool"
    if value is not None and value.isdigit():
        return passed("hash-seed", f"PYTHONHASHSEED is {value}", wanted)
    return warned(
        "hash-seed",
        f"PYTHONHASHSEED is {'not set' if value is None else repr(value)}",
        wanted,
        "export PYTHONHASHSEED=0 on all nodes, unless the inference engine hashes by SHA-256",
    )


def _numbers(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (2, 13) of "2.13.0+cpu"."""
    parts = version.partition("+")[0].split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)
