import pytest
from preamble import boot, cache

from ems import Ems


@pytest.fixture(autouse=True)
def shut_down():
    """Leave no state of `Ems` to the next test."""
    yield
    Ems.shutdown()


@pytest.fixture
def kv():
    return cache()


@pytest.fixture
def cc(kv):
    cc = boot()
    cc.register_kvcache(kv)
    yield cc
    if Ems.get_cc() is cc:
        stats = cc.pool_stats()
        assert (stats.reserved_nbytes, stats.held_nbytes) == (0, 0), "a place or a hold is lost"
