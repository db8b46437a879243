"""An Ascend NPU through torch_npu and the ACL runtime.

Ordering with the caller goes through torch (an event on the caller's stream, polled), copies go
past it (raw streams of our own). Every other combination was seen to copy stale bytes in some queue
mode of torch_npu. `Stream.npu_stream`, `Stream.query` and the synchronising calls drain torch's
queue with the GIL held, or spin for ever on a dead queue: they do not occur here, but for the one
query that proves a queue dead, and once per stream where torch_npu has no other way to its handle.

To be verified on hardware: that a failed copy is reported by synchronising its stream, and that
aclrtSetStreamFailureMode stops a stream at its first failure. It holds for all streams of the
context, and torch_npu sets it on its own (AclInterface.cpp of Ascend/pytorch): it is set anyhow.
"""

import threading
import time
from collections.abc import Hashable
from contextlib import ExitStack

import torch_npu

from ems.common.exception import DeviceFailed
from ems.device.acl import FEATURE_NOT_SUPPORTED, STREAM_TIMEOUT, Acl, AclError
from ems.device.base import Direction, StillMoving
from ems.device.memory_map import MemoryMap
from ems.device.pinned_memory import PinnedMemory
from ems.device.tensors import read_kvcache
from ems.layout.copy_plan import Spans

__all__ = ["AscendDevice", "MemoryMap", "PinnedMemory", "device_count", "read_kvcache"]

_SUSPECT_AFTER = 1.0
"""Seconds of waiting, for the caller's work or a copy, before a failure is looked for."""
_LOOK_MILLISECONDS = 10
_CLOSE_MILLISECONDS = 100
_CHECK_MILLISECONDS = 10_000
"""Limit of the synchronisation after an event has completed; it has nothing left to wait for."""


def device_count() -> int:
    """Return how many NPUs this process can see."""
    return int(torch_npu.npu.device_count())


class AscendDevice:
    """One NPU. Made once per process and device, used from any thread."""

    def __init__(self, index: int) -> None:
        torch_npu.npu.init()
        with torch_npu.npu.device(index):  # gives the device its streams, if nobody has used it yet
            _current_stream(index)
        self.index = index
        self._acl = Acl()
        self._lock = threading.Lock()
        self._lost: str | None = None

    @property
    def lost(self) -> str | None:
        """See `Device.lost`."""
        return self._lost

    def give_up(self, reason: str) -> None:
        """See `Device.give_up`; the first reason stays."""
        with self._lock:
            self._lost = self._lost or reason

    def caller_work(self) -> "StreamWork":
        """See `Device.caller_work`."""
        try:
            return StreamWork(self, self._acl)
        except RuntimeError as error:
            self.give_up(str(error))
            raise DeviceFailed(f"npu:{self.index} has failed earlier work: {error}") from error

    def bind(self) -> None:
        """See `Device.bind`."""
        torch_npu.npu.set_device(self.index)

    def open_channel(self, direction: Direction) -> "StreamChannel":
        """See `Device.open_channel`."""
        self.bind()
        return StreamChannel(self, self._acl, direction)


class StreamWork:
    """An event on the current stream of the thread that made it."""

    def __init__(self, device: AscendDevice, acl: Acl) -> None:
        self._device = device
        self._acl = acl
        # the thread's stream of the tensors' device, whatever device the thread has set; record()
        # without it would take the current device's
        self._stream, self._raw = _current_stream(device.index)
        self._event = torch_npu.npu.Event()
        self._event.record(self._stream)
        self._suspect_at = time.monotonic() + _SUSPECT_AFTER

    @property
    def source(self) -> Hashable:
        """See `CallerWork.source`."""
        return self._raw

    def finished(self) -> bool:
        """See `CallerWork.finished`."""
        try:
            if self._event.query():
                return True
            now = time.monotonic()
            if now < self._suspect_at:
                return False
            self._suspect_at = now + _SUSPECT_AFTER
            dead = self._queue_is_dead()
        except (DeviceFailed, RuntimeError) as error:
            self._device.give_up(str(error))
            raise DeviceFailed(f"npu:{self._device.index} failed earlier work: {error}") from error
        if dead:
            reason = "torch_npu dropped queued work after a refused launch"
            self._device.give_up(reason)
            raise DeviceFailed(f"npu:{self._device.index}: {reason}; restart the process")
        return False

    def _queue_is_dead(self) -> bool:
        """Return whether the event will never complete: all of the stream is done, and it is not.

        torch_npu drops what is queued after a refused launch without a word. The query drains the
        queue, which is short where the runtime has nothing left to do; it is that of the thread's
        current device.
        """
        if not self._acl.stream_idle(self._raw):
            return False
        with torch_npu.npu.device(self._device.index):
            return bool(self._stream.query()) and not self._event.query()


_streams: dict[tuple[int, int, int], tuple[torch_npu.npu.Stream, int]] = {}
"""The callers' streams by torch's names of them, each as torch's object and as the runtime's
handle. Making the object costs more than all the rest, and finding the handle may wait."""
_MOST_STREAMS = 64


