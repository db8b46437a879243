import shutil
import tempfile
from pathlib import Path

import pytest
from lmdb_sharing import open_pool


@pytest.fixture
def lmdb_path():
    """Where an LMDB pool may be made; in memory, as users have it."""
    parent = Path(tempfile.mkdtemp(prefix="ems-tests-", dir="/dev/shm"))
    yield parent / "pool"
    shutil.rmtree(parent)


@pytest.fixture
def open_lmdb(lmdb_path):
    """A function that opens the pool; what it opened is closed afterwards."""
    pools = []

    def open_here(**settings):
        pools.append(open_pool(**{"path": lmdb_path, **settings}))
        return pools[-1]

    yield open_here
    for pool in pools:
        pool.close()
