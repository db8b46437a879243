"""Calls that end in time even where Mooncake does not: each on a thread that may be left behind.

A call into Mooncake can block for 4 to 90 s. Whoever waits for it gives up at its deadline. The
call goes on; until it returns, its memory belongs to it.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ems.common.exception import PoolUnavailable, RequestTimeout
from ems.pool.threads import started

_T = TypeVar("_T")

_LONGEST_SECONDS = 35.0
"""How long a call without a deadline is waited for; Mooncake's own limit is 30 s."""
_PATIENCE_SECONDS = 2.0
"""A call left behind that has run for longer shows that the pool hangs."""
_MOST_LEFT_BEHIND = 8


class _Call(Generic[_T]):
    """Some work on a thread of its own."""

    def __init__(self, work: Callable[[], _T], undo: Callable[[], None]) -> None:
        self.started = time.monotonic()
        self._work = work
        self._undo = undo
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._left = False
        self._value: _T
        self._error: BaseException | None = None

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
            self._error = error
        with self._lock:
            self._ended.set()
            undo = self._left
        if undo:
            self._undo()

    def wait(self, seconds: float) -> bool:
        """Return whether the work ended; where not, it is left behind and undone when it does."""
        if self._ended.wait(seconds):
            return True
        with self._lock:
            self._left = not self._ended.is_set()
        return not self._left

    def result(self) -> _T:
        if self._error is not None:
            self._undo()
            raise self._error
        return self._value


class Calls:
    """Runs work for callers with deadlines."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._lock = threading.Lock()
        self._left_behind: list[_Call[Any]] = []

    def run(
        self,
        work: Callable[[], _T],
        *,
        doing: str,
        deadline: float | None,
        undo: Callable[[], None] = lambda: None,
    ) -> _T:
        """Return what `work` returns.

        `undo` is called once if it fails or is too late: when it has ended, so that it may give
        memory back.

        Raises:
            RequestTimeout: the deadline passed.
            PoolUnavailable: calls hang, so this one was not made; or it took far too long.
        """
        seconds = _LONGEST_SECONDS
        if deadline is not None:
            seconds = min(seconds, deadline - time.monotonic())
        call = _Call(work, undo)
        try:
            self._refuse_hopeless(doing, seconds)
            started(call.run, name="ems-mooncake")
        except BaseException:
            undo()
            raise
        if call.wait(seconds):
            return call.result()
        with self._lock:
            self._left_behind.append(call)
        if seconds < _LONGEST_SECONDS:
            raise RequestTimeout(f"{doing} at {self._where} did not end within its time-out")
        raise PoolUnavailable(f"{doing} at {self._where} has not ended after {seconds:g} s")

    def _refuse_hopeless(self, doing: str, seconds: float) -> None:
        if seconds <= 0:
            raise RequestTimeout(f"the time-out passed before {doing} at {self._where} began")
        with self._lock:
            self._left_behind = [call for call in self._left_behind if call.running]
            if not self._left_behind:
                return
            age = time.monotonic() - self._left_behind[0].started
            if age > _PATIENCE_SECONDS or len(self._left_behind) >= _MOST_LEFT_BEHIND:
                raise PoolUnavailable(
                    f"{self._where} hangs: {len(self._left_behind)} calls have not returned, "
                    f"the oldest for {age:.1f} s"
                )
