import shutil
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from contracts.host_memory import MappedMemory
from contracts.pool_engine import PoolEngineContract

from ems.pool.lmdb.pool import LmdbPool
from ems.pool.lmdb.settings import LmdbSettings

SMALL_CAPACITY = 16 * 2 * 4096


@pytest.fixture
def path():
    """Where a pool may be made; in memory, as users have it."""
    parent = Path(tempfile.mkdtemp(prefix="ems-tests-", dir="/dev/shm"))
    yield parent / "pool"
    shutil.rmtree(parent)


@pytest.fixture
def opened(path):
    """A function that opens the pool; what it opened is closed afterwards."""
    pools = []

    def open_pool(memory=None, **settings):
        settings = {"path": path, "capacity_nbytes": 4 << 20, "staging_nbytes": 8 << 20, **settings}
        pools.append(LmdbPool(memory or MappedMemory(), LmdbSettings(**settings)))
        return pools[-1]

    yield open_pool
    for pool in pools:
        pool.close()


class TestLmdbPool(PoolEngineContract):
    @pytest.fixture
    def pool(self, opened):
        return opened()

    @pytest.fixture
    def small_pool(self, opened):
        return opened(capacity_nbytes=SMALL_CAPACITY)
