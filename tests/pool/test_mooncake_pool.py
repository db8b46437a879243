"""The promises of every engine, kept by the one on Mooncake, and what is special in it."""

from contextlib import ExitStack

import pytest
from contracts.mooncake_cluster import cluster, eventually, needs_mooncake, pool_of
from contracts.pool_engine import (
    SMALL,
    PoolEngineContract,
    load,
    save,
    stored,
)

from ems.pool.base import Miss

pytestmark = needs_mooncake

EVICTS_AT_48_ENTRIES = ("--eviction_high_watermark_ratio=0.012", "--eviction_ratio=0.3")
"""Of a node's least memory, 16 MiB: Mooncake lends no less."""


class Shared:
    """One engine for many tests, emptied between them and made anew where a test closed it."""

    def __init__(self, trial, **options):
        self._trial = trial
        self._options = options
        self._stack = ExitStack()
        self._pool = None

    def pool(self):
        if self._pool is None or self._pool._connection.closed:
            self._stack.close()
            self._pool = self._stack.enter_context(pool_of(self._trial, **self._options))
        self._pool.clear()
        return self._pool

    def close(self):
        self._stack.close()


@pytest.fixture(scope="module")
def shared():
    with cluster() as trial:
        shared = Shared(trial)
        yield shared
        shared.close()


@pytest.fixture(scope="module")
def small_shared():
    flags = EVICTS_AT_48_ENTRIES
    with cluster(segment_nbytes=16 << 20, lease_seconds=0.05, master_flags=flags) as trial:
        shared = Shared(trial, staging="128KiB")
        yield shared
        shared.close()


class TestMooncakePool(PoolEngineContract):
    knows_its_room = False

    @pytest.fixture
    def pool(self, shared):
        return shared.pool()

    @pytest.fixture
    def small_pool(self, small_shared):
        return small_shared.pool()

    def test_what_was_evicted_says_so(self, small_pool):
        """Absent is all that Mooncake tells of it."""
        for name in range(4 * SMALL):
            save(small_pool, name)
        assert eventually(lambda: not stored(small_pool, 0)[0])
        assert load(small_pool, 0) == [Miss.ABSENT]
        assert small_pool.stats().evictions > 0
