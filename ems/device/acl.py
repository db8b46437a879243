"""Thin binding to the ACL runtime: the libascendcl.so that torch_npu has loaded.

Names, arguments and numbers are those of the public ACL headers (acl_rt.h, CANN 8.5).
"""

import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int32, c_size_t, c_uint8, c_uint32, c_void_p
from typing import Any

from ems.common.exception import DeviceFailed
from ems.device.base import Direction
from ems.layout.copy_plan import Spans

FEATURE_NOT_SUPPORTED = 207000
STREAM_TIMEOUT = 507046
_MEANINGS = {
    107000: "invalid parameter",
    107001: "invalid device id",
    107002: "no device set in this thread",
    107003: "stream of another device",
    107017: "invalid handle",
    FEATURE_NOT_SUPPORTED: "feature not supported",
    207001: "out of memory",
    507035: "vector core exception",
    STREAM_TIMEOUT: "stream did not finish in time",
    507052: "copy failed",
}
_HOST, _DEVICE = 0, 1
_HOST_TO_DEVICE, _DEVICE_TO_HOST = 1, 2
_EVENT_COMPLETE = 1
_STREAM_COMPLETE = 0
_FAST_LAUNCH_AND_SYNC = 3  # as torch_npu makes its streams
_EVENT_SYNC = 1  # may be recorded again and again, and queried
_STOP_ON_FAILURE = 1
_FIRST_SPAN = c_size_t(0)
"""From which span on the attributes of a batch hold."""


class _Location(ctypes.Structure):
    _fields_ = (("id", c_uint32), ("type", c_int32))


class _BatchAttributes(ctypes.Structure):
    _fields_ = (("dst", _Location), ("src", _Location), ("reserved", c_uint8 * 16))


class _PointerAttributes(ctypes.Structure):
    _fields_ = (("location", _Location), ("page_nbytes", c_uint32), ("reserved", c_uint32 * 4))


class AclError(DeviceFailed):
    """A call of the ACL runtime was refused."""

    def __init__(self, call: str, number: int, detail: str = "") -> None:
        meaning = _MEANINGS.get(number, "see the ACL error codes")
        super().__init__(f"{call} returned {number} ({meaning}){detail}")
        self.number = number


