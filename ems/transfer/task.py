"""One call on its way: what it moves, what it waits for, how it ended."""

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ems.common.exception import EmsException, RequestTimeout
from ems.common.future import Outcome
from ems.common.option import CcKvOption
from ems.common.result import CcResult
from ems.device.base import CallerWork, Direction
from ems.layout.part import Part
from ems.telemetry.tally import CallRecord, Tally

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
    tally: Tally = field(default_factory=Tally, repr=False)

    def check_deadline(self, doing: str) -> None:
        """Raise RequestTimeout if the deadline has passed; the text says what it was `doing`."""
        if self.outcome.overdue:
            raise self.timeout(doing)

    def record(self, end: CcResult | EmsException) -> CallRecord:
        """Return what is to be told of the task, which has ended so."""
        self.tally.lap("result" if "wait" in self.tally.phases else "wait")
        hashes = len(self.parts[0].keys)
        failed = isinstance(end, EmsException)
        return CallRecord(
            operation="save" if self.direction is Direction.OUT else "load",
            hashes=hashes,
            success=0 if isinstance(end, EmsException) else end.success,
            fates={"failed": hashes} if failed else dict(self.tally.fates),
            nbytes=self.tally.nbytes,
            phases=dict(self.tally.phases),
            seconds=time.monotonic() - self.submitted,
            code=end.status_code() if isinstance(end, EmsException) else None,
        )

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
