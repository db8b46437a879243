"""Makes the pages of the files this process's own ahead of use.

The first touch of each 4 KiB page of a file in memory is a page fault, which made the first pass
over a new pool four times slower than all later ones, and again in every process. One call of
the kernel for many pages costs a tenth of that.
"""

import ctypes
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

_LOG = logging.getLogger(__name__)

_MADV_POPULATE_WRITE = 23  # Linux 5.14; older kernels refuse, and pages come one by one
_STEP_NBYTES = 16 << 20


class Prefault:
    """Touches the mappings of files, a step at a time, on a thread of its own."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self._lock = threading.Lock()
        self._stopped = False
        self._madvise = ctypes.CDLL(None, use_errno=True).madvise
        self._madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        self._thread = threading.Thread(
            target=self._run, args=(paths,), name="ems-lmdb-prefault", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Touch nothing any more: the mappings are about to go."""
        with self._lock:
            self._stopped = True

    def wait(self) -> None:
        """Wait until all is done; for measurements."""
        self._thread.join()

    def _run(self, paths: Sequence[Path]) -> None:
        try:
            for path in paths:
                for start, nbytes in _mappings(path):
                    if not self._touch(start, nbytes):
                        return
        except OSError as error:
            _LOG.debug("the pool's pages are not made ready ahead of use: %s", error)

    def _touch(self, start: int, nbytes: int) -> bool:
        for at in range(0, nbytes, _STEP_NBYTES):
            with self._lock:
                step = min(_STEP_NBYTES, nbytes - at)
                if self._stopped or self._madvise(start + at, step, _MADV_POPULATE_WRITE):
                    return False
        return True


def _mappings(path: Path) -> Iterator[tuple[int, int]]:
    """Yield start and size of where a file is mapped; nothing for files that lie on a disk.

    Touching those would have all of their pages written to it.
    """
    status = path.stat()
    device = f"{os.major(status.st_dev)}:{os.minor(status.st_dev)}"
    if not _is_in_memory(device):
        return
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, _, _, _, inode = line.split()[:5]
        if int(inode) == status.st_ino and line.endswith(str(path)):
            start, end = (int(address, 16) for address in addresses.split("-"))
            yield start, end - start


def _is_in_memory(device: str) -> bool:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        mount, _, source = line.partition(" - ")
        if mount.split()[2] == device:
            return source.split()[0] == "tmpfs"
    return False
