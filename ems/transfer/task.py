"""One call on its way: what it moves, what it waits for, how it ended."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ems.common.exception import EmsException, RequestTimeout
from ems.common.future import Outcome
from ems.common.option import CcKvOption
from ems.device.base import CallerWork, Direction
from ems.layout.part import Part

_log = logging.getLogger("ems")


@dataclass(eq=False)
class Task:
    """A request that was submitted."""

    direction: Direction
    parts: Sequence[Part]
    caller_work: CallerWork
    outcome: Outcome
    option: CcKvOption = field(default_factory=CcKvOption)
    blockers: set["Task"] = field(default_factory=set, repr=False)
    """Earlier unfinished tasks that share a hash or a block with it."""
    submitted: float = field(default_factory=time.monotonic)

    def check_deadline(self, doing: str) -> None:
        """Raise RequestTimeout if the deadline has passed; the text says what it was `doing`."""
        if self.outcome.overdue:
            raise self.timeout(doing)

    def timeout(self, doing: str) -> RequestTimeout:
        """Return the failure of a task whose deadline passed while `doing`."""
        spent = time.monotonic() - self.submitted
        return RequestTimeout(f"timed out after {spent * 1e3:.0f} ms, {doing}")


def failure_of(error: Exception) -> EmsException:
    """Return `error` as a call reports it; one that is not of the SDK's kind is a fault of ems."""
    if isinstance(error, EmsException):
        return error
    _log.error("a request failed by a fault of ems", exc_info=error)
    fault = EmsException(f"internal fault: {type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault
