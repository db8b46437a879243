"""How long to sleep between two looks at the NPU: prompt where its work ends, cheap until then."""

import ctypes
import time
from collections.abc import Iterator
from contextlib import suppress

_SHORTEST = 20e-6
_LONGEST = 200e-6
_GROWTH = 1.25
_SURE = 0.85
"""Share of the time expected for a copy in which it is not looked at."""
_BLIND = 5e-3
"""Seconds after which a deadline, or a lost NPU, is noticed at the latest."""
_FORGET = 0.9
_SET_TIMER_SLACK = 29  # PR_SET_TIMERSLACK of prctl(2)


def sleep_precisely() -> None:
    """Have the calling thread's short sleeps end on time; Linux makes them 50 us longer."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, ctypes.c_ulong(1), 0, 0, 0)


def naps() -> Iterator[float]:
    """Yield how long to sleep between looks: from 20 to 200 microseconds."""
    nap = _SHORTEST
    while True:
        yield nap
        nap = min(nap * _GROWTH, _LONGEST)


class Pace:
    """How fast the copies of one direction are, and so when it is worth looking at the next."""

    def __init__(self) -> None:
        self._rate = 0.0

    def note(self, nbytes: int, seconds: float) -> None:
        """Learn from a copy. The fast ones count: to look too early costs little."""
        if seconds > 0:
            self._rate = max(self._rate * _FORGET, nbytes / seconds)

    def naps(self, nbytes: int, started: float) -> Iterator[float]:
        """Yield how long to sleep until a copy that started then has probably ended, and after."""
        sure = started + _SURE * nbytes / self._rate if self._rate else started
        while (left := sure - time.perf_counter()) > _SHORTEST:
            yield min(left, _BLIND)
        yield from naps()
