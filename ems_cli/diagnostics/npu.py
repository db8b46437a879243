"""The NPU that a command works on: simulated where there is none, decided before torch comes."""

import logging
import os
from dataclasses import dataclass
from importlib import metadata
from types import ModuleType

from ems import device, simulator
from ems.common.exception import DeviceFailed
from ems_cli.diagnostics.interrupts import interrupts_held

SIMULATED_NOTE = "SIMULATED: no NPU here; the simulated one's figures say nothing about hardware"


@dataclass(frozen=True, slots=True)
class Runtime:
    """The CANN runtime in use, with torch_npu loaded on it."""

    simulated: bool
    ascend: ModuleType
    """`ems.device.ascend`."""
    synthetic: ModuleType
    """`ems.device.synthetic`."""

    @property
    def device_count(self) -> int:
        """NPUs that this process can see."""
        return int(self.ascend.device_count())


def start_runtime() -> Runtime:
    """Choose the runtime, then import torch and torch_npu.

    Raises:
        DeviceFailed: CANN is there and does not load, or torch_npu cannot be used.
        KeyboardInterrupt: it was interrupted, and is started all the same.
    """
    # torch_npu's own switch; on stderr it tells of its memory alignment at the first allocation.
    # Failures are exceptions all the same.
    os.environ.setdefault("TORCH_NPU_WARNING_DISABLE", "1")
    # what the library warns about is in the reports
    logging.getLogger("ems").addHandler(logging.NullHandler())
    try:
        simulated = simulator.ensure()
    except RuntimeError as error:  # CannError is one
        raise DeviceFailed(str(error)) from error
    with interrupts_held():
        ascend = device.load()
        from ems.device import synthetic  # noqa: PLC0415 - imports torch

    return Runtime(simulated, ascend, synthetic)


def versions() -> dict[str, str]:
    """Return the versions of what a figure depends on."""
    found = {}
    for package in ("ems", "torch", "torch_npu"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "unknown"
    return found
