"""What one call did, noted while it is carried out."""

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from ems.common.exception import EmsErrorCode


@dataclass(slots=True)
class Tally:
    """Notes of a call under way. Belongs to the thread that carries it out."""

    fates: Counter[str] = field(default_factory=Counter)
    """What became of the request's hashes; they add up to all of them once it has ended."""
    nbytes: int = 0
    """Bytes that arrived."""
    phases: dict[str, float] = field(default_factory=dict)
    """Seconds by phase; they do not overlap, and leave nothing out."""
    _since: float = field(default_factory=time.monotonic)

    def lap(self, name: str) -> None:
        """Add the time since the last lap, or since the start, to a phase."""
        now = time.monotonic()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._since
        self._since = now


@dataclass(frozen=True, slots=True)
class CallRecord:
    """A call that has ended."""

    operation: str
    """save, load or exists."""
    hashes: int
    success: int
    fates: Mapping[str, int]
    """What became of the hashes, by name; the values add up to `hashes`."""
    nbytes: int
    phases: Mapping[str, float]
    """Seconds."""
    seconds: float
    """From submission to the end."""
    code: EmsErrorCode | None = None
    """How it failed, if it did."""
