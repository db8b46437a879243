"""What a process remembers of keys between its transactions."""

import threading
import time
from collections import OrderedDict
from collections.abc import Iterable

from ems.layout.key import PoolKey

_REMEMBERED = 1 << 16
_TOUCH_SECONDS = 0.2


class Memories:
    """Which keys were used, until that is written, and which failed to be saved."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._touched: dict[PoolKey, int] = {}
        self._taken_at = 0.0
        self._failed: OrderedDict[PoolKey, None] = OrderedDict()

    def touch(self, keys: Iterable[PoolKey]) -> None:
        """Note that these were used now, in their order."""
        clock = time.monotonic_ns()
        with self._lock:
            for key in keys:
                self._touched[key] = clock
                clock += 1

    def take_touched(self, *, at_most_now_and_then: bool = False) -> dict[PoolKey, int]:
        """Return the keys that were used, and when; or nothing if that was asked just before."""
        now = time.monotonic()
        with self._lock:
            if at_most_now_and_then and now - self._taken_at < _TOUCH_SECONDS:
                return {}
            touched, self._touched, self._taken_at = self._touched, {}, now
            return touched

    def note_failed(self, keys: Iterable[PoolKey]) -> None:
        """Note that these were to be saved, and are not."""
        with self._lock:
            for key in keys:
                self._failed[key] = None
            while len(self._failed) > _REMEMBERED:
                self._failed.popitem(last=False)

    def forget_failed(self, keys: Iterable[PoolKey]) -> None:
        """Note that these are saved, or were removed."""
        with self._lock:
            for key in keys:
                self._failed.pop(key, None)

    def forget_all(self) -> None:
        """Start anew."""
        with self._lock:
            self._failed.clear()
            self._touched.clear()

    def has_failed(self, key: PoolKey) -> bool:
        """Return whether saving this key failed, and nothing has been saved since."""
        return key in self._failed
