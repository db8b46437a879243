"""Small pictures made of block characters."""

from collections.abc import Sequence
from math import log

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_HEIGHTS = "▁▂▃▄▅▆▇█"


def bar(value: float, most: float, width: int) -> str:
    """Return a bar of `width` characters when `value` is `most`, and in proportion below."""
    eighths = round(min(1.0, max(0.0, value / most)) * width * 8) if most > 0 else 0
    whole, rest = divmod(eighths, 8)
    return "█" * whole + (_EIGHTHS[rest] if rest else "")


def histogram(values: Sequence[float], bins: int) -> str:
    """Return how many values lie where between the least and the greatest, in equal ratios.

    A ratio, not a distance: one late run in a hundred would press all others into one bar.
    """
    low, high = min(values), max(values)
    counts = [0] * bins
    span = log(high / low) if high > low > 0 else 0.0
    for each in values:
        place = int(log(each / low) / span * bins) if span else 0
        counts[min(place, bins - 1)] += 1
    most = max(counts)
    return "".join(
        _HEIGHTS[-(-count * len(_HEIGHTS) // most) - 1] if count else " " for count in counts
    )
