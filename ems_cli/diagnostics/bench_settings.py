"""What a benchmark of saves and loads is to measure."""

from dataclasses import dataclass
from typing import Final, Literal

Order = Literal["random", "sequential"]
USUAL_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how often."""

    blocks_per_call: int
    in_flight: int
    """Calls of one run: one after another when they wait, all at once when they do not."""
    miss_ratio: float
    """Share of each load's blocks, its last ones, that were never saved."""
    order: Order
    """Blocks anywhere in the cache, or blocks that follow each other in memory."""
    verify: bool
    runs: int | None
    """None: until the medians are known well enough, or `seconds` are over."""
    pool: str | None
    """URL; None: a pool in this process, just large enough."""
    seconds: float = USUAL_SECONDS
    """Time on one NPU after which there are no further runs, if `runs` is None."""
    seed: int = 0

    @property
    def hits_per_call(self) -> int:
        """Blocks of each load that were saved."""
        return self.blocks_per_call - round(self.blocks_per_call * self.miss_ratio)

    @property
    def blocks_at_once(self) -> int:
        """Blocks that the calls of one run name."""
        return self.blocks_per_call * self.in_flight
