"""Host memory for pools where no NPU takes part: pages of this process."""

import ctypes
import mmap

from ems.common.exception import PoolUnavailable
from ems.common.units import format_nbytes


class HostPages:
    """Anonymous pages; a `HostMemory`. Pages count only once they are touched."""

    def __init__(self) -> None:
        self._live: dict[int, tuple[mmap.mmap, ctypes.c_char]] = {}

    def allocate(self, nbytes: int) -> int:
        """See `HostMemory.allocate`."""
        try:
            pages = mmap.mmap(-1, nbytes)
        except (OSError, OverflowError, ValueError) as error:
            raise PoolUnavailable(f"the host gives no {format_nbytes(nbytes)}: {error}") from error
        export = ctypes.c_char.from_buffer(pages)
        address = ctypes.addressof(export)
        self._live[address] = pages, export
        return address

    def free(self, address: int) -> None:
        """See `HostMemory.free`."""
        pages, export = self._live.pop(address)
        del export
        pages.close()
