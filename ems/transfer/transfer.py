"""Takes requests from any thread and ends each of them: one worker per direction."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from ems.common.exception import EmsException
from ems.common.future import Outcome
from ems.common.option import CcKvOption
from ems.common.result import CcResult
from ems.device.base import Device, Direction
from ems.layout.part import Part
from ems.pool.base import PoolEngine
from ems.telemetry.tally import CallRecord
from ems.transfer.mover import Mover
from ems.transfer.naps import sleep_precisely
from ems.transfer.order import Order
from ems.transfer.task import Task, failure_of

_STOP_SECONDS = 10.0
"""How long `close` waits for the copies under way after it has given up their requests."""


def _ignore(call: CallRecord) -> None:
    pass


class Transfer:
    """The way between one NPU and the pool."""

    def __init__(
        self,
        device: Device,
        pool: PoolEngine,
        *,
        record: Callable[[CallRecord], None] = _ignore,
    ) -> None:
        """Start the workers. `record` is told of each request that has ended; it must be quick."""
        self._device = device
        self._pool = pool
        self._record = record
        self._order = Order()
        self._workers = [
            threading.Thread(
                target=self._work, args=(direction,), name=f"ems-{direction.name}", daemon=True
            )
            for direction in Direction
        ]
        try:
            for worker in self._workers:
                worker.start()
        except BaseException:
            self._order.close()  # which ends those that run
            raise

    def submit(self, direction: Direction, parts: Sequence[Part], option: CcKvOption) -> Outcome:
        """Start a request and return at once.

        What the calling thread has queued on its current stream of the device comes first. Blocks
        that are saved may be overwritten, and blocks that are loaded may be read, once the outcome
        has ended.

        Raises:
            DeviceFailed: the device has failed before.
        """
        outcome = Outcome(option.deadline())
        work = self._device.caller_work()
        task = Task(direction, parts, work, outcome, option)
        outcome.when_ended = lambda end: self._record(task.record(end))
        self._order.submit(task)
        return outcome

    def drain(self, seconds: float | None) -> bool:
        """Wait until every submitted request has ended; return whether they have."""
        return self._order.wait_idle(seconds)

    def close(self, seconds: float | None) -> int:
        """End the workers and return how many requests were given up for it.

        Requests have `seconds` to end by themselves; after that those that have not begun fail, and
        the others make no further copies.
        """
        given_up = 0
        if not self.drain(seconds):
            given_up = self._order.fail_waiting(EmsException("the context cache was shut down"))
        self._order.close()
        until = time.monotonic() + _STOP_SECONDS
        for worker in self._workers:
            worker.join(max(0.0, until - time.monotonic()))
        return given_up

    def _work(self, direction: Direction) -> None:
        mover = None
        sleep_precisely()
        with suppress(RuntimeError):  # of torch; the first task is told, it asks again
            self._device.bind()
        while (task := self._order.next(direction)) is not None:
            end: CcResult | EmsException
            try:
                task.tally.lap("wait")
                mover = mover or Mover(self._device, self._pool, direction)
                end = mover.run(task)
            except Exception as error:  # noqa: BLE001 - a worker must outlive every task
                end = failure_of(error)
            # first what others wait for, then the caller: who wakes needs the interpreter at once
            self._order.finish(task)
            task.outcome.end(end)
            del task, end  # what they name must not live until the next one comes
        if mover is not None:
            mover.close()
