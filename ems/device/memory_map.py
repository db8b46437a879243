"""Is an address device memory? Asked for buffers that callers address themselves."""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import torch_npu

from ems.common.exception import InvalidArgument
from ems.device.acl import Acl
from ems.layout.buffers import BufferPart, name_of_buffer
from ems.layout.slots import Ints


class MemoryMap:
    """The device memory that torch has handed out, as it was when last looked at.

    Buffers that lie in it cost one search. For others torch is asked again, and then the ACL
    runtime, which knows memory from elsewhere but not where an allocation ends. Memory that was
    given back since is not noticed here; the copy then fails.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._starts: Ints = np.zeros(0, np.int64)
        self._ends: Ints = np.zeros(0, np.int64)
        self._devices: Ints = np.zeros(0, np.int64)
        self._acl = Acl()

    def device_of(self, part: BufferPart) -> int:
        """Return the NPU in whose memory all buffers of `part` lie.

        Raises:
            InvalidArgument: a buffer is not device memory, runs past its allocation, or lies on
                another NPU than the first; it is named.
        """
        with self._lock:
            devices, inside = self._find(part.addresses, part.lengths)
            if not inside.all():
                self._refresh()
                devices, inside = self._find(part.addresses, part.lengths)
        self._check_allocations(part, inside, devices)
        for row in np.flatnonzero(~inside):
            devices[row] = self._ask_runtime(part, int(row))
        other = np.flatnonzero(devices != devices[0])
        if other.size:
            raise InvalidArgument(
                f"{name_of_buffer(part, int(other[0]))} lies on npu:{devices[other[0]]}, "
                f"value_list[0][0] on npu:{devices[0]}; one request is one NPU"
            )
        return int(devices[0])

    def _find(self, addresses: Ints, lengths: Ints) -> tuple[Ints, npt.NDArray[np.bool_]]:
        """Return the device of each buffer (-1: none known), and whether all of it is inside."""
        if not self._starts.size:
            return np.full(addresses.size, -1), np.zeros(addresses.size, np.bool_)
        at = np.searchsorted(self._starts, addresses, side="right") - 1
        within = (at >= 0) & (addresses < self._ends[at])
        inside = within & (addresses + lengths <= self._ends[at])
        return np.where(within, self._devices[at], -1), inside

    def _check_allocations(
        self, part: BufferPart, inside: npt.NDArray[np.bool_], devices: Ints
    ) -> None:
        past = np.flatnonzero(~inside & (devices >= 0))
        if past.size:
            row = int(past[0])
            start, length = int(part.addresses[row]), int(part.lengths[row])
            at = int(np.searchsorted(self._starts, start, side="right")) - 1
            raise InvalidArgument(
                f"{name_of_buffer(part, row)} is {length} bytes at {start:#x}, which runs past its "
                f"allocation {self._starts[at]:#x}–{self._ends[at]:#x}"
            )

    def _ask_runtime(self, part: BufferPart, row: int) -> int:
        start, length = int(part.addresses[row]), int(part.lengths[row])
        first, last = self._acl.device_of(start), self._acl.device_of(start + length - 1)
        if first is None or last is None:
            raise InvalidArgument(
                f"{name_of_buffer(part, row)}: {start:#x} to {start + length:#x} is not NPU memory"
            )
        return first

    def _refresh(self) -> None:
        blocks = sorted(_allocated_blocks())
        table = np.array(blocks or [(0, 0, 0)], np.int64)
        self._starts, self._ends, self._devices = table.T.copy()


def _allocated_blocks() -> list[tuple[int, int, int]]:
    """Return start, end and device of what torch's allocator has handed out."""
    found = []
    segments: list[dict[str, Any]] = torch_npu.npu.memory_snapshot()
    for segment in segments:
        address = segment["address"]
        for block in segment["blocks"]:
            if block["state"] != "inactive":
                found.append((address, address + block["size"], segment["device"]))
            address += block["size"]
    return found
