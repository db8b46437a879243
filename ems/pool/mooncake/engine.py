"""The pool on a Mooncake Store: entries pass through pinned, registered memory of this process."""
# ruff: noqa: D102 - what an engine's methods do is said once, in the interface

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence

from ems.common.exception import InvalidArgument, PoolUnavailable, RequestTimeout
from ems.pool.base import (
    EntryInfo,
    Held,
    HostMemory,
    Miss,
    NotStored,
    Place,
    PoolEngine,
    PoolKey,
    PoolStats,
    Refused,
)
from ems.pool.mooncake.connection import Connection, Link
from ems.pool.mooncake.desk import Desk
from ems.pool.mooncake.fetch import Fetching, withhold
from ems.pool.mooncake.header import HEADER_NBYTES, object_nbytes
from ems.pool.mooncake.settings import MooncakeSettings
from ems.pool.mooncake.store import Staged, Storing
from ems.pool.room import Room
from ems.pool.staging import Staging
from ems.pool.url import PoolUrl

_PREFIX = "ems:"
"""Starts the names of entries in Mooncake, whatever their keys."""
_COMMIT_SECONDS = 30.0
_REPORT_SECONDS = 0.25
"""What is left of a deadline to tell which entries were not stored."""
_HEALTH_SECONDS = 1.5
_REMEMBERED = 1 << 16


