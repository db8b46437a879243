"""A save and a load after it, and nothing else: for measuring many NPUs at once."""

import time
from typing import Any

import numpy as np

from ems.device.base import Direction
from ems.layout.key import make_keys
from ems_cli.diagnostics.bench_calls import Caller, calls_of
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.bench_trip import Parts
from ems_cli.diagnostics.measure import Clock


class Transfer:
    """Asynchronous saves of random blocks, then loads into others; content is not compared."""

    def __init__(self, parts: Parts, settings: Settings, clock: Clock = time.perf_counter) -> None:
        self._parts = parts
        self._settings = settings
        self._clock = clock
        self._rng: Any = np.random.default_rng(settings.seed)
        self._blocks = settings.hits_per_call * settings.in_flight

    @property
    def nbytes(self) -> int:
        """Bytes of one transfer, both directions added up."""
        return 2 * self._blocks * self._parts.block_nbytes

    def there_and_back(self) -> tuple[float, float]:
        """Save and load; return when it began and when it had ended.

        Raises:
            EmsException: a call failed.
        """
        parts, count = self._parts, self._blocks
        order = self._rng.permutation(parts.registration.groups[0].num_blocks).tolist()
        hashes = [(1 << 62) + number for number in range(count)]
        saves, loads = (
            calls_of(
                direction,
                blocks,
                hashes,
                each=self._settings.hits_per_call,
                block_sizes=parts.block_sizes,
            )
            for direction, blocks in (
                (Direction.OUT, order[:count]),
                (Direction.IN, order[count : 2 * count]),
            )
        )
        caller = Caller(parts.caching)
        try:
            started = self._clock()
            caller.make(saves, asynchronous=True)
            caller.make(loads, asynchronous=True)
            return started, self._clock()
        finally:
            for prefix in parts.key_prefixes:
                parts.pool.remove(make_keys(prefix, hashes))
