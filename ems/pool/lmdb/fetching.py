"""Reads entries into staging memory: all that a call asks for, or nothing."""

from collections.abc import Iterable, Sequence

from ems.common.units import format_nbytes
from ems.pool.base import Held, Miss, PoolKey, TooMuchAtOnce
from ems.pool.extents import aligned
from ems.pool.lmdb.memories import Memories
from ems.pool.lmdb.record import BROKEN, Header
from ems.pool.lmdb.shard import Fetched, Wish
from ems.pool.lmdb.shards import Shards
from ems.pool.staging import Staging


class Fetch:
    """One call of `acquire`.

    Headers are looked at first, and memory is waited for outside of any transaction. Where an
    entry has become another one meanwhile, it is looked at again.
    """

    def __init__(
        self,
        shards: Shards,
        staging: Staging,
        memories: Memories,
        keys: Sequence[PoolKey],
        tokens: Sequence[int],
    ) -> None:
        self._shards = shards
        self._staging = staging
        self._memories = memories
        self._keys = keys
        self._tokens = tokens
        self._answers: dict[int, Held | Miss] = {}
        self._damaged: list[tuple[PoolKey, Header]] = []

    def run(self, *, limit_nbytes: int, deadline: float | None) -> list[Held | Miss]:
        """Return a copy of each entry, or why there is none.

        Raises:
            TooMuchAtOnce: what is asked for exceeds `limit_nbytes`.
            PoolUnavailable: the pool did not answer.
            RequestTimeout: the deadline passed while waiting for staging memory.
        """
        places = range(len(self._keys))
        try:
            while left := [at for at in places if at not in self._answers]:
                wanted = self._judge(left)
                if _nbytes_of(wanted.values()) > limit_nbytes:
                    wanted = self._examine(wanted)
                    _check_size(wanted.values(), limit_nbytes)
                self._fetch(wanted, deadline=deadline)
            self._remove_damaged()
        except BaseException:
            held = [one.address for one in self._answers.values() if isinstance(one, Held)]
            self._staging.give(held)
            raise
        answers = [self._answers[at] for at in places]
        self._memories.touch(
            key
            for key, one in zip(self._keys, answers, strict=True)
            if isinstance(one, Held) or one is Miss.TOO_SHORT
        )
        return answers

    def _judge(self, left: Sequence[int]) -> dict[int, Header]:
        """Answer what headers alone can, and return those of the entries to read."""
        wanted = {}
        absent = []
        headers = self._shards.headers([self._keys[at] for at in left])
        for at, header in zip(left, headers, strict=True):
            if header is None:
                absent.append(at)
            elif header is BROKEN:
                self._answers[at] = Miss.DAMAGED
                self._damaged.append((self._keys[at], header))
            elif header.tokens < self._tokens[at]:
                self._answers[at] = Miss.TOO_SHORT
            else:
                wanted[at] = header
        evicted = self._shards.were_evicted([self._keys[at] for at in absent])
        for at, gone in zip(absent, evicted, strict=True):
            self._answers[at] = self._why_absent(self._keys[at], evicted=gone)
        return wanted

    def _why_absent(self, key: PoolKey, *, evicted: bool) -> Miss:
        if self._memories.has_failed(key):
            return Miss.SAVE_FAILED
        return Miss.EVICTED if evicted else Miss.ABSENT

    def _examine(self, wanted: dict[int, Header]) -> dict[int, Header]:
        """Return those of the entries that are as large as their headers say.

        A size that is wrong is damage, and no reason to refuse the whole call.
        """
        seen = [(self._keys[at], header) for at, header in wanted.items()]
        whole = {}
        for (at, header), outcome in zip(wanted.items(), self._shards.examine(seen), strict=True):
            if outcome is Fetched.READ:
                whole[at] = header
            elif outcome is Fetched.DAMAGED:
                self._answers[at] = Miss.DAMAGED
                self._damaged.append((self._keys[at], header))
        self._remove_damaged()
        return whole

    def _remove_damaged(self) -> None:
        damaged, self._damaged = self._damaged, []
        if damaged:
            self._shards.remove_damaged(damaged)

    def _fetch(self, wanted: dict[int, Header], *, deadline: float | None) -> None:
        sizes = [header.nbytes for header in wanted.values()]
        lent = dict(zip(wanted, self._staging.take(sizes, deadline=deadline), strict=True))
        try:
            wishes = [self._wish(at, header, lent[at]) for at, header in wanted.items()]
            for (at, header), outcome in zip(
                wanted.items(), self._shards.fetch(wishes), strict=True
            ):
                key = self._keys[at]
                if outcome is Fetched.READ:
                    address = lent.pop(at)
                    self._answers[at] = Held(key, address, header.tokens, header.nbytes)
                elif outcome is Fetched.DAMAGED:
                    self._answers[at] = Miss.DAMAGED
                    self._damaged.append((key, header))
        finally:
            self._staging.give(list(lent.values()))

    def _wish(self, at: int, header: Header, address: int) -> Wish:
        return Wish(self._keys[at], header, self._staging.bytes_at(address, header.nbytes))


def _nbytes_of(headers: Iterable[Header]) -> int:
    return sum(aligned(header.nbytes) for header in headers)


def _check_size(headers: Iterable[Header], limit_nbytes: int) -> None:
    nbytes = _nbytes_of(headers)
    if nbytes > limit_nbytes:
        raise TooMuchAtOnce(
            f"{format_nbytes(nbytes)} at once are more than a quarter of the staging memory, "
            f"{format_nbytes(limit_nbytes)}; set ?staging= as high as in the process that saved"
        )
