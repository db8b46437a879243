"""Host memory for an NPU's copies."""

import threading

import torch_npu

from ems.common.exception import DeviceFailed, PoolUnavailable
from ems.device.acl import Acl


class PinnedMemory:
    """Host memory that the NPU reaches directly; a `HostMemory` of the pool.

    Not torch's pinned memory, which rounds up to powers of two and keeps what is freed.
    """

    def __init__(self, index: int) -> None:
        self._index = index
        self._acl = Acl()

    def allocate(self, nbytes: int) -> int:
        """See `HostMemory.allocate`; on a thread of its own: the caller keeps its device."""
        ends: list[int | Exception] = []
        thread = threading.Thread(
            target=self._pin, args=(nbytes, ends), name="ems-pin", daemon=True
        )
        try:
            thread.start()
            thread.join()
            [end] = ends
            if isinstance(end, Exception):
                raise end
        except (DeviceFailed, RuntimeError) as error:
            raise PoolUnavailable(f"no pinned host memory of {nbytes} bytes: {error}") from error
        return end

    def free(self, address: int) -> None:
        """See `HostMemory.free`."""
        self._acl.free_host(address)

    def _pin(self, nbytes: int, ends: list[int | Exception]) -> None:
        try:
            torch_npu.npu.set_device(self._index)
            ends.append(self._acl.malloc_host(nbytes))
        except Exception as error:  # noqa: BLE001 - it is raised where the caller is
            ends.append(error)
