"""Entries as objects of Mooncake: found, read and removed, with what their headers say."""

import logging
import re
import threading
import time
from collections.abc import Sequence

from ems.common.exception import RequestTimeout
from ems.pool.base import EntryInfo, Miss
from ems.pool.mooncake import codes
from ems.pool.mooncake.admin import Admin
from ems.pool.mooncake.header import HEADER_NBYTES, Header, header_at, verified
from ems.pool.mooncake.library import Library, Located

_LOG = logging.getLogger(__name__)

_REMEMBERED = 1 << 16
_HEADERS_AT_ONCE = 512
HEADERS_NBYTES = _HEADERS_AT_ONCE * HEADER_NBYTES
"""Registered memory for look-ups, beside that for entries."""
_DEAD_SECONDS = 5.0
"""How long a node that did not answer is not asked again."""


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
        there = {
            name: place for name, place in zip(names, places, strict=True) if place is not None
        }
        infos: dict[str, EntryInfo] = {}
        unknown: list[str] = []
        for name, place in there.items():
            known, info = self._known.get(name, (None, None))
            if info and known == place:
                infos[name] = info
            else:
                unknown.append(name)
        for at in range(0, len(unknown), _HEADERS_AT_ONCE):
            some = unknown[at : at + _HEADERS_AT_ONCE]
            for name, header in zip(some, self._headers(some, deadline), strict=True):
                if isinstance(header, Header) and header.size == there[name].size:
                    infos[name] = EntryInfo(header.tokens, header.nbytes)
                    self.remember(name, there[name], infos[name])
                elif clean and header is Miss.DAMAGED:
                    self.remove_damaged(name)
        return [infos.get(name) for name in names]

    def places(self, names: Sequence[str], *, deadline: float | None) -> list[Located | None]:
        """Return where objects are that can be read now."""
        places = self.locate(names, deadline)
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
        still = self.locate([names[at] for at in unsure], None)
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
        if not names:
            return
        until = time.monotonic() + _DEAD_SECONDS
        for place in self.locate(names, None):
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

    def locate(self, names: Sequence[str], deadline: float | None) -> list[Located | None]:
        """Return where objects are, whether their nodes answer or not."""
        if not names:
            return []
        if self._admin:
            return self._admin.locate(names, deadline=deadline)
        exist = self._library.exist(names)
        there = [name for name, is_there in zip(names, exist, strict=True) if is_there]
        places = dict(zip(there, self._library.locate(there), strict=True))
        return [places.get(name) for name in names]

    def _headers(self, names: Sequence[str], deadline: float | None) -> list[Header | Miss]:
        """Return the headers of objects, or DAMAGED for what is no entry; ABSENT: not readable."""
        left = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._headers_lock.acquire(timeout=left):
            raise RequestTimeout("the time-out passed while another look-up read headers")
        try:
            answers = self._library.get_starts(names, self._headers_address, HEADER_NBYTES)
            headers = [
                self._header(name, self._headers_address + at * HEADER_NBYTES, answer)
                for at, (name, answer) in enumerate(zip(names, answers, strict=True))
            ]
        finally:
            self._headers_lock.release()
        failed = zip(names, answers, strict=True)
        self.note_dead([name for name, answer in failed if answer == codes.TRANSFER_FAILED])
        return headers

    def _header(self, name: str, address: int, answer: int) -> Header | Miss:
        if answer == HEADER_NBYTES:
            return header_at(address, name) or Miss.DAMAGED
        if answer >= 0 or answer == codes.BAD_ARGUMENT:  # it is shorter than a header
            return Miss.DAMAGED
        if answer in (
            codes.NOT_FOUND,
            codes.NOT_READY,
            codes.LEASE_EXPIRED,
            codes.TRANSFER_FAILED,
        ):
            return Miss.ABSENT
        raise codes.failure("reading headers", answer, self._where)

    def _is_dead(self, place: Located) -> bool:
        return self._dead.get(place.endpoint, 0.0) > time.monotonic()

    def remember(self, name: str, place: Located, info: EntryInfo) -> None:
        """Note what an object is, for as long as it stays where it is."""
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
        self._known[name] = (place, info)
