"""Saves and loads by an engine's own calls: what the suite's pools stand beside.

While one slice is copied between NPU and host, the one before it is put or got, value by value or
in one batch, as the engine takes it. There are neither checksums nor an order of eviction.
"""

import itertools
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from ctypes import c_uint8, memset
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np

from ems.common.exception import DeviceFailed, PoolUnavailable
from ems.device.base import Channel, Copy, Device, Direction
from ems.layout.copy_plan import Spans
from ems.layout.registration import Registration
from ems.pool.lmdb.transactions import Transactions
from ems.pool.mooncake.settings import MooncakeSettings
from ems.pool.url import PoolUrl
from ems_cli.diagnostics.bench_raw import raw_spans
from ems_cli.diagnostics.measure import Clock, seconds_of

_SLICE_NBYTES: Final = 8 << 20
_POLL_SECONDS: Final = 20e-6
_LONGEST_SECONDS: Final = 120.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Pinned memory that values pass through."""

    address: int
    nbytes: int


class Store(Protocol):
    """The calls of an engine itself; values of `nbytes` each lie in `Memory`, at `starts`."""

    def put(self, names: Sequence[str], starts: Sequence[int], nbytes: int) -> None:
        """Store values under names that are not in use."""

    def get(self, names: Sequence[str], starts: Sequence[int], nbytes: int) -> None:
        """Read values."""

    def remove(self, names: Sequence[str]) -> None:
        """Remove values."""


class _RawLmdb:
    """One LMDB file; a transaction for each slice."""

    def __init__(self, environment: Any, memory: Memory) -> None:
        self._environment = environment
        self._first = memory.address
        self._bytes = np.ctypeslib.as_array((c_uint8 * memory.nbytes).from_address(memory.address))

    def put(self, names: Sequence[str], starts: Sequence[int], nbytes: int) -> None:
        """See `Store.put`."""
        with self._environment.begin(write=True) as txn:
            for name, start in zip(names, starts, strict=True):
                txn.put(name.encode(), self._value(start, nbytes).data)

    def get(self, names: Sequence[str], starts: Sequence[int], nbytes: int) -> None:
        """See `Store.get`."""
        with self._environment.begin(buffers=True) as txn:
            for name, start in zip(names, starts, strict=True):
                found = np.frombuffer(txn.get(name.encode()), np.uint8)
                np.copyto(self._value(start, nbytes), found)

    def remove(self, names: Sequence[str]) -> None:
        """See `Store.remove`."""
        with self._environment.begin(write=True) as txn:
            for name in names:
                txn.delete(name.encode())

    def _value(self, start: int, nbytes: int) -> Any:
        return self._bytes[start - self._first : start - self._first + nbytes]


@contextmanager
def raw_lmdb(folder: Path, capacity_nbytes: int, memory: Memory) -> Generator[Store, None, None]:
    """Open a file of its own in `folder`, as the engine opens its files.

    Raises:
        PoolUnavailable: the file system is full.
    """
    transactions = Transactions(folder / "by-hand.mdb", capacity_nbytes=capacity_nbytes)
    try:
        yield _RawLmdb(transactions.environment, memory)
    finally:
        transactions.close()


class _RawMooncake:
    """A client of a cluster; one batch for each slice, from and to registered memory."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def put(self, names: Sequence[str], starts: Sequence[int], nbytes: int) -> None:
        """See `Store.put`."""
        codes = self._library.put(names, starts, [nbytes] * len(names))
        if any(codes):
            raise PoolUnavailable(f"Mooncake's own put answered {codes}")

    def get(self, names: Sequence[str], starts: Sequence[int], nbytes: int) -> None:
        """See `Store.get`."""
        codes = self._library.get(names, starts, [nbytes] * len(names))
        if codes != [nbytes] * len(names):
            raise PoolUnavailable(f"Mooncake's own get answered {codes}")

    def remove(self, names: Sequence[str]) -> None:
        """See `Store.remove`."""
        self._library.remove(names)


@contextmanager
def raw_mooncake(url: str, memory: Memory) -> Generator[Store, None, None]:
    """Join the cluster of `url` with `memory`.

    Raises:
        PoolUnavailable: the cluster does not answer.
    """
    library = import_module("ems.pool.mooncake.library").Library(
        MooncakeSettings.from_url(PoolUrl.parse(url))
    )
    library.setup("127.0.0.1")
    try:
        library.register(memory.address, memory.nbytes)
        yield _RawMooncake(library)
    finally:
        library.close()


