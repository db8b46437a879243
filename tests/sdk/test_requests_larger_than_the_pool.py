"""A save of more than the pool can hold stores its first blocks, which alone are of use later."""

import shutil
import tempfile
from pathlib import Path

import pytest
from preamble import BS, OPT, block, boot, cache, poison, same, sl

from ems import CcResult, ChunkDesc, Ems, StoreLayerGroupDesc

ROOM, ASKED = 24, 36
"""Blocks of 1 MiB."""
HEADS = 128


@pytest.fixture
def folder():
    parent = Path(tempfile.mkdtemp(prefix="ems-tests-", dir="/dev/shm"))
    yield parent
    shutil.rmtree(parent)


@pytest.fixture(
    params=[
        ("memory://?capacity={room}MiB&segment=4MiB", 1),
        ("memory://?capacity={room}MiB&segment=3584KiB", 2),
        ("lmdb://{folder}/pool?capacity={room}MiB&staging=8MiB", 1),
        ("lmdb://{folder}/pool?capacity={room}MiB&staging=8MiB", 3),
        ("tiered+lmdb://{folder}/pool?capacity={room}MiB&staging=8MiB&local=8MiB", 1),
    ],
    ids=["memory", "memory in segments with a rest", "lmdb", "lmdb in shards", "tiered"],
)
def pool(request, folder, monkeypatch):
    """A pool, and the fewest blocks of one request that it takes; shards do not fill evenly."""
    url, shards = request.param
    monkeypatch.setattr("ems.pool.lmdb.home._SHARD_NBYTES", (ROOM << 20) // shards)
    cc = boot(pool=url.format(folder=folder, room=ROOM))
    kv = cache(layers=1, blocks=2 * ASKED, shape=(BS, HEADS, 512))
    cc.register_kvcache(kv)
    yield cc, kv, ROOM // shards
    Ems.shutdown()


def save_all(cc, hashes):
    return cc.save(sl(*range(ASKED)), hashes, [BS] * ASKED, OPT)


def test_a_save_counts_what_can_be_loaded_and_again_when_it_is_repeated(pool):
    cc, kv, fewest = pool
    hashes = list(range(ASKED))
    saved = save_all(cc, hashes)
    assert fewest <= saved.success <= ROOM
    for _ in range(2):
        assert cc.exists(hashes, OPT) == saved
        assert save_all(cc, hashes) == saved
    targets = range(ASKED, 2 * ASKED)
    poison(kv, *targets)
    assert cc.load(sl(*targets), hashes, [BS] * ASKED, OPT) == saved
    for at in (0, saved.success - 1):
        assert same(block(kv, targets[at]), block(kv, at))


def test_it_takes_the_place_of_other_requests(pool):
    cc, _, fewest = pool
    save_all(cc, list(range(1000, 1000 + ASKED)))
    hashes = list(range(ASKED))
    saved = save_all(cc, hashes)
    assert fewest <= saved.success <= ROOM
    assert cc.exists(hashes, OPT) == saved


def test_what_finds_no_room_even_alone_takes_none_from_the_blocks_behind_it(pool):
    cc, *_ = pool
    tokens = [BS] * 4 + [BS * ASKED] + [BS] * 4
    blocks = [*range(4), *range(ASKED), *range(4, 8)]
    saved = cc.save(sl(*blocks), list(range(9)), tokens, OPT)
    assert saved == CcResult(4, 9)
    assert [cc.exists([each], OPT).success for each in range(9)] == [1, 1, 1, 1, 0, 1, 1, 1, 1]


def test_what_a_hash_has_nothing_of_and_what_is_repeated_takes_no_room():
    """Two groups; each of their entries is a quarter of the pool, and three hashes fill it."""
    cc = boot(pool="memory://?capacity=1MiB&segment=1MiB")
    groups = [StoreLayerGroupDesc(BS, [0]), StoreLayerGroupDesc(BS, [1], window=BS)]
    cc.register_kvcache(cache(layers=2, shape=(BS, 32, 512)), groups)
    whole = [ChunkDesc(0, BS), ChunkDesc(BS, BS), ChunkDesc(0, BS), ChunkDesc(2 * BS, BS)]
    descs = [whole, [None, None, None, ChunkDesc(2 * BS, BS)]]
    saved = cc.save(hashes=[1, 2, 1, 3], chunk_descs=descs, option=OPT)
    assert saved == CcResult(4, 4)
    assert cc.exists([1, 2, 3], OPT) == CcResult(3, 3)
    Ems.shutdown()
