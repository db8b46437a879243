"""A device made of host memory, and pools that fail: real copies, on a thread, under control."""

import ctypes
import itertools
import queue
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from bounded import PATIENCE, within
from contracts.host_memory import MappedMemory

from ems.common.exception import DeviceFailed
from ems.common.future import Outcome
from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.device.base import Direction, StillMoving
from ems.layout.part import parts_of
from ems.layout.plane import TensorFacts
from ems.layout.registration import register
from ems.layout.request import request_of_slots
from ems.pool.memory import MemoryPool
from ems.transfer.mover import Mover
from ems.transfer.task import Task

BLOCK_SIZE = 4


class Work:
    """What a caller has queued: finished when the test says so."""

    def __init__(self, source="stream", *, finished=True):
        self.source = source
        self.is_finished = finished
        self.failure = None
        self.looks = 0

    def finished(self):
        self.looks += 1
        if self.failure:
            raise self.failure
        return self.is_finished


@dataclass
class Names:
    """A part that is only what the order of tasks asks for."""

    keys: list
    places: list
    space: int = 0
    nbytes: np.ndarray = field(default_factory=lambda: np.array([1]))
    tokens: np.ndarray = field(default_factory=lambda: np.array([1]))


def ready(order, direction):
    """Return the task that may run now, or None; takes it, as `next` does."""
    with order._lock:
        order._admit()
        return order._first_ready(direction)[0]


class MemmoveCopy:
    """Moves its spans one by one on the channel's thread."""

    def __init__(self, spans, direction, mood):
        self.spans = spans
        self.direction = direction
        self.mood = mood
        self.ended = threading.Event()

    def run(self):
        if self.mood == "hangs":
            return
        count = len(self.spans) // 2 if self.mood == "fails" else len(self.spans)
        columns = (self.spans.device, self.spans.host, self.spans.nbytes)
        for device, host, nbytes in itertools.islice(
            zip(*(column.tolist() for column in columns), strict=True), count
        ):
            to, source = (host, device) if self.direction is Direction.OUT else (device, host)
            ctypes.memmove(to, source, nbytes)
        self.ended.set()

    def done(self):
        return self.ended.is_set()

    def check(self):
        assert self.done(), "a copy is checked while it moves"
        if self.mood == "fails":
            raise DeviceFailed("a copy failed")


class MemmoveChannel:
    """Copies on a thread. `gate` holds them back: each `gate.release()` lets one run."""

    lanes = 2

    def __init__(self, device, direction):
        self.device = device
        self.direction = direction
        self.closed = False
        self._queue = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def start(self, spans):
        assert sum(not copy.done() for copy in self.device.copies) < self.lanes
        mood = self.device.moods.get(len(self.device.copies) + 1)
        if self.device.lost:
            raise DeviceFailed(f"lost: {self.device.lost}")
        copy = MemmoveCopy(spans, self.direction, mood)
        if mood == "is refused":
            copy.ended.set()
        self.device.copies.append(copy)
        if mood == "is refused":
            raise DeviceFailed("a copy was refused")
        if mood == "is refused and goes on":
            raise StillMoving("a refused copy does not end")
        self._queue.put(copy)
        return copy

    def close(self):
        """End the thread: what it copies to or from is about to be unmapped."""
        self.closed = True
        self._queue.put(None)
        if self.device.gate is None:
            self._thread.join(PATIENCE)
            assert not self._thread.is_alive()

    def _run(self):
        while (copy := self._queue.get()) is not None:
            if self.device.gate is not None:
                assert self.device.gate.acquire(timeout=PATIENCE)
            copy.run()


@dataclass
class MemmoveDevice:
    """One NPU whose memory is that of this process. `moods` are those of its copies, from 1."""

    index: int = 0
    lost: str | None = None
    moods: dict = field(default_factory=dict)
    gate: threading.Semaphore | None = None
    copies: list = field(default_factory=list)
    works: list = field(default_factory=list)
    """What `caller_work` returns next; finished work when there is none."""
    channels: list = field(default_factory=list)

    def caller_work(self):
        return self.works.pop(0) if self.works else Work()

    def bind(self):
        pass

    def open_channel(self, direction):
        self.channels.append(MemmoveChannel(self, direction))
        return self.channels[-1]

    def give_up(self, reason):
        self.lost = self.lost or reason

    def close(self):
        for channel in self.channels:
            channel.close()


