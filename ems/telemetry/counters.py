"""Counters of a process. Every total is the sum of its parts."""

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from ems.telemetry.tally import CallRecord


@dataclass
class _Operation:
    calls: int = 0
    failed: int = 0
    hashes: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    fates: Counter[str] = field(default_factory=Counter)
    codes: Counter[str] = field(default_factory=Counter)
    phases: Counter[str] = field(default_factory=Counter)


class Counters:
    """What all calls of a process did so far, by operation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._operations: dict[str, _Operation] = {}

    def add(self, call: CallRecord) -> None:
        """Count a call that has ended."""
        with self._lock:
            mine = self._operations.setdefault(call.operation, _Operation())
            mine.calls += 1
            mine.hashes += call.hashes
            mine.nbytes += call.nbytes
            mine.seconds += call.seconds
            for fate, hashes in call.fates.items():
                mine.fates[fate] += hashes
            for phase, seconds in call.phases.items():
                mine.phases[phase] += seconds  # type: ignore[assignment] # Counter is typed for int
            if call.code is not None:
                mine.failed += 1
                mine.codes[call.code.name] += 1

    def snapshot(self) -> dict[str, dict[str, Any]]:
        """Return the counters by operation, made of JSON's types.

        hashes is the sum of hashes_by_fate, failed the sum of failures_by_code. For a load the fate
        "done" counts hits; every other one, but "failed", is a reason for a miss.
        """
        with self._lock:
            return {
                name: {
                    "calls": mine.calls,
                    "failed": mine.failed,
                    "hashes": mine.hashes,
                    "nbytes": mine.nbytes,
                    "seconds": mine.seconds,
                    "hashes_by_fate": dict(mine.fates),
                    "failures_by_code": dict(mine.codes),
                    "seconds_by_phase": dict(mine.phases),
                }
                for name, mine in self._operations.items()
            }
