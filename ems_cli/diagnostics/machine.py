"""The computer on which figures were measured; figures of unlike computers are not compared."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_CPUINFO: Final = Path("/proc/cpuinfo")
_NAMES: Final = ("model name", "CPU part", "Model")
"""What processors are called there, by architecture."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What of a computer decides how fast copies are."""

    processor: str
    processors: int
    system: str
    """Kernel and architecture."""


def machine() -> Machine:
    """Return this computer."""
    system = f"{platform.system()} {platform.machine()}"
    return Machine(_processor(), os.cpu_count() or 1, system)


def _processor() -> str:
    try:
        lines = _CPUINFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    fields = dict(line.partition(":")[::2] for line in lines if ":" in line)
    named = {name.strip(): value.strip() for name, value in fields.items()}
    return next((named[name] for name in _NAMES if name in named), "unknown")
