"""The pinned memory that requests pass through: never more than the pool's URL says."""

import shutil
import tempfile
import time
from pathlib import Path

import pytest
from bounded import repeating
from contracts.mooncake_cluster import cluster, needs_mooncake
from preamble import BS, OPT, boot, cache, planes, sl

import ems.client
from ems import CcResult, Ems
from ems.pool.lmdb.pool import LmdbPool
from ems.pool.registry import open_pool
from ems.pool.staging import Staging

STAGING = 64 << 10
CALLS = 100
HASHES = 100
"""In each call: ten thousand on their way."""


class CountedMemory:
    """The host memory of a process, and what the pool has of it."""

    def __init__(self, memory):
        self.peak_nbytes = 0
        self._memory = memory
        self._sizes = {}

    @property
    def live_nbytes(self):
        return sum(self._sizes.values())

    def allocate(self, nbytes):
        address = self._memory.allocate(nbytes)
        self._sizes[address] = nbytes
        self.peak_nbytes = max(self.peak_nbytes, self.live_nbytes)
        return address

    def free(self, address):
        self._memory.free(address)
        del self._sizes[address]


class Lending:
    """What staging memory has lent, seen after each time that it lends."""

    def __init__(self, monkeypatch):
        self.peak_nbytes = 0
        take = Staging.take

        def noted(staging, sizes, *, deadline):
            starts = take(staging, sizes, deadline=deadline)
            self.peak_nbytes = max(self.peak_nbytes, staging.lent_nbytes)
            return starts

        monkeypatch.setattr(Staging, "take", noted)


@pytest.fixture
def opened(monkeypatch):
    """The pools that `boot` opens, each with its memory."""
    made = []

    def open_counted(url, memory):
        counted = CountedMemory(memory)
        made.append((open_pool(url, counted), counted))
        return made[-1][0]

    monkeypatch.setattr(ems.client, "open_pool", open_counted)
    return made


@pytest.fixture
def lmdb_url():
    parent = Path(tempfile.mkdtemp(prefix="ems-tests-", dir="/dev/shm"))
    yield f"lmdb://{parent}/pool?capacity=128MiB&staging=64KiB"
    shutil.rmtree(parent)


@pytest.fixture
def mooncake_url():
    with cluster() as trial:
        yield f"mooncake://127.0.0.1:{trial.port}?staging=64KiB"


@pytest.fixture(params=["lmdb", pytest.param("mooncake", marks=needs_mooncake)])
def url(request):
    return request.getfixturevalue(f"{request.param}_url")


def staging_of(pool):
    """Return the memory, and how much of it the pool keeps for itself."""
    if not isinstance(pool, LmdbPool):
        from ems.pool.mooncake.connection import OWN_NBYTES  # noqa: PLC0415 - imports mooncake

        return pool._connection.staging, OWN_NBYTES
    return pool._staging, 0


def test_ten_thousand_entries_on_their_way_take_no_more_memory_than_there_is(
    url, opened, monkeypatch
):
    lending = Lending(monkeypatch)
    cc = boot(pool=url)
    [(pool, memory)] = opened
    staging, own = staging_of(pool)
    kv = cache(blocks=2 * HASHES)
    cc.register_kvcache(kv)
    assert memory.live_nbytes == staging.nbytes == STAGING + own
    [everything] = staging.take([STAGING], deadline=None)  # so that no request can begin
    lending.peak_nbytes = 0
    calls = [(range(at * HASHES, (at + 1) * HASHES), [BS] * HASHES, OPT) for at in range(CALLS)]
    futures = [cc.async_save(sl(*range(HASHES)), *call) for call in calls]
    futures += [cc.async_load(sl(*range(HASHES, 2 * HASHES)), *call) for call in calls]
    assert not any(map(cc.is_ready, futures))
    samples = []

    def sample():
        stats = cc.pool_stats()
        samples.append((stats.reserved_nbytes, stats.held_nbytes))
        time.sleep(0.001)

    with repeating(sample):
        staging.give([everything])
        assert {future.result() for future in futures} == {CcResult(HASHES, HASHES)}
    for plane in planes(kv):
        assert bool((plane[:HASHES] == plane[HASHES:]).all())
    reserved, held = zip(*samples, strict=True)
    assert max(reserved) > 0
    assert max(held) > 0
    assert max(map(sum, samples)) <= STAGING
    assert own < lending.peak_nbytes <= STAGING + own
    assert memory.peak_nbytes == STAGING + own
    assert staging.lent_nbytes == own
    Ems.shutdown()
    assert memory.live_nbytes == 0
