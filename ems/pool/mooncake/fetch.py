"""Brings entries from Mooncake into staging memory, each verified before anyone sees it."""

import threading
from collections.abc import Iterable, Sequence

from ems.common.exception import PoolUnavailable
from ems.common.units import format_nbytes
from ems.pool.base import Miss, TooMuchAtOnce
from ems.pool.extents import aligned
from ems.pool.mooncake import codes
from ems.pool.mooncake.connection import OWN_NBYTES
from ems.pool.mooncake.entries import Entries
from ems.pool.mooncake.header import HEADER_NBYTES, Header
from ems.pool.staging import Staging

_ATTEMPTS = 3
"""An entry that was just being replaced is whole at the next attempt, a damaged one never."""
_CHANGES = 20
"""How often an entry may be replaced or lose its lease while it is read."""
_SUSPECT_SECONDS = 15.0


def withhold(staging: Staging, starts: Sequence[int]) -> None:
    """Give memory back in a while: a transfer that failed may still read or write it.

    vLLM's adapter for Mooncake keeps such memory until its process ends.
    """
    if starts:
        timer = threading.Timer(_SUSPECT_SECONDS, staging.give, [list(starts)])
        timer.daemon = True
        timer.start()


class Fetching:
    """One `acquire`."""

    def __init__(
        self, entries: Entries, staging: Staging, names: Iterable[str], deadline: float | None
    ) -> None:
        self.found: dict[str, tuple[int, Header]] = {}
        """By name, where it starts in staging memory and what its header says."""
        self.missed: dict[str, Miss] = {}
        self._entries = entries
        self._staging = staging
        self._limit_nbytes = staging.nbytes - OWN_NBYTES
        self._names = list(names)
        self._deadline = deadline
        self._taken: set[int] = set()
        self._attempt = 0

    def run(self) -> None:
        """Fetch what is there.

        Raises:
            PoolUnavailable: the pool does not answer, or entries change faster than they are read.
            RequestTimeout: the deadline passed.
        """
        pending: Sequence[str] = self._names
        while pending:
            self._attempt += 1
            pending = self._try(pending)

    def undo(self) -> None:
        """Give the memory back. Only once `run` has ended."""
        self._staging.give(list(self._taken))
        self._taken.clear()

    def _try(self, names: Sequence[str]) -> list[str]:
        """Fetch entries and return those that are to be tried again."""
        found = zip(names, self._entries.places(names, deadline=self._deadline), strict=True)
        places = {name: place for name, place in found if place is not None}
        self.missed.update((name, Miss.ABSENT) for name in names if name not in places)
        for name in [name for name, place in places.items() if place.size < HEADER_NBYTES]:
            del places[name]
            self._damaged(name)
        if not places:
            return []
        sizes = [place.size for place in places.values()]
        self._refuse_too_much(sizes)
        starts = self._staging.take(sizes, deadline=self._deadline)
        self._taken.update(starts)
        answers = self._entries.fetch(list(places), starts, list(places.values()))
        again: list[str] = []
        dead: dict[str, int] = {}
        for name, start, answer in zip(places, starts, answers, strict=True):
            if isinstance(answer, Header):
                self.found[name] = start, answer
            elif answer == codes.TRANSFER_FAILED:
                self._taken.remove(start)
                self.missed[name] = Miss.ABSENT
                dead[name] = start
            else:
                self._taken.remove(start)
                self._staging.give([start])
                if self._is_final(name, answer):
                    continue
                again.append(name)
        withhold(self._staging, list(dead.values()))
        self._entries.note_dead(list(dead))
        return again

    def _refuse_too_much(self, sizes: Iterable[int]) -> None:
        """Refuse at once what could never be had: a part of the memory is lent for good."""
        nbytes = sum(map(aligned, sizes))
        if nbytes > self._limit_nbytes:
            raise TooMuchAtOnce(
                f"entries of {format_nbytes(nbytes)} together do not pass through staging memory "
                f"of {format_nbytes(self._limit_nbytes)}; ask for less, or set ?staging= higher"
            )

    def _is_final(self, name: str, answer: Miss | int) -> bool:
        """Note a miss, unless another attempt may read it: it may just have been replaced."""
        if answer is Miss.ABSENT:
            self.missed[name] = answer
            return True
        if answer is Miss.DAMAGED and self._attempt >= _ATTEMPTS:
            self._damaged(name)
            return True
        if self._attempt >= _CHANGES:
            raise PoolUnavailable(f"an entry changed {_CHANGES} times while it was read")
        return False

    def _damaged(self, name: str) -> None:
        self._entries.remove_damaged(name)
        self.missed[name] = Miss.DAMAGED
