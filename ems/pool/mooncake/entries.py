"""Entries as objects of Mooncake: found, stored and fetched, with their headers.

Mooncake never replaces an object on put, and answers 0 all the same; nor does it store one whose
earlier writer died half-way, until that writer's time is over. So what was put is looked for.

A fuller version replaces a shorter one by removing it first. Whoever reads the old one at that
moment may get bytes of both: the checksum tells, or without one that the object has moved; it is
read once more. A writer
that dies in between leaves a miss. Two processes that store one key at the same moment, with
different tokens but equal bytes, may leave the shorter one: a miss for who needs more, no more.
"""

import logging
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ems.common.exception import RequestTimeout
from ems.pool.base import EntryInfo, Miss
from ems.pool.mooncake import codes
from ems.pool.mooncake.admin import Admin
from ems.pool.mooncake.header import HEADER_NBYTES, Header, header_at, object_nbytes, seal, verified
from ems.pool.mooncake.library import Library, Located

_LOG = logging.getLogger(__name__)

_REMEMBERED = 1 << 16
_HEADERS_AT_ONCE = 512
HEADERS_NBYTES = _HEADERS_AT_ONCE * HEADER_NBYTES
"""Registered memory for look-ups, beside that for entries."""
_WRITTEN_BY_ANOTHER_SECONDS = 2.0
"""How long an object that was put, and is not there, may still be on its way from another."""
_DEAD_SECONDS = 5.0
"""How long a node that did not answer is not asked again."""
_ATTEMPTS = 2
_PAUSES = (0.002, 0.005, 0.01, 0.02, 0.05)


@dataclass(frozen=True, slots=True)
class Staged:
    """An entry in registered memory, behind room for its header."""

    name: str
    start: int
    tokens: int
    nbytes: int

    @property
    def size(self) -> int:
        """What it is as an object."""
        return object_nbytes(tokens=self.tokens, nbytes=self.nbytes)


@dataclass(slots=True, eq=False)
class Putting:
    """An entry on its way into the cluster, and what became of it."""

    staged: Staged
    why: str | None = None
    """Why it is not stored, once that is certain."""
    transfers_failed: int = 0
    """After such a failure something may still read its memory for a while."""
    code: int | None = None
    """What the newest put answered."""
    absent_since: float = 0.0


