"""Entries that do not pass through the staging memory: refused in words, and nothing else is."""

import logging
import shutil
import tempfile
from pathlib import Path

import pytest
from contracts.mooncake_cluster import cluster, needs_mooncake
from preamble import BS, OPT, block, boot, cache, poison, same, sl

from ems import CcResult, Ems

HEADS = 20
"""With 256 elements in each of two planes a token has 20 KiB, a block of four has 80."""


@pytest.fixture
def lmdb_url():
    """A pool that takes a quarter of its staging memory: 64 KiB."""
    parent = Path(tempfile.mkdtemp(prefix="ems-tests-", dir="/dev/shm"))
    yield f"lmdb://{parent}/pool?capacity=16MiB&staging=256KiB"
    shutil.rmtree(parent)


@pytest.fixture
def mooncake_url():
    """A pool that takes as much as its staging memory: 64 KiB."""
    with cluster() as trial:
        yield f"{trial.url}&staging=64KiB"


@pytest.fixture(params=["lmdb", pytest.param("mooncake", marks=needs_mooncake)])
def url(request):
    return request.getfixturevalue(f"{request.param}_url")


def fates(cc, operation):
    counted = cc.counters()[operation]["hashes_by_fate"]
    return {fate: count for fate, count in counted.items() if count}


def test_an_entry_beyond_the_staging_memory_finds_no_space_with_one_warning_and_others_do(
    url, caplog
):
    cc = boot(pool=url)
    kv = cache(layers=1, blocks=8, shape=(BS, HEADS, 256))
    cc.register_kvcache(kv)
    caplog.clear()
    caplog.set_level(logging.WARNING)
    for turn in range(5):
        assert cc.save(sl(turn), [turn], [BS], OPT) == CcResult(0, 1)
    assert fates(cc, "save") == {"no_space": 5}
    [warning] = caplog.messages
    assert "?staging=" in warning
    small = sl(5)[:1]
    assert cc.save(sl(0) + small, [6, 7], [BS, 1], OPT) == CcResult(0, 2)
    assert cc.save(small, [8], [1], OPT) == CcResult(1, 1)
    assert fates(cc, "save") == {"no_space": 6, "done": 2}
    assert [cc.exists([each], OPT).success for each in range(9)] == [0] * 7 + [1, 1]
    want = [part[:1] for part in block(kv, 5)]
    for hash_ in (7, 8):
        poison(kv, 6)
        assert cc.load(sl(6)[:1], [hash_], [1], OPT) == CcResult(1, 1)
        assert same([part[:1] for part in block(kv, 6)], want)
    assert cc.load(sl(7), [0], [BS], OPT) == CcResult(0, 1)
    assert fates(cc, "load") == {"done": 2, "save_failed": 1}
    assert caplog.messages == [warning]
    stats = cc.pool_stats()
    assert (stats.reserved_nbytes, stats.held_nbytes) == (0, 0)
    Ems.shutdown()


@pytest.mark.parametrize("blocks", [pytest.param(count, marks=needs_mooncake) for count in (1, 3)])
def test_on_mooncake_an_entry_may_fill_most_of_the_staging_memory(mooncake_url, blocks):
    cc = boot(pool=mooncake_url)
    kv = cache(layers=1, blocks=8, shape=(3, HEADS, 256))  # 60 KiB
    cc.register_kvcache(kv)
    want = [block(kv, at) for at in range(blocks)]
    hashes, counts = list(range(blocks)), [3] * blocks
    assert cc.save(sl(*range(blocks), bs=3), hashes, counts, OPT) == CcResult(blocks, blocks)
    assert cc.load(sl(*range(4, 4 + blocks), bs=3), hashes, counts, OPT).success == blocks
    for at, parts in enumerate(want):
        assert same(block(kv, 4 + at), parts)
    Ems.shutdown()
