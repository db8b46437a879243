"""Carries out tasks of one direction, one at a time, on a channel of its own."""

from collections.abc import Sequence

from ems.common.result import CcResult
from ems.device.base import Device, Direction
from ems.layout.registration import Registration
from ems.pool.base import PoolEngine
from ems.transfer.loading import Loading
from ems.transfer.parts import parts_of
from ems.transfer.pipeline import Pipeline
from ems.transfer.saving import Saving
from ems.transfer.task import Task


class Mover:
    """Moves blocks between one registered cache and a pool. Belongs to the thread that made it."""

    def __init__(
        self,
        device: Device,
        pool: PoolEngine,
        registration: Registration,
        *,
        key_prefixes: Sequence[str],
        direction: Direction,
    ) -> None:
        self._device = device
        self._pool = pool
        self._groups = registration.groups
        self._key_prefixes = key_prefixes
        self._moving = Saving if direction is Direction.OUT else Loading
        self._channel = device.open_channel(direction)

    def run(self, task: Task) -> CcResult:
        """Move a task's blocks. When this ends, in whatever way, none of their bytes move any more.

        Raises:
            RequestTimeout: the deadline passed. Blocks of a save that had arrived are stored.
            PoolUnavailable: the pool did not answer.
            DeviceFailed: a copy failed, or does not end; in that case alone bytes may still move.
        """
        parts = parts_of(task.request, self._groups, self._key_prefixes)
        pipeline = Pipeline(self._device, self._channel, task)
        return self._moving(self._pool, pipeline, parts, task.outcome.deadline).run()
