"""Host memory for an NPU's copies."""

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
        """See `HostMemory.allocate`; binds the calling thread to the device."""
        try:
            torch_npu.npu.set_device(self._index)
            return self._acl.malloc_host(nbytes)
        except (DeviceFailed, RuntimeError) as error:
            raise PoolUnavailable(f"no pinned host memory of {nbytes} bytes: {error}") from error

    def free(self, address: int) -> None:
        """See `HostMemory.free`."""
        self._acl.free_host(address)
