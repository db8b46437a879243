"""How quiet the host is before anything is measured: what a busy loop of 1 ms really takes."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ems_cli.diagnostics.measure import (
    BUSY_SHARE,
    Clock,
    host_times,
    percentile,
    share_of_others,
)

SPIN_SECONDS: Final = 1e-3
BUSY_OVERRUN: Final = 0.5e-3
"""An overrun of a spin at p99 above which the host counts as busy."""
_SPINS: Final = 200


@dataclass(frozen=True, slots=True)
class HostNoise:
    """The host's own jitter, measured before the benchmark."""

    overrun_seconds: tuple[float, ...]
    """By how much each spin of 1 ms took longer; raw values."""
    overrun_p50: float
    overrun_p99: float
    overrun_max: float
    others_cpu_share: float | None
    """Share of the host's processors that other processes used meanwhile."""
    processors: int
    busy: bool
    """Whether the processors are used by others, or p99 of the overruns is above 0.5 ms."""


def host_noise(spins: int = _SPINS, clock: Clock = time.perf_counter) -> HostNoise:
    """Spin for a fifth of a second and return what was lost of it."""
    processors = os.cpu_count() or 1
    before = host_times()
    overruns = [_overrun(clock) for _ in range(spins)]
    return noise_of(overruns, share_of_others(before, host_times(), processors), processors)


def noise_of(
    overruns: Sequence[float], others_cpu_share: float | None, processors: int
) -> HostNoise:
    """Return what follows from overruns, at least one."""
    high = percentile(overruns, 99)
    shared = others_cpu_share is not None and others_cpu_share > BUSY_SHARE
    return HostNoise(
        tuple(overruns),
        percentile(overruns, 50),
        high,
        max(overruns),
        others_cpu_share,
        processors,
        shared or high > BUSY_OVERRUN,
    )


def _overrun(clock: Clock) -> float:
    end = clock() + SPIN_SECONDS
    while (now := clock()) < end:
        pass
    return now - end
