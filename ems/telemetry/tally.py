"""What one call did, noted while it is carried out."""

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
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
    """Seconds by phase; they do not overlap."""

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time spent in the block to a phase."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.phases[name] = self.phases.get(name, 0.0) + time.perf_counter() - start


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
