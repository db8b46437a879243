"""What a benchmark's blocks hold, and whether it has come back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ems.layout.registration import Registration
from ems_cli.diagnostics.content import block_rows, number_of, wrong_rows

_BLOCKS_AT_ONCE = 64


@dataclass(slots=True)
class Compared:
    """What comparing loaded blocks has found so far."""

    verified: int = 0
    wrong: int = 0
    first_wrong: str | None = None

    def note_never_saved(self, loaded: int, saved: int) -> None:
        """Count what loads have reported beyond all that was saved: no bytes can be right."""
        if loaded > saved:
            self.verified += loaded - saved
            self.wrong += loaded - saved
            told = f"loads reported {loaded} blocks, of which {saved} were ever saved"
            self.first_wrong = self.first_wrong or told


class Content:
    """Numbers blocks, writes what the numbers stand for into a cache, and looks for it again."""

    def __init__(
        self, cache: Any, registration: Registration, plane_names: Sequence[Sequence[str]]
    ) -> None:
        self._cache = cache
        self._registration = registration
        self._plane_names = plane_names
        self._taken = 0

    def touch_every_block(self) -> None:
        """Write all of the cache once, so that no first touch of its memory is timed.

        Raises:
            DeviceFailed: a copy failed.
        """
        blocks = range(self._registration.groups[0].num_blocks)
        for start in range(0, len(blocks), _BLOCKS_AT_ONCE):
            some = list(blocks[start : start + _BLOCKS_AT_ONCE])
            self.write(some, self.take(len(some)))

    def take(self, count: int) -> list[int]:
        """Return numbers that no block had before."""
        first = self._taken
        self._taken += count
        return list(range(first, self._taken))

    def write(self, blocks: Sequence[int], numbers: Sequence[int]) -> None:
        """Fill blocks with what their numbers stand for.

        Raises:
            DeviceFailed: a copy failed.
        """
        for layer, planes in enumerate(self._registration.planes):
            for plane in planes:
                rows = block_rows(layer, plane.index, numbers, plane.block_nbytes)
                self._cache.write(layer, plane.index, blocks, rows)

    def compare(
        self,
        loaded: Sequence[int],
        sources: Sequence[int],
        numbers: Sequence[int],
        into: Compared,
    ) -> None:
        """Compare blocks with the numbers that `sources` had when they were saved.

        Raises:
            DeviceFailed: a copy failed.
        """
        wrong: set[int] = set()
        for layer, planes in enumerate(self._registration.planes):
            for plane in planes:
                found = self._cache.read(layer, plane.index, loaded)
                expected = block_rows(layer, plane.index, numbers, plane.block_nbytes)
                rows = wrong_rows(found, expected)
                if rows and into.first_wrong is None:
                    row = found[rows[0]]
                    name = self._plane_names[layer][plane.index]
                    other = number_of(row, layer, plane.index, numbers)
                    into.first_wrong = _told(
                        f"layer {layer} {name} block {loaded[rows[0]]}",
                        sources[rows[0]],
                        None if other is None else sources[numbers.index(other)],
                        int(np.flatnonzero(row != expected[rows[0]])[0]),
                    )
                wrong.update(rows)
        into.verified += len(loaded)
        into.wrong += len(wrong)


def _told(where: str, source: int, other: int | None, byte: int) -> str:
    told = f"{where}, loaded from what block {source} was saved as, differs from byte {byte} on"
    return told if other is None else f"{told}: it holds what block {other} was saved as"