class Acl:
    """The functions of the runtime that `ems` calls, each raising `AclError`."""

    def __init__(self) -> None:
        try:
            self._library = ctypes.CDLL("libascendcl.so", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        except OSError as error:
            raise DeviceFailed(f"torch_npu has not loaded the ACL runtime: {error}") from error
        self._attributes: dict[tuple[Direction, int], Any] = {}
        self._recent_error = self._library.aclGetRecentErrMsg
        self._recent_error.restype = c_char_p
        self._create_stream = self._function(
            "aclrtCreateStreamWithConfig", POINTER(c_void_p), c_uint32, c_uint32
        )
        self._create_event = self._function(
            "aclrtCreateEventExWithFlag", POINTER(c_void_p), c_uint32
        )
        self._destroy_stream = self._function("aclrtDestroyStream", c_void_p)
        self._destroy_event = self._function("aclrtDestroyEvent", c_void_p)
        self._record_event = self._function("aclrtRecordEvent", c_void_p, c_void_p)
        # asked again and again, and never blocks: not worth giving the interpreter away for
        self._query_event = _keeping_the_gil(
            self._function("aclrtQueryEventStatus"), c_void_p, POINTER(c_int32)
        )
        self._query_stream = self._function("aclrtStreamQuery", c_void_p, POINTER(c_int32))
        self._synchronize_stream = self._function(
            "aclrtSynchronizeStreamWithTimeout", c_void_p, c_int32
        )
        self._pointer_attributes = self._function(
            "aclrtPointerGetAttributes", c_void_p, POINTER(_PointerAttributes)
        )
        self._malloc_host = self._function("aclrtMallocHost", POINTER(c_void_p), c_size_t)
        self._free_host = self._function("aclrtFreeHost", c_void_p)
        self._copy = self._function(
            "aclrtMemcpyAsync", c_void_p, c_size_t, c_void_p, c_size_t, c_int32, c_void_p
        )
        self._copy_batch = self._optional(
            "aclrtMemcpyBatchAsync",
            *(c_void_p,) * 4,
            c_size_t,
            POINTER(_BatchAttributes),
            POINTER(c_size_t),
            c_size_t,
            POINTER(c_size_t),
            c_void_p,
        )
        self._stop_on_failure = self._optional(
            "aclrtSetStreamFailureMode", c_void_p, ctypes.c_uint64
        )

    def _optional(self, name: str, *argument_types: Any) -> Any:
        function = getattr(self._library, name, None)
        if function is not None:
            function.argtypes = argument_types
            function.restype = c_int32
        return function

    def _function(self, name: str, *argument_types: Any) -> Any:
        function = self._optional(name, *argument_types)
        if function is None:
            raise DeviceFailed(f"the ACL runtime has no {name}: CANN is too old")
        return function

    def _check(self, call: str, number: int, detail: str = "") -> None:
        if number:
            text = self._recent_error()
            if text:
                detail += f": {text.decode(errors='replace').strip()}"
            raise AclError(call, number, detail)

    def create_stream(self) -> int:
        """Return a stream of the calling thread's device that stops at its first failure."""
        stream = c_void_p()
        self._check(
            "aclrtCreateStreamWithConfig",
            self._create_stream(byref(stream), 0, _FAST_LAUNCH_AND_SYNC),
        )
        if self._stop_on_failure is not None:
            self._stop_on_failure(stream, _STOP_ON_FAILURE)  # where it is refused, check() decides
        return _handle(stream)

    def destroy_stream(self, stream: int) -> None:
        """Give an idle stream back."""
        self._check("aclrtDestroyStream", self._destroy_stream(stream))

    def create_event(self) -> int:
        """Return an event."""
        event = c_void_p()
        self._check("aclrtCreateEventExWithFlag", self._create_event(byref(event), _EVENT_SYNC))
        return _handle(event)

    def destroy_event(self, event: int) -> None:
        """Give an event back."""
        self._check("aclrtDestroyEvent", self._destroy_event(event))

    def record_event(self, event: int, stream: int) -> None:
        """Have `event` complete when the stream has come to here."""
        self._check("aclrtRecordEvent", self._record_event(event, stream))

    def event_complete(self, event: int) -> bool:
        """Return whether the newest record of `event` has been reached."""
        status = c_int32()
        self._check("aclrtQueryEventStatus", self._query_event(event, byref(status)))
        return status.value == _EVENT_COMPLETE

    def stream_idle(self, stream: int) -> bool:
        """Return whether the runtime has nothing left to do on a stream."""
        status = c_int32()
        self._check("aclrtStreamQuery", self._query_stream(stream, byref(status)))
        return status.value == _STREAM_COMPLETE

    def synchronize_stream(self, stream: int, milliseconds: int) -> None:
        """Wait for a stream and raise what failed on it."""
        self._check(
            "aclrtSynchronizeStreamWithTimeout", self._synchronize_stream(stream, milliseconds)
        )

    def device_of(self, address: int) -> int | None:
        """Return the device in whose memory an address lies; None for any other address."""
        attributes = _PointerAttributes()
        self._check(
            "aclrtPointerGetAttributes", self._pointer_attributes(address, byref(attributes))
        )
        location = attributes.location
        return int(location.id) if location.type == _DEVICE else None

    def malloc_host(self, nbytes: int) -> int:
        """Return pinned host memory, aligned to 2 MiB or at least a page."""
        address = c_void_p()
        self._check("aclrtMallocHost", self._malloc_host(byref(address), nbytes))
        return _handle(address)

    def free_host(self, address: int) -> None:
        """Give pinned host memory back."""
        self._check("aclrtFreeHost", self._free_host(address))

    @property
    def has_batched_copy(self) -> bool:
        """Whether one call moves many spans (CANN 8.5 and newer, A2 and A3)."""
        return self._copy_batch is not None

    def copy_batch(self, spans: Spans, direction: Direction, device: int, stream: int) -> None:
        """Queue all spans in one call."""
        to, source = _ends(spans, direction)
        failed = c_size_t(len(spans))
        nbytes = spans.nbytes.ctypes.data
        number = self._copy_batch(
            *(to, nbytes, source, nbytes, len(spans)),
            self._attributes_of(direction, device),
            byref(_FIRST_SPAN),
            1,
            byref(failed),
            stream,
        )
        blamed = failed.value < len(spans)
        self._check(
            "aclrtMemcpyBatchAsync",
            number,
            f" at span {failed.value} of {len(spans)}" if number and blamed else "",
        )

    def _attributes_of(self, direction: Direction, device: int) -> Any:
        """Return a pointer to what the runtime is told of all spans; made once."""
        found = self._attributes.get((direction, device))
        if found is None:
            host, npu = _Location(0, _HOST), _Location(device, _DEVICE)
            ends = (host, npu) if direction is Direction.OUT else (npu, host)
            found = self._attributes[direction, device] = ctypes.pointer(_BatchAttributes(*ends))
        return found

    def copy_each(self, spans: Spans, direction: Direction, stream: int) -> None:
        """Queue spans one by one, where the runtime has no batched copy."""
        out = direction is Direction.OUT
        kind = _DEVICE_TO_HOST if out else _HOST_TO_DEVICE
        for device, host, nbytes in zip(
            spans.device.tolist(), spans.host.tolist(), spans.nbytes.tolist(), strict=True
        ):
            to, source = (host, device) if out else (device, host)
            number = self._copy(to, nbytes, source, nbytes, kind, stream)
            self._check("aclrtMemcpyAsync", number)


def _keeping_the_gil(function: Any, *argument_types: Any) -> Any:
    """Return a C function as one during which no other Python thread runs."""
    return ctypes.PYFUNCTYPE(c_int32, *argument_types)(ctypes.cast(function, c_void_p).value or 0)


def _ends(spans: Spans, direction: Direction) -> tuple[int, int]:
    """Return the addresses of the arrays of destinations and of sources."""
    device, host = spans.device.ctypes.data, spans.host.ctypes.data
    return (host, device) if direction is Direction.OUT else (device, host)


def _handle(pointer: c_void_p) -> int:
    if pointer.value is None:
        raise DeviceFailed("the ACL runtime gave a null handle without an error")
    return pointer.value
