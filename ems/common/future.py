"""The end of an asynchronous call, reached once and read any number of times."""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Any

from ems.common.exception import EmsException, InvalidArgument, shown
from ems.common.result import CcResult

_log = logging.getLogger("ems")


_LOOK_SECONDS = 1.0
"""How often a waiting thread looks by itself: another may have been interrupted as it woke."""


class Outcome:
    """How a call ended: a result or a failure, whichever came first."""

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        """A value of `time.monotonic()`; None is no limit."""
        self.when_overdue: Callable[[], None] = _nothing
        """Called by whoever asks after the deadline: ends a call that has not begun to move."""
        self._pid = os.getpid()
        self.when_ended: Callable[[CcResult | EmsException], None] = _take_note
        """Called once, before anybody sees the end."""
        self._is_ended = False
        self._pending = threading.Lock()
        """Held until the end. A lock alone wakes a waiting thread sooner than an event does."""
        self._pending.acquire()
        self._lock = threading.Lock()
        self._result: CcResult | None = None
        self._failure: EmsException | None = None

    @property
    def overdue(self) -> bool:
        """Whether the deadline has passed."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def end(self, end: CcResult | EmsException) -> None:
        """End with a result or a failure, unless it has ended."""
        with self._lock:
            if self._is_ended:
                return
            if isinstance(end, EmsException):
                self._failure = end.with_traceback(None)  # whose frames hold the request
            else:
                self._result = end
            self._end(end)

    def _end(self, end: CcResult | EmsException) -> None:
        when_ended = self.when_ended
        # a future that is kept must not keep its request
        self.when_overdue, self.when_ended = _nothing, _take_note
        try:
            when_ended(end)
        except Exception:  # noqa: BLE001 - the caller has its result, and waits for it
            _log.exception("a call has ended, and could not be taken note of")
        finally:
            self._is_ended = True
            self._pending.release()

    @property
    def ended(self) -> bool:
        """Whether there is a result or a failure; in a forked child there is one, see `get`."""
        if not self._is_ended and os.getpid() != self._pid:
            return True
        if not self._is_ended and self.overdue:
            self.when_overdue()
        return self._is_ended

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it has ended; return whether it has."""
        until = None if seconds is None else time.monotonic() + seconds
        while not self._is_ended:
            left = _LOOK_SECONDS if until is None else until - time.monotonic()
            if left < 0:
                break
            if self._pending.acquire(timeout=min(left, _LOOK_SECONDS)):
                self._pending.release()  # for the next one that waits
        return self._is_ended

    def get(self) -> CcResult:
        """Wait for the end; return the result or raise the failure."""
        if os.getpid() != self._pid and not self._is_ended:
            raise EmsException(
                "this call was started before the process was forked: ask the parent"
            )
        if self.deadline is not None:
            self.wait(max(0.0, self.deadline - time.monotonic()))
            if not self._is_ended:
                self.when_overdue()
        self.wait()
        if self._failure is not None:
            raise self._failure.with_traceback(None)
        if self._result is None:
            raise EmsException("the call ended with neither result nor failure")
        return self._result


def _nothing() -> None:
    pass


def _take_note(end: CcResult | EmsException) -> None:
    pass


def ended(result: CcResult) -> Outcome:
    """Return an outcome for which nothing had to be done."""
    outcome = Outcome(None)
    outcome.end(result)
    return outcome


class CcFuture:
    """A call on its way, as `async_save` and `async_load` return it.

    Always true, readable any number of times and from any thread; may be dropped.
    """

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome

    def result(self) -> CcResult:
        """Wait for the call to end and return its result.

        Ends by the call's time-out, late at most by the copies that are under way then. Once it has
        ended, no byte of the call moves any more.

        Raises:
            EmsException: the call failed; the same each time.
        """
        return self._outcome.get()

    def done(self) -> bool:
        """Return whether the call has ended, in whatever way."""
        return self._outcome.ended

    def __repr__(self) -> str:
        """Show whether it has ended."""
        return f"<CcFuture {'done' if self._outcome.ended else 'pending'}>"


def checked_future(value: Any) -> CcFuture:
    """Return `value`.

    Raises:
        InvalidArgument: it is no CcFuture.
    """
    if not isinstance(value, CcFuture):
        raise InvalidArgument(f"ccfuture must be a CcFuture, not {shown(value)}")
    return value
