"""The ways between this process's NPUs and the pool: one each, made when it is first used."""

import time
from collections.abc import Callable

from ems.common.exception import EmsException
from ems.device.base import Device
from ems.pool.base import PoolEngine
from ems.telemetry.tally import CallRecord
from ems.transfer.transfer import Transfer


class Transfers:
    """One `Transfer` per NPU. Not thread-safe but for `check_health`: its owner has a lock."""

    def __init__(
        self,
        open_device: Callable[[int], Device],
        pool: PoolEngine,
        record: Callable[[CallRecord], None],
    ) -> None:
        self._open_device = open_device
        self._pool = pool
        self._record = record
        self._devices: dict[int, Device] = {}
        self._transfers: dict[int, Transfer] = {}

    def of_device(self, index: int) -> Transfer:
        """Return the way between an NPU and the pool."""
        if index not in self._transfers:
            self._devices[index] = self._open_device(index)
            self._transfers[index] = Transfer(self._devices[index], self._pool, record=self._record)
        return self._transfers[index]

    def drain(self, seconds: float) -> bool:
        """Wait until every submitted request has ended; return whether they have."""
        until = time.monotonic() + seconds
        return all(
            transfer.drain(max(0.0, until - time.monotonic()))
            for transfer in self._transfers.values()
        )

    def check_health(self) -> None:
        """Raise EmsException if an NPU is lost."""
        for device in list(self._devices.values()):
            if device.lost:
                raise EmsException(f"npu:{device.index} is lost: {device.lost}")

    def close(self, seconds: float) -> int:
        """End all requests within `seconds` and return how many were given up for it."""
        until = time.monotonic() + seconds
        return sum(
            transfer.close(max(0.0, until - time.monotonic()))
            for transfer in self._transfers.values()
        )