@dataclass(frozen=True, slots=True)
class _Slice:
    """Blocks that are copied at once."""

    numbers: range
    """Which of the values they are."""
    starts: tuple[int, ...]
    """Where in host memory each is."""
    out: Spans
    into: Spans


class ByHand:
    """Round trips of the same blocks, by hand."""

    def __init__(
        self,
        device: Device,
        store: Store,
        memory: Memory,
        registration: Registration,
        blocks: int,
    ) -> None:
        """Choose so many blocks anywhere in the cache, and as many others to load them into."""
        order = np.random.default_rng(0).permutation(registration.groups[0].num_blocks).tolist()
        self.sources: list[int] = order[:blocks]
        self.targets: list[int] = order[blocks : 2 * blocks]
        size = registration.groups[0].block_size
        self.nbytes = registration.token_nbytes * size
        """Of one block."""
        self._store = store
        self._memory = memory
        self._channels = {way: device.open_channel(way) for way in Direction}
        self._slices = list(_slices(self, memory, registration))
        self._turns = itertools.count()

    def trip(self, *, blank: bool = False, clock: Clock = time.perf_counter) -> tuple[float, float]:
        """Save all blocks and load them into the others; return the seconds of both.

        With `blank` the memory in between forgets what was saved: it has to come from the engine.

        Raises:
            EmsException: a call or a copy failed.
        """
        turn = next(self._turns)
        names = [[f"{turn}-{number}" for number in one.numbers] for one in self._slices]
        saved = seconds_of(lambda: self._save(names), clock)
        if blank:
            memset(self._memory.address, 0, self._memory.nbytes)
        loaded = seconds_of(lambda: self._load(names), clock)
        for some in names:
            self._store.remove(some)
        return saved, loaded

    def close(self) -> None:
        """Give the streams back."""
        for channel in self._channels.values():
            channel.close()

    def _save(self, names: Sequence[Sequence[str]]) -> None:
        with _moving(self._channels[Direction.OUT]) as moving:
            moving.start(self._slices[0].out)
            for at, one in enumerate(self._slices):
                moving.finish_oldest()
                for following in self._slices[at + 1 : at + 2]:
                    moving.start(following.out)
                self._store.put(names[at], one.starts, self.nbytes)

    def _load(self, names: Sequence[Sequence[str]]) -> None:
        with _moving(self._channels[Direction.IN]) as moving:
            for at, one in enumerate(self._slices):
                if at >= _RING:
                    moving.finish_oldest()
                self._store.get(names[at], one.starts, self.nbytes)
                moving.start(one.into)


_RING: Final = 2
"""Slices that have memory of their own."""


def _slices(
    by_hand: ByHand, memory: Memory, registration: Registration
) -> Generator[_Slice, None, None]:
    sources, targets, nbytes = by_hand.sources, by_hand.targets, by_hand.nbytes
    each = max(1, min(_SLICE_NBYTES, memory.nbytes // _RING) // nbytes)
    for turn, first in enumerate(range(0, len(sources), each)):
        some = slice(first, first + each)
        count = len(sources[some])
        start = memory.address + turn % _RING * each * nbytes
        yield _Slice(
            range(first, first + count),
            tuple(start + at * nbytes for at in range(count)),
            raw_spans(registration, sources[some], start),
            raw_spans(registration, targets[some], start),
        )


class _Moving:
    """Copies on their way, the oldest first."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._copies: list[Copy] = []

    def start(self, spans: Spans) -> None:
        self._copies.append(self._channel.start(spans))

    def finish_oldest(self) -> None:
        copy = self._copies.pop(0)
        until = time.monotonic() + _LONGEST_SECONDS
        while not copy.done():
            if time.monotonic() > until:
                raise DeviceFailed(f"a copy has not ended in {_LONGEST_SECONDS:g} s")
            time.sleep(_POLL_SECONDS)
        copy.check()

    def finish_all(self) -> None:
        while self._copies:
            self.finish_oldest()


@contextmanager
def _moving(channel: Channel) -> Generator[_Moving, None, None]:
    """Whatever fails in the block, no byte moves after it."""
    moving = _Moving(channel)
    try:
        yield moving
    finally:
        moving.finish_all()
