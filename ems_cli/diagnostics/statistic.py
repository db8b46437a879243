"""Whether two sets of times differ: rank test and bootstrap, with the standard library alone."""

import math
import random
from collections.abc import Sequence
from statistics import median
from typing import Final

_RESAMPLES: Final = 1000
_SEED: Final = 20240229
_TAIL: Final = 0.025


def rank_p_value(values: Sequence[float], others: Sequence[float]) -> float:
    """Return how often chance alone parts two sets so well (Mann-Whitney U, two-sided, with ties).

    The normal approximation: usable from about eight values a side; 1.0 where a side is empty.
    """
    count, other_count = len(values), len(others)
    whole = count + other_count
    if not count or not other_count:
        return 1.0
    ranks, ties = _ranks([*values, *others])
    score = sum(ranks[:count]) - count * (count + 1) / 2
    spread = count * other_count / 12 * (whole + 1 - ties / (whole * (whole - 1)))
    if spread <= 0:
        return 1.0
    distance = max(0.0, abs(score - count * other_count / 2) - 0.5)
    return math.erfc(distance / math.sqrt(2 * spread))


def _ranks(values: Sequence[float]) -> tuple[list[float], int]:
    """Return the rank of each value, the mean one where they tie, and the sum of t^3 - t."""
    order = sorted(range(len(values)), key=lambda at: values[at])
    ranks = [0.0] * len(values)
    ties = start = 0
    while start < len(order):
        end = start
        while end < len(order) and values[order[end]] == values[order[start]]:
            end += 1
        for at in order[start:end]:
            ranks[at] = (start + 1 + end) / 2
        ties += (end - start) ** 3 - (end - start)
        start = end
    return ranks, ties


def ratio_interval(values: Sequence[float], others: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of median(values) / median(others), both above 0."""
    rng = random.Random(_SEED)  # noqa: S311 - resampling, no secret
    ratios = sorted(
        median(rng.choices(values, k=len(values))) / median(rng.choices(others, k=len(others)))
        for _ in range(_RESAMPLES)
    )
    return ratios[int(_TAIL * _RESAMPLES)], ratios[int((1 - _TAIL) * _RESAMPLES) - 1]
