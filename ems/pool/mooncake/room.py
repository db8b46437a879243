"""Which entries of a call pass through the staging memory together."""

import logging
from collections.abc import Mapping

from ems.common.units import format_nbytes
from ems.pool.extents import aligned

_LOG = logging.getLogger(__name__)


class Room:
    """The staging memory as one call may use it."""

    def __init__(self, nbytes: int, where: str) -> None:
        self._nbytes = nbytes
        self._where = where
        self._told = False

    def fitting(self, sizes: Mapping[int, int]) -> list[int]:
        """Return those of the entries that fit, by what names them; says once that some do not."""
        left = self._nbytes
        fitting: list[int] = []
        for at, size in sizes.items():
            if aligned(size) <= left:
                left -= aligned(size)
                fitting.append(at)
            else:
                self._tell(size)
        return fitting

    def _tell(self, nbytes: int) -> None:
        if not self._told:
            self._told = True
            _LOG.warning(
                "%s: entries of %s are not stored where they exceed, with the others of their "
                "call, the staging memory of %s; set ?staging= higher",
                self._where,
                format_nbytes(nbytes),
                format_nbytes(self._nbytes),
            )
