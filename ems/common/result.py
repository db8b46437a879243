"""What a call has done."""

from dataclasses import dataclass


@dataclass(frozen=True)
class CcResult:
    """Counts of one save, load or exists, in hashes (not tokens)."""

    success: int
    """The leading run of hashes that are truly done: `success * Block_size` tokens may be used as a
    prefix. Later hashes of a save may be stored as well; a load writes nothing behind the run."""
    total: int
    """Hashes in the request."""
