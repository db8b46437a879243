"""Headers in an LMDB file that something else has changed, as loads through the SDK meet them."""

import shutil
import tempfile
import tracemalloc
from pathlib import Path

import pytest
from preamble import BS, OPT, block, boot, cache, poison, same, sl

from ems import CcResult, Ems
from ems.pool.lmdb.record import Header

MIB = 1 << 20
SHARE = MIB // 4
"""What one call may take of the staging memory."""
CAPACITY = 32 * MIB


@pytest.fixture
def cc(request):
    parent = Path(tempfile.mkdtemp(prefix="ems-tests-", dir="/dev/shm"))
    checksum = getattr(request, "param", "on")
    cc = boot(pool=f"lmdb://{parent}/pool?capacity=32MiB&staging=1MiB&checksum={checksum}")
    yield cc
    Ems.shutdown()
    shutil.rmtree(parent)


def forge(pool, hash_, change):
    """Put another header where that of an entry is, and return it."""
    with pool._home.shards() as shards:
        for shard in shards._shards:
            tables = shard._tables
            with shard._transactions.environment.begin(write=True) as txn:
                for key, raw in txn.cursor(db=tables.entries):
                    if key.endswith(f"-i{hash_:x}".encode()):
                        header = change(Header.parse(raw, limit_nbytes=CAPACITY))
                        assert txn.put(key, header.pack(), db=tables.entries)
                        return header
    raise AssertionError("there is no such entry")


def fates(cc, operation):
    counted = cc.counters()[operation]["hashes_by_fate"]
    return {fate: count for fate, count in counted.items() if count}


@pytest.mark.parametrize("checksum", ["checked", "unchecked"])
@pytest.mark.parametrize("nbytes", [100, SHARE, SHARE + 64, 8 * MIB, CAPACITY, 1 << 62])
def test_a_header_with_a_wrong_size_is_a_damaged_miss_and_nothing_of_that_size_is_allocated(
    cc, nbytes, checksum, caplog
):
    kv = cache()
    cc.register_kvcache(kv)
    assert cc.save(sl(0, 1, 2), [1, 2, 3], [BS] * 3, OPT) == CcResult(3, 3)

    def change(header):
        changed = header._replace(nbytes=nbytes)
        return changed if checksum == "checked" else changed._replace(checksum=None)

    forge(cc._pool, 2, change)
    want = block(kv, 0)
    poison(kv, 5, 6)
    cc.load(sl(4), [1], [BS], OPT)  # what only the first one needs
    tracemalloc.start()
    loaded = cc.load(sl(4, 5, 6), [1, 2, 3], [BS] * 3, OPT)
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert loaded == CcResult(1, 3)
    assert peak_nbytes < 4 * MIB
    assert same(block(kv, 4), want)
    assert all(bool((part == -9).all()) for part in block(kv, 5) + block(kv, 6))
    assert fates(cc, "load") == {"done": 2, "damaged": 1, "behind_a_miss": 1}
    assert "1 entries of" in caplog.text
    assert cc.exists([2], OPT) == CcResult(0, 1)
    assert cc.save(sl(1), [2], [BS], OPT) == CcResult(1, 1)
    assert cc.load(sl(4, 5, 6), [1, 2, 3], [BS] * 3, OPT) == CcResult(3, 3)
    assert same(block(kv, 5), block(kv, 1))
    stats = cc.pool_stats()
    assert (stats.entries, stats.reserved_nbytes, stats.held_nbytes) == (3, 0, 0)


@pytest.mark.parametrize("cc", ["on", "off"], indirect=True)
def test_any_wrong_byte_of_a_header_is_a_damaged_miss_whether_entries_are_checked_or_not(cc):
    kv = cache()
    cc.register_kvcache(kv)
    with cc._pool._home.shards() as shards:
        [shard] = shards._shards
    nbytes = None
    at = 0
    while at != nbytes:
        assert cc.save(sl(0), [1], [BS], OPT) == CcResult(1, 1)
        with shard._transactions.environment.begin(write=True) as txn:
            [(key, raw)] = txn.cursor(db=shard._tables.entries)
            nbytes = len(raw)
            changed = bytearray(raw)
            changed[at] ^= 4
            assert txn.put(key, bytes(changed), db=shard._tables.entries)
        assert cc.load(sl(4), [1], [BS], OPT) == CcResult(0, 1), f"byte {at}"
        at += 1
        assert fates(cc, "load") == {"damaged": at}
    assert Ems.check_health() is True
