"""Timing, with the clock as an argument, and what can be said about a handful of times."""

import math
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

Clock: TypeAlias = Callable[[], float]

FEW_SAMPLES: Final = 10
"""Below this many runs the high percentiles are little more than the maximum."""
BUSY_SHARE: Final = 0.15
"""Share of the host's processors that others may use before figures are doubted."""
TIGHT: Final = 0.03
"""Half of the interval of a median, as a share of it, at which no more runs are needed."""
_TAIL = 0.025
_NORMAL = 1.96
_MANY = 100
_STAT = Path("/proc/stat")
_IDLE_FIELDS = (3, 4)  # idle and iowait
_FIELDS = 8  # the guests' times behind them are part of the first two


def seconds_of(action: Callable[[], object], clock: Clock = time.perf_counter) -> float:
    """Return how long `action` took."""
    started = clock()
    action()
    return clock() - started


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that `percent` of the values do not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return values between which the true median lies in 95 of 100 cases, by order statistics.

    Nothing is assumed about how the values are spread. None below six values: too few for it.
    """
    ordered = sorted(values)
    rank = _rank_of_bound(len(ordered))
    return (ordered[rank - 1], ordered[-rank]) if rank else None


def _rank_of_bound(count: int) -> int:
    """Return the largest k for which k or fewer of `count` lie on one side in 2.5 % of cases."""
    if count > _MANY:
        return math.floor((count - _NORMAL * math.sqrt(count)) / 2)
    rank, tail = 0, 1
    while tail <= _TAIL * 2**count:
        rank += 1
        tail += math.comb(count, rank)
    return rank


def looseness(values: Sequence[float]) -> float | None:
    """Return half of the median's interval as a share of the median; None for too few values."""
    bounds = median_interval(values)
    middle = statistics.median(values) if values else 0.0
    return None if bounds is None or middle <= 0 else (bounds[1] - bounds[0]) / 2 / middle


def median_ratio(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Return the median of value / other, pair by pair; None without a pair."""
    ratios = [value / other for value, other in zip(values, others, strict=True) if other > 0]
    return statistics.median(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Processor time at one moment, in seconds since some start."""

    wall: float
    everybody: float | None
    """Of all processes; None where the system does not tell."""
    ours: float
    """Of this process."""


def host_times() -> HostTimes:
    """Return the times now."""
    ours = os.times()
    return HostTimes(time.perf_counter(), _everybody(), ours.user + ours.system)


def share_of_others(before: HostTimes, after: HostTimes, processors: int) -> float | None:
    """Return which share of the host's processors other processes used in between."""
    available = (after.wall - before.wall) * processors
    if before.everybody is None or after.everybody is None or available <= 0:
        return None
    used = (after.everybody - before.everybody) - (after.ours - before.ours)
    return min(1.0, max(0.0, used / available))


def _everybody() -> float | None:
    try:
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        ticks = [int(field) for field in fields[1 : 1 + _FIELDS]]
        busy = sum(ticks) - sum(ticks[at] for at in _IDLE_FIELDS)
        return busy / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