OPENED = []
"""What has threads, and is to be closed after the test."""


class World:
    """A cache in host memory, registered, with a pool beside it; the last group has the window."""

    def __init__(  # noqa: PLR0913 - each says one thing of the cache
        self, *, groups=1, blocks=16, heads=2, size=8, capacity_nbytes=1 << 20, window=None
    ):
        layers = range(groups)
        self.arrays = [
            np.arange(blocks * BLOCK_SIZE * heads * size, dtype=np.uint16).reshape(
                blocks, BLOCK_SIZE, heads, size
            )
            + np.uint16(1000 * plane)
            for plane in range(2 * groups)
        ]
        facts = [[_facts(self.arrays[2 * at]), _facts(self.arrays[2 * at + 1])] for at in layers]
        windows = [None] * (groups - 1) + [window]
        descriptions = [StoreLayerGroupDesc(1 << 20, [at], windows[at]) for at in layers]
        self.registration = register(facts, descriptions if groups > 1 else None)
        self.device = MemmoveDevice()
        self.memory_pool = MemoryPool(
            MappedMemory(), capacity_nbytes=capacity_nbytes, segment_nbytes=capacity_nbytes
        )
        self.pool = self.memory_pool
        OPENED.extend([self.memory_pool, self.device])
        self.block_nbytes = 2 * groups * BLOCK_SIZE * heads * size * 2

    def parts(self, hashes, blocks, tokens=None, *, writes=False):
        """Return the parts of a request for one block per hash, of `tokens` each."""
        tokens = tokens or [BLOCK_SIZE] * len(hashes)
        slots = [
            block * BLOCK_SIZE + at
            for block, count in zip(blocks, tokens, strict=True)
            for at in range(count)
        ]
        request = request_of_slots(self.registration, slots, hashes, tokens, writes=writes)
        groups = self.registration.groups
        return parts_of(request, groups, [f"key-{group.index}-" for group in groups])

    def task(self, direction, hashes, blocks, tokens=None, *, seconds=None):
        deadline = None if seconds is None else time.monotonic() + seconds
        parts = self.parts(hashes, blocks, tokens, writes=direction is Direction.IN)
        return Task(direction, parts, Work(), Outcome(deadline))

    def save(self, hashes, blocks, tokens=None, *, seconds=None):
        """Save on a mover of its own; return the result or raise."""
        task = self.task(Direction.OUT, hashes, blocks, tokens, seconds=seconds)
        return self._run(task)

    def load(self, hashes, blocks, tokens=None, *, seconds=None):
        task = self.task(Direction.IN, hashes, blocks, tokens, seconds=seconds)
        return self._run(task)

    def _run(self, task):
        mover = Mover(self.device, self.pool, task.direction)
        try:
            return within(mover.run, task)
        finally:
            mover.close()

    def block(self, number):
        """Return a copy of a block's bytes in every plane."""
        return [array[number].copy() for array in self.arrays]

    def poison(self, *numbers):
        for array in self.arrays:
            array[list(numbers)] = 0xDEAD

    def stored(self, hashes):
        """Return, by hash, whether the pool has it in every group."""
        groups = self.registration.groups
        parts = self.parts(hashes, range(len(hashes)))
        found = [self.memory_pool.lookup(part.keys) for part in parts]
        assert len(found) == len(groups)
        return [None not in entries for entries in zip(*found, strict=True)]


def same(one, other):
    """Return whether two copies of a block are equal in every plane."""
    return all((a == b).all() for a, b in zip(one, other, strict=True))


def _facts(array):
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return TensorFacts("npu:0", "uint16", 2, array.shape, strides, array.ctypes.data)
