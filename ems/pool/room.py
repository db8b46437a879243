"""Which entries of a call pass through the staging memory together."""

import logging
from collections.abc import Mapping

from ems.common.units import format_nbytes
from ems.pool.extents import aligned

_LOG = logging.getLogger(__name__)


class Room:
    """The staging memory as one call may use it."""

    def __init__(self, nbytes: int, *, pool: str, limit: str) -> None:
        """Let calls have `nbytes`; the names of the pool and of its limit are for the warning."""
        self._nbytes = nbytes
        self._pool = pool
        self._limit = limit
        self._told = False

    def admitted(self, sizes: Mapping[int, int]) -> list[int]:
        """Return those of the entries that fit, by what names them; says once that some do not."""
        left = self._nbytes
        admitted: list[int] = []
        for at, size in sizes.items():
            if aligned(size) <= left:
                left -= aligned(size)
                admitted.append(at)
            else:
                self.tell(size)
        return admitted

    def tell(self, nbytes: int) -> None:
        """Warn, the first time, that an entry of this size is not stored."""
        if not self._told:
            self._told = True
            _LOG.warning(
                "%s: entries of %s are not stored where they exceed, with the others of their "
                "call, %s (%s)",
                self._pool,
                format_nbytes(nbytes),
                format_nbytes(self._nbytes),
                self._limit,
            )