def _current_stream(index: int) -> tuple[torch_npu.npu.Stream, int]:
    """Return what `torch_npu.npu.current_stream` returns, and its handle; made once per stream."""
    name = torch_npu._C._npu_getCurrentStream(index)  # noqa: SLF001 - as current_stream does
    found = _streams.get(name)
    if found is None:
        if len(_streams) >= _MOST_STREAMS:  # torch has 32 to 64; those from elsewhere come and go
            _streams.clear()
        stream = torch_npu.npu.current_stream(index)
        found = _streams[name] = (stream, _handle_of(stream, index))
    return found


def _handle_of(stream: torch_npu.npu.Stream, index: int) -> int:
    """Return the runtime's handle of the thread's current stream.

    torch_npu 2.7.1, 2.8.0 and 2.9.0, which go with CANN 8.3 and 8.5, have but the property: it
    drains torch's queue first, and is 0 where that is dead (their NPUStream.cpp).
    """
    without_wait = getattr(torch_npu._C, "_npu_getCurrentRawStreamNoWait", None)  # noqa: SLF001
    handle = int(stream.npu_stream if without_wait is None else without_wait(index))
    if not handle:
        raise RuntimeError("torch_npu names no stream: its queue has failed")
    return handle


class StreamChannel:
    """Two raw streams, used in turn, so that each copy is checked without waiting for the next."""

    lanes = 2

    def __init__(self, device: AscendDevice, acl: Acl, direction: Direction) -> None:
        self._device = device
        self._acl = acl
        self._direction = direction
        self._batched = acl.has_batched_copy
        with ExitStack() as undo:
            self._lanes = [self._open_lane(undo) for _ in range(self.lanes)]
            undo.pop_all()
        self._started = 0

    def start(self, spans: Spans) -> "StreamCopy":
        """See `Channel.start`."""
        if self._device.lost:
            raise DeviceFailed(f"npu:{self._device.index} is lost: {self._device.lost}")
        stream, event = self._lanes[self._started % self.lanes]
        self._started += 1
        try:
            self._queue(spans, stream)
            self._acl.record_event(event, stream)
        except DeviceFailed as error:
            self._device.give_up(str(error))
            self._drain(stream)
            raise
        return StreamCopy(self._device, self._acl, stream, event)

    def close(self) -> None:
        """See `Channel.close`; again for streams on which something moved the first time.

        A stream that has failed goes, too: while it is there, the caller's synchronising fails.
        """
        for stream, event in list(self._lanes):
            if self._has_ended(stream, _CLOSE_MILLISECONDS):
                self._lanes.remove((stream, event))
                self._acl.destroy_event(event)
                self._acl.destroy_stream(stream)

    def _open_lane(self, undo: ExitStack) -> tuple[int, int]:
        """Return a stream and its event; `undo` gives them back."""
        stream = self._acl.create_stream()
        undo.callback(self._acl.destroy_stream, stream)
        event = self._acl.create_event()
        undo.callback(self._acl.destroy_event, event)
        return stream, event

    def _queue(self, spans: Spans, stream: int) -> None:
        if self._batched:
            try:
                self._acl.copy_batch(spans, self._direction, self._device.index, stream)
            except AclError as error:
                if error.number != FEATURE_NOT_SUPPORTED:
                    raise
                self._batched = False
            else:
                return
        self._acl.copy_each(spans, self._direction, stream)

    def _drain(self, stream: int) -> None:
        """Wait until nothing of a refused call moves any more; the refusal is what is reported."""
        if not self._has_ended(stream, _CHECK_MILLISECONDS):
            raise StillMoving(f"npu:{self._device.index}: a refused copy does not end")

    def _has_ended(self, stream: int, milliseconds: int) -> bool:
        """Wait for a stream; return whether nothing moves on it any more, failed or not."""
        try:
            self._acl.synchronize_stream(stream, milliseconds)
        except AclError as error:
            return error.number != STREAM_TIMEOUT
        return True


class StreamCopy:
    """What is on one of the channel's streams."""

    def __init__(self, device: AscendDevice, acl: Acl, stream: int, event: int) -> None:
        self._device = device
        self._acl = acl
        self._stream = stream
        self._event = event
        self._failure: AclError | None = None
        self._suspect_at = time.monotonic() + _SUSPECT_AFTER

    def done(self) -> bool:
        """See `Copy.done`; nor does anything move on a stream that has stopped at a failure."""
        try:
            return self._acl.event_complete(self._event) or self._has_stopped()
        except DeviceFailed as error:
            self._device.give_up(str(error))
            raise

    def _has_stopped(self) -> bool:
        """Look, now and then, for a failure before the event, which is not reached then.

        Of CANN's calls those that synchronise have errors collected; the query of an event only
        compares places (`SynchronizeExecutedTask` and `QueryEventTask` of hicann/runtime).
        """
        now = time.monotonic()
        if now < self._suspect_at:
            return False
        self._suspect_at = now + _SUSPECT_AFTER
        try:
            self._acl.synchronize_stream(self._stream, _LOOK_MILLISECONDS)
        except AclError as error:
            self._failure = None if error.number == STREAM_TIMEOUT else error
        return self._failure is not None

    def check(self) -> None:
        """See `Copy.check`. A completed event alone does not mean that a copy was right."""
        try:
            if self._failure is not None:  # may be told once only
                raise self._failure
            self._acl.synchronize_stream(self._stream, _CHECK_MILLISECONDS)
        except DeviceFailed as error:
            self._device.give_up(str(error))
            raise
