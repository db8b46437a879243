"""Puts entries into Mooncake, and makes sure that they are there.

Mooncake never replaces an object on put, and answers 0 all the same; nor does it store one whose
earlier writer died half-way, until that writer's time is over. So what was put is looked for.

A fuller version replaces a shorter one by removing it first. Whoever reads the old one at that
moment may get bytes of both: the checksum tells, or without one that the object has moved, and it
is read once more. A writer that dies in between leaves a miss. Two processes that store one key at
the same moment with different tokens may leave the shorter one: a miss for who needs more.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ems.pool.base import EntryInfo
from ems.pool.mooncake import codes
from ems.pool.mooncake.entries import Entries
from ems.pool.mooncake.header import object_nbytes, seal
from ems.pool.mooncake.library import Library

_WRITTEN_BY_ANOTHER_SECONDS = 2.0
"""How long an object that was put, and is not there, may still be on its way from another."""
_ATTEMPTS = 2
"""How often an object is sent to nodes that do not answer; each time another may be chosen."""
_PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05)


@dataclass(slots=True, eq=False)
class Staged:
    """An entry in registered memory, behind room for its header, and what became of it."""

    name: str
    start: int
    tokens: int
    nbytes: int
    why: str | None = None
    """Why it is not stored, once that is certain."""
    transfers_failed: int = 0
    """After such a failure something may still read its memory for a while."""
    code: int | None = None
    """What the newest put answered."""
    absent_since: float = 0.0

    @property
    def size(self) -> int:
        """What it is as an object."""
        return object_nbytes(tokens=self.tokens, nbytes=self.nbytes)


class Storing:
    """One `commit`."""

    def __init__(self, library: Library, entries: Entries, deadline: float, where: str) -> None:
        self._library = library
        self._entries = entries
        self._deadline = deadline
        self._where = where

    def run(self, staged: Sequence[Staged], *, checksum: bool) -> None:
        """Store entries, and note at each that is not stored why.

        Raises:
            PoolUnavailable: the master does not answer; some may be stored.
        """
        for one in staged:
            seal(one.start, one.name, tokens=one.tokens, nbytes=one.nbytes, checksum=checksum)
        for batch in _unique(staged):
            pauses = iter(_PAUSES)
            pending = batch
            while pending := self._put(pending):
                time.sleep(next(pauses, _PAUSES[-1]))

    def _put(self, pending: Sequence[Staged]) -> list[Staged]:
        """Put entries, and return those that are to be put again."""
        answers = self._library.put(
            [one.name for one in pending],
            [one.start for one in pending],
            [one.size for one in pending],
        )
        for one, code in zip(pending, answers, strict=True):
            if code not in (0, codes.NO_ROOM, codes.TRANSFER_FAILED):
                raise codes.failure("storing", code, self._where)
            one.code = code
        left = self._absent(pending)
        return [one for one in left if self._may_try(one)]

    def _absent(self, pending: Sequence[Staged]) -> list[Staged]:
        """Return those that are not there. What is shorter, or no entry, goes."""
        places = self._entries.locate([one.name for one in pending], self._deadline)
        absent: list[Staged] = []
        rivals: list[Staged] = []
        for one, place in zip(pending, places, strict=True):
            if place is None:
                absent.append(one)
            elif one.code == 0 and place.size == one.size:
                self._entries.remember(one.name, place, EntryInfo(one.tokens, one.nbytes))
            else:
                rivals.append(one)
        infos = self._entries.info([one.name for one in rivals], deadline=self._deadline)
        short = [
            one
            for one, info in zip(rivals, infos, strict=True)
            if info is None or info.tokens < one.tokens
        ]
        self._entries.remove([one.name for one in short])
        for one in short:
            one.code = None
        return absent + short

    def _may_try(self, one: Staged) -> bool:
        now = time.monotonic()
        if one.code == 0:
            one.absent_since = one.absent_since or now
            if now > one.absent_since + _WRITTEN_BY_ANOTHER_SECONDS:
                one.why = "another writer of it has not ended"
        elif one.code == codes.TRANSFER_FAILED:
            one.transfers_failed += 1
            if one.transfers_failed >= _ATTEMPTS:
                one.why = codes.meaning(one.code)
        if one.why is None and now >= self._deadline:
            one.why = f"the time-out passed: {codes.meaning(one.code or 0)}"
        return one.why is None


def _unique(staged: Sequence[Staged]) -> Iterator[list[Staged]]:
    """Yield them in turns in which no name occurs twice; Mooncake takes names for unique."""
    left = staged
    while left:
        batch = {one.name: one for one in reversed(left)}
        yield list(batch.values())
        left = [one for one in left if batch[one.name] is not one]
