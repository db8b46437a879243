"""Host memory for tests: real pages, unmapped when freed, and with the moods of a real host."""

import ctypes
import mmap
import threading

from ems.common.exception import PoolUnavailable


class MappedMemory:
    """Pages of this process. Reading them after `free` ends the process, as it should."""

    def __init__(self):
        self.sizes = []
        """What was asked for, in order."""
        self.threads = set()
        """The names of the threads that asked."""
        self._live = {}

    @property
    def live_nbytes(self):
        return sum(len(pages) for pages, _ in self._live.values())

    def allocate(self, nbytes):
        self.sizes.append(nbytes)
        self.threads.add(threading.current_thread().name)
        pages = mmap.mmap(-1, nbytes)
        export = ctypes.c_char.from_buffer(pages)
        address = ctypes.addressof(export)
        self._live[address] = pages, export
        return address

    def free(self, address):
        pages, export = self._live.pop(address)
        del export
        pages.close()


class SlowMemory(MappedMemory):
    """Answers when the test says so: each `steps.release()` is one answer."""

    def __init__(self):
        super().__init__()
        self.asked = threading.Event()
        self.steps = threading.Semaphore(0)

    def allocate(self, nbytes):
        self.asked.set()
        assert self.steps.acquire(timeout=30), "the test never let the host answer"
        return super().allocate(nbytes)


class ScarceMemory(MappedMemory):
    """Gives `limit_nbytes`, which the test may raise, and refuses what is beyond."""

    def __init__(self, limit_nbytes):
        super().__init__()
        self.limit_nbytes = limit_nbytes
        self.refusals = 0

    def allocate(self, nbytes):
        if self.live_nbytes + nbytes > self.limit_nbytes:
            self.refusals += 1
            raise PoolUnavailable(f"the host has no {nbytes} bytes left")
        return super().allocate(nbytes)
