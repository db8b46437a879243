"""Carries out tasks of one direction, one at a time, on a channel of its own."""

from contextlib import suppress

from ems.common.exception import DeviceFailed
from ems.common.result import CcResult
from ems.device.base import Device, Direction
from ems.pool.base import PoolEngine
from ems.transfer.loading import Loading
from ems.transfer.naps import Pace
from ems.transfer.pipeline import Pipeline
from ems.transfer.saving import Saving
from ems.transfer.task import Task


class Mover:
    """Moves blocks between an NPU and a pool. Belongs to the thread that made it."""

    def __init__(self, device: Device, pool: PoolEngine, direction: Direction) -> None:
        self._device = device
        self._pool = pool
        self._moving = Saving if direction is Direction.OUT else Loading
        self._channel = device.open_channel(direction)
        self._pace = Pace()

    def run(self, task: Task) -> CcResult:
        """Move a task's blocks. When this ends, in whatever way, none of their bytes move any more.

        Raises:
            RequestTimeout: the deadline passed. Blocks of a save that had arrived are stored.
            PoolUnavailable: the pool did not answer.
            DeviceFailed: a copy failed, or does not end; in that case alone bytes may still move.
        """
        pipeline = Pipeline(self._device, self._channel, task, self._pace)
        pool = self._pool.view(
            write_local=task.option.write_rcache, local_only=task.option.read_local_only
        )
        return self._moving(pool, pipeline, task.parts, task.outcome.deadline).run()

    def close(self) -> None:
        """Give the channel back; none of its tasks is running."""
        with suppress(DeviceFailed):  # nothing is lost by it but two streams
            self._channel.close()