class MooncakePool(PoolEngine):
    """Entries as objects of a Mooncake cluster.

    Nothing is connected before the first call; each call connects where that is still to be done.
    A reader gets a copy that was verified, so nothing that happens in the cluster touches it.

    A look-up leases what it finds for the master's default time (10 s unless set), in which it is
    not evicted; with `?metrics=` it leases nothing. Without, saves that find no room are refused
    for as long as all that is stored is looked up again and again. An evicted entry is ABSENT:
    Mooncake does not say why one is not there.
    """

    def __init__(self, settings: MooncakeSettings, memory: HostMemory) -> None:
        self._settings = settings
        self._connection = Connection(settings, memory)
        self._desk = Desk()
        self._room = Room(settings.staging_nbytes, pool=self._connection.where, limit="?staging=")
        self._missed: OrderedDict[PoolKey, Miss] = OrderedDict()
        # each direction gets half, less what headers and fragments take
        self.window_nbytes = settings.staging_nbytes * 3 // 8

    @classmethod
    def from_url(cls, url: PoolUrl, memory: HostMemory) -> "MooncakePool":
        """Return the pool of `mooncake://HOST:PORT`.

        Options: staging=256MiB, segment=0, host=, protocol=tcp, device=, metrics=PORT, checksum=on.

        Raises:
            InvalidArgument: the URL is wrong, or names a network that is not there.
        """
        return cls(MooncakeSettings.from_url(url), memory)

    @property
    def damaged(self) -> int:
        """How many entries were removed since they were not what had been saved."""
        return self._connection.damaged

    def lookup(
        self, keys: Sequence[PoolKey], *, deadline: float | None = None
    ) -> list[EntryInfo | None]:
        names = [_PREFIX + key for key in keys]
        return self._connection.run(
            lambda link: link.entries.info(names, deadline=deadline),
            doing="a look-up",
            deadline=deadline,
        )

    def reserve(
        self,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
        nbytes: Sequence[int],
        *,
        deadline: float | None,
    ) -> list[Place | Refused]:
        names = [_PREFIX + key for key in keys]
        infos = self._connection.run(
            lambda link: link.entries.info(names, deadline=deadline, clean=True),
            doing="a look-up",
            deadline=deadline,
        )
        answers = [
            Refused.ALREADY_THERE if info and info.tokens >= many else Refused.NO_SPACE
            for info, many in zip(infos, tokens, strict=True)
        ]
        sizes = [
            object_nbytes(tokens=many, nbytes=size)
            for many, size in zip(tokens, nbytes, strict=True)
        ]
        wanted = {at: sizes[at] for at, answer in enumerate(answers) if answer is Refused.NO_SPACE}
        chosen = self._room.admitted(wanted)
        self._note([keys[at] for at in wanted.keys() - chosen], Miss.SAVE_FAILED)
        starts = self._staging().take([sizes[at] for at in chosen], deadline=deadline)
        places = {
            at: Place(keys[at], start + HEADER_NBYTES, tokens[at], nbytes[at])
            for at, start in zip(chosen, starts, strict=True)
        }
        self._desk.reserve(list(places.values()), deadline)
        return [places.get(at, answer) for at, answer in enumerate(answers)]

    def commit(self, places: Sequence[Place]) -> None:
        deadline = self._desk.take_back(places)
        if deadline is None:
            deadline = time.monotonic() + _COMMIT_SECONDS
        end = deadline - _REPORT_SECONDS
        staged = [Staged(_PREFIX + one.key, _start(one), one.tokens, one.nbytes) for one in places]
        self._note([one.key for one in places], Miss.SAVE_FAILED)

        def store(link: Link) -> None:
            storing = Storing(link.library, link.entries, end, self._connection.where)
            storing.run(staged, checksum=self._settings.checksum)

        self._connection.run(
            store, doing="storing", deadline=deadline, undo=lambda: self._give_staged(staged)
        )
        self._give_staged(staged)
        self._settle(places, staged)

    def abort(self, places: Sequence[Place]) -> None:
        self._desk.take_back(places)
        self._note([one.key for one in places], Miss.SAVE_FAILED)
        self._give(places)

    def acquire(
        self, keys: Sequence[PoolKey], tokens: Sequence[int], *, deadline: float | None
    ) -> list[Held | Miss]:
        names = list(dict.fromkeys(_PREFIX + key for key in keys))
        fetchings: list[Fetching] = []

        def fetch(link: Link) -> Fetching:
            fetching = Fetching(link.entries, link.staging, names, deadline)
            fetchings.append(fetching)
            fetching.run()
            return fetching

        def undo() -> None:
            for fetching in fetchings:
                fetching.undo()

        fetching = self._connection.run(fetch, doing="reading", deadline=deadline, undo=undo)
        found = [self._found(fetching, key, many) for key, many in zip(keys, tokens, strict=True)]
        self._desk.hold([one for one in found if isinstance(one, Held)])
        used = {_start(one) for one in found if isinstance(one, Held)}
        self._staging().give([start for start, _ in fetching.found.values() if start not in used])
        return found

    def release(self, held: Sequence[Held]) -> None:
        self._give(self._desk.release(held))

    def remove(self, keys: Sequence[PoolKey]) -> int:
        for key in keys:
            self._missed.pop(key, None)
        names = list(dict.fromkeys(_PREFIX + key for key in keys))
        return self._connection.run(
            lambda link: link.entries.remove(names), doing="a removal", deadline=None
        )

    def clear(self) -> int:
        self._missed.clear()
        return self._connection.run(
            lambda link: link.entries.remove_all(_PREFIX), doing="a removal", deadline=None
        )

    def keys(self) -> Iterator[PoolKey]:
        self._connection.check_open()
        admin = self._connection.admin
        if admin is None:
            raise InvalidArgument(
                f"the pool {self._settings.text} lists no keys: add metrics=PORT, the master's "
                "--metrics_port"
            )
        names = [name for name in admin.names() if name.startswith(_PREFIX)]
        return iter([PoolKey(name.removeprefix(_PREFIX)) for name in names])

    def stats(self) -> PoolStats:
        """Return the cluster's figures and this process's staging memory, together.

        Without `?metrics=` only the latter are known. Entries and evictions are those of the whole
        cluster, whoever uses it.
        """
        self._connection.check_open()
        admin, staging = self._connection.admin, self._connection.staging
        figures = admin.figures() if admin else {}
        capacity = figures.get("master_total_capacity_bytes", 0)
        allocated = figures.get("master_allocated_bytes", 0)
        passing = self._settings.staging_nbytes
        reserved, held = self._desk.reserved_nbytes, self._desk.held_nbytes
        return PoolStats(
            capacity_nbytes=capacity + passing,
            backed_nbytes=capacity + passing * (staging is not None),
            used_nbytes=allocated + reserved + held,
            reserved_nbytes=reserved,
            held_nbytes=held,
            largest_free_nbytes=max(0, min(capacity - allocated, passing - reserved - held)),
            entries=figures.get("master_key_count", 0),
            evictions=figures.get("master_evicted_key_count", 0),
            staging_nbytes=passing,
        )

    def check_health(self, *, deadline: float | None) -> None:
        until = time.monotonic() + _HEALTH_SECONDS
        limit = until if deadline is None else min(deadline, until)
        self._connection.doubt()
        try:
            self._connection.run(
                lambda link: link.health.check(deadline=limit),
                doing="a check of its health",
                deadline=limit,
            )
        except RequestTimeout as error:
            raise PoolUnavailable(str(error)) from error

    def close(self) -> None:
        self._connection.close()

    def _staging(self) -> Staging:
        """The memory that entries pass through; there is some once a call has connected."""
        staging = self._connection.staging
        if staging is None:
            raise PoolUnavailable(f"{self._connection.where} is not connected")
        return staging

    def _give(self, out: Sequence[Place | Held]) -> None:
        if out:
            self._staging().give([_start(one) for one in out])

    def _give_staged(self, staged: Sequence[Staged]) -> None:
        """Give the memory of a commit back; a transfer that failed may still read some of it."""
        if staged:
            withhold(self._staging(), [one.start for one in staged if one.transfers_failed])
            self._staging().give([one.start for one in staged if not one.transfers_failed])

    def _note(self, keys: Sequence[PoolKey], why: Miss) -> None:
        """Remember why keys will be missed, where the cluster has nothing under them."""
        for key in keys:
            self._missed[key] = why
        while len(self._missed) > _REMEMBERED:
            self._missed.popitem(last=False)

    def _settle(self, places: Sequence[Place], staged: Sequence[Staged]) -> None:
        """Report what a commit did not store."""
        for place, one in zip(places, staged, strict=True):
            if not one.why:
                self._missed.pop(place.key, None)
        failed = [place for place, one in zip(places, staged, strict=True) if one.why]
        if failed:
            why = next(one.why for one in staged if one.why)
            raise NotStored(
                f"{self._connection.where} did not store {len(failed)} of {len(places)} entries: "
                f"{why}",
                failed,
            )

    def _found(self, fetching: Fetching, key: PoolKey, tokens: int) -> Held | Miss:
        found = fetching.found.get(_PREFIX + key)
        if found is None:
            miss = fetching.missed[_PREFIX + key]
            return self._missed.get(key, miss) if miss is Miss.ABSENT else miss
        start, header = found
        if header.tokens < tokens:
            return Miss.TOO_SHORT
        return Held(key, start + HEADER_NBYTES, header.tokens, header.nbytes)


def _start(one: Place | Held) -> int:
    return one.address - HEADER_NBYTES
