"""Checks of the driver, the NPUs and their memory."""

import re
from collections.abc import Sequence
from typing import Final

from ems.common.units import format_nbytes
from ems_cli.diagnostics.finding import Finding, failed, passed, skipped, warned
from ems_cli.diagnostics.steps import Steps
from ems_cli.diagnostics.surroundings import Machine

LEAST_FREE_NBYTES: Final = 1 << 30
"""What a trial cache of this program takes at most."""
_DAVINCI: Final = re.compile(r"davinci(\d+)", re.ASCII)
_LIST: Final = re.compile(r"\d+(,\d+)*", re.ASCII)
_VISIBLE: Final = "ASCEND_RT_VISIBLE_DEVICES"
_MANAGER: Final = "davinci_manager"


def npus_of_driver(machine: Machine) -> list[int]:
    """Return the numbers of the NPUs that the driver shows under /dev."""
    try:
        names = [path.name for path in (machine.root / "dev").iterdir()]
    except OSError:
        return []
    return sorted(int(match[1]) for match in map(_DAVINCI.fullmatch, names) if match)


def check_driver(machine: Machine, *, cann: str | None) -> Finding:
    """Return whether the driver shows NPUs, and brings its tool."""
    npus = npus_of_driver(machine)
    if not npus and cann != "real":
        return skipped("driver", "no /dev/davinci*: no NPU here")
    tool = machine.which("npu-smi")
    wanted = "/dev/davinci0…, /dev/davinci_manager and npu-smi"
    if not npus:
        fix = "install the driver; in a container pass --device /dev/davinci0 and its like"
        return failed("driver", "no /dev/davinci*", wanted, fix)
    found = f"{len(npus)} NPUs ({_listed(npus)}), npu-smi {tool or 'missing'}"
    if not (machine.root / "dev" / _MANAGER).exists():
        fix = f"pass --device /dev/{_MANAGER} to the container"
        return failed("driver", f"{found}, no /dev/{_MANAGER}", wanted, fix)
    if tool is None:
        return warned("driver", found, wanted, "mount npu-smi into the container; EMS needs it not")
    return passed("driver", found, wanted)


def check_visible_devices(value: str | None, npus: Sequence[int]) -> Finding:
    """Return whether ASCEND_RT_VISIBLE_DEVICES names NPUs that exist; `npus` are all there are."""
    name = "visible-devices"
    wanted = "not set, or numbers of NPUs, each once: 0,1,2"
    if value is None:
        return passed(name, f"{_VISIBLE} is not set: all are visible", wanted)
    found = f"{_VISIBLE} is {value!r}"
    if not value.strip():
        return failed(name, f"{found}: no NPU is visible", wanted, f"unset {_VISIBLE}")
    if not _LIST.fullmatch(value.replace(" ", "")):
        fix = "write numbers with commas; ranges and names are not understood"
        return failed(name, found, wanted, fix)
    numbers = [int(part) for part in value.split(",")]
    if len(set(numbers)) < len(numbers):
        return failed(name, f"{found}: one comes twice", wanted, "name each NPU once")
    # in a container the numbers may be the host's, or count what was passed in
    known = {*npus, *range(len(npus))}
    beyond = [number for number in numbers if number not in known]
    if npus and beyond:
        fix = f"there are {_listed(npus)}; CANN sees none behind one that does not exist"
        return failed(name, f"{found}: no NPU {beyond[0]}", wanted, fix)
    return passed(name, f"{found}; device_id counts these from 0", wanted)


def check_devices(steps: Steps) -> Finding:
    """Return whether torch_npu sees NPUs."""
    wanted = "at least 1 NPU"
    facts = steps.facts("npus")
    if facts is None:
        if steps.facts("torch_npu") is None:
            return skipped("devices", "torch_npu was not reached")
        fix = "look at `npu-smi info` and at dmesg"
        return failed("devices", f"counting them {steps.end()}", wanted, fix)
    if not facts["count"]:
        return failed("devices", "0 NPUs", wanted, f"look at {_VISIBLE} and at `npu-smi info`")
    names = sorted({memory["name"] for memory in steps.all("memory")})
    simulated = "SIMULATED " if facts["simulated"] else ""
    npus = "NPU" if facts["count"] == 1 else "NPUs"
    found = f"{facts['count']} {simulated}{npus} {', '.join(names)}"
    return passed("devices", found.strip(), wanted)


def check_device_memory(steps: Steps) -> Finding:
    """Return whether every NPU has memory left."""
    name = "device-memory"
    wanted = f"at least {format_nbytes(LEAST_FREE_NBYTES)} free on every NPU"
    facts = steps.facts("npus")
    if not facts or not facts["count"]:
        return skipped(name, "no NPU to look at")
    memories = steps.all("memory")
    if len(memories) < facts["count"]:
        fix = "reset it by npu-smi, or leave it out by ASCEND_RT_VISIBLE_DEVICES"
        return failed(name, f"npu:{len(memories)} {steps.end()}", wanted, fix)
    least = min(memories, key=lambda memory: memory["free_nbytes"])
    free, total = (format_nbytes(least[f"{which}_nbytes"]) for which in ("free", "total"))
    found = f"least on npu:{least['index']}: {free} of {total} free"
    if least["free_nbytes"] < LEAST_FREE_NBYTES:
        return warned(name, found, wanted, "end what else runs there: `npu-smi info` lists it")
    return passed(name, found, wanted)


def _listed(numbers: Sequence[int]) -> str:
    if len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"{numbers[0]}-{numbers[-1]}"
    return ",".join(map(str, numbers))