class Entries:
    """The operations of one connection. All may block for as long as Mooncake does."""

    def __init__(
        self,
        library: Library,
        admin: Admin | None,
        headers_address: int,
        where: str,
        *,
        checksum: bool,
    ) -> None:
        self.damaged = 0
        """How many entries were not what their headers say, and have been removed."""
        self._library = library
        self._admin = admin
        self._headers_address = headers_address
        self._headers_lock = threading.Lock()
        self._where = where
        self._checksum = checksum
        self._known: dict[str, tuple[Located, EntryInfo]] = {}
        self._dead: dict[str, float] = {}

    def info(
        self, names: Sequence[str], *, deadline: float | None, clean: bool = False
    ) -> list[EntryInfo | None]:
        """Return what is stored; an object that is no entry is not, and goes where `clean`."""
        places = self.places(names, deadline=deadline)
        infos: dict[str, EntryInfo] = {}
        unknown: list[str] = []
        for name, place in zip(names, places, strict=True):
            if place is None:
                continue
            known = self._known.get(name)
            if known and known[0] == place:
                infos[name] = known[1]
            else:
                unknown.append(name)
        where = dict(zip(names, places, strict=True))
        for at in range(0, len(unknown), _HEADERS_AT_ONCE):
            some = unknown[at : at + _HEADERS_AT_ONCE]
            for name, header in zip(some, self._headers(some, deadline), strict=True):
                place = where[name]
                if header and place and place.size == header.size:
                    infos[name] = EntryInfo(header.tokens, header.nbytes)
                    self._remember(name, place, infos[name])
                elif clean:
                    self.remove_damaged(name)
        return [infos.get(name) for name in names]

    def store(self, entries: Sequence[Putting], *, deadline: float | None) -> None:
        """Store entries, and note at each that is not stored why.

        Raises:
            PoolUnavailable: the master does not answer; some may be stored.
        """
        for entry in (one.staged for one in entries):
            seal(
                entry.start,
                entry.name,
                tokens=entry.tokens,
                nbytes=entry.nbytes,
                checksum=self._checksum,
            )
        pauses = iter(_PAUSES)
        pending: Sequence[Putting] = entries
        while pending:
            staged = [one.staged for one in pending]
            answers = self._library.put(
                [one.name for one in staged],
                [one.start for one in staged],
                [one.size for one in staged],
            )
            for one, code in zip(pending, answers, strict=True):
                if code not in (0, codes.NO_ROOM, codes.TRANSFER_FAILED):
                    raise codes.failure("storing", code, self._where)
                one.code = code
            pending = self._unsettled(pending, deadline)
            if pending:
                time.sleep(next(pauses, _PAUSES[-1]))

    def places(self, names: Sequence[str], *, deadline: float | None) -> list[Located | None]:
        """Return where objects are that can be read now."""
        places = self._locate(names, deadline)
        return [None if place and self._is_dead(place) else place for place in places]

    def fetch(
        self, names: Sequence[str], starts: Sequence[int], places: Sequence[Located]
    ) -> list[Header | Miss | int]:
        """Read entries into staging memory; return their headers, misses, or codes to retry.

        Memory that a failed transfer may still write into has code TRANSFER_FAILED.
        """
        answers = self._library.get(names, starts, [place.size for place in places])
        found = [
            self._judge(name, start, place.size, answer)
            for name, start, place, answer in zip(names, starts, places, answers, strict=True)
        ]
        unsure = [at for at, one in enumerate(found) if self._is_unsure(one)]
        still = self._locate([names[at] for at in unsure], None)
        for at, place in zip(unsure, still, strict=True):
            if place != places[at]:  # it was removed or replaced meanwhile
                found[at] = codes.LEASE_EXPIRED
        return found

    def _judge(self, name: str, start: int, size: int, answer: int) -> Header | Miss | int:
        if answer == size:
            return verified(start, name, size=size, checksum=self._checksum) or Miss.DAMAGED
        if answer in (codes.NOT_FOUND, codes.NOT_READY):
            return Miss.ABSENT
        if answer in (codes.LEASE_EXPIRED, codes.BAD_ARGUMENT) or answer >= 0:
            return codes.LEASE_EXPIRED
        if answer == codes.TRANSFER_FAILED:
            return answer
        raise codes.failure("reading", answer, self._where)

    def _is_unsure(self, one: Header | Miss | int) -> bool:
        """Whether bytes were read that no checksum vouches for."""
        return isinstance(one, Header) and not (self._checksum and one.has_checksum)

    def note_dead(self, names: Sequence[str]) -> None:
        """Ask the nodes that hold these objects no more for a while."""
        until = time.monotonic() + _DEAD_SECONDS
        for place in self._locate(names, None):
            if place:
                self._dead[place.endpoint] = until

    def remove(self, names: Sequence[str]) -> int:
        """Remove objects and return how many there were."""
        count = 0
        for name, code in zip(names, self._library.remove(names) if names else [], strict=True):
            self._known.pop(name, None)
            if code == 0:
                count += 1
            elif code not in (codes.NOT_FOUND, codes.NOT_READY):
                raise codes.failure("a removal", code, self._where)
        return count

    def remove_all(self, prefix: str) -> int:
        """Remove the objects whose names start with `prefix`, and return their number."""
        self._known.clear()
        return self._library.remove_matching(f"^{re.escape(prefix)}")

    def remove_damaged(self, name: str) -> None:
        """Remove an entry that is not what its header says."""
        self.damaged += 1
        _LOG.warning("%s: a damaged entry has been removed (%d so far)", self._where, self.damaged)
        self.remove([name])

    def _unsettled(self, pending: Sequence[Putting], deadline: float | None) -> list[Putting]:
        """Return what is to be put, now or again. What is in its way goes."""
        places = self._locate([one.staged.name for one in pending], deadline)
        left: list[Putting] = []
        rivals: list[Putting] = []
        for one, place in zip(pending, places, strict=True):
            staged = one.staged
            if place is None:
                left.append(one)
            elif one.code == 0 and place.size == staged.size:
                self._remember(staged.name, place, EntryInfo(staged.tokens, staged.nbytes))
            else:
                rivals.append(one)
        short = self._shorter(rivals, deadline)
        self.remove([one.staged.name for one in short])
        for one in short:
            one.code = None
        return [one for one in left + short if self._may_try(one, deadline)]

    def _shorter(self, rivals: Sequence[Putting], deadline: float | None) -> list[Putting]:
        """Return those whose names are taken by shorter entries, or by such as cannot be read."""
        infos = self.info([one.staged.name for one in rivals], deadline=deadline)
        return [
            one
            for one, info in zip(rivals, infos, strict=True)
            if info is None or info.tokens < one.staged.tokens
        ]

    def _may_try(self, one: Putting, deadline: float | None) -> bool:
        now = time.monotonic()
        if one.code == 0:
            one.absent_since = one.absent_since or now
            if now > one.absent_since + _WRITTEN_BY_ANOTHER_SECONDS:
                one.why = "another writer of it has not ended"
        elif one.code == codes.TRANSFER_FAILED:
            one.transfers_failed += 1
            if one.transfers_failed >= _ATTEMPTS:
                one.why = codes.meaning(one.code)
        if one.why is None and one.code is not None and deadline is not None and now >= deadline:
            one.why = f"the time-out passed: {codes.meaning(one.code)}"
        return one.why is None

    def _locate(self, names: Sequence[str], deadline: float | None) -> list[Located | None]:
        if not names:
            return []
        if self._admin:
            return self._admin.locate(names, deadline=deadline)
        exist = self._library.exist(names)
        there = [name for name, is_there in zip(names, exist, strict=True) if is_there]
        places = dict(zip(there, self._library.locate(there), strict=True))
        return [places.get(name) for name in names]

    def _headers(self, names: Sequence[str], deadline: float | None) -> list[Header | None]:
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._headers_lock.acquire(timeout=left):
            raise RequestTimeout("the time-out passed while another look-up read headers")
        try:
            counts = self._library.get_starts(names, self._headers_address, HEADER_NBYTES)
            return [
                header_at(self._headers_address + at * HEADER_NBYTES, name)
                if count == HEADER_NBYTES
                else None
                for at, (name, count) in enumerate(zip(names, counts, strict=True))
            ]
        finally:
            self._headers_lock.release()

    def _is_dead(self, place: Located) -> bool:
        return self._dead.get(place.endpoint, 0.0) > time.monotonic()

    def _remember(self, name: str, place: Located, info: EntryInfo) -> None:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[name] = (place, info)
