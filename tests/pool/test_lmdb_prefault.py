import ctypes
import errno
from pathlib import Path

from contracts.pool_engine import bytes_of, load, save

from ems.pool.lmdb import prefault
from ems.pool.lmdb.space import map_nbytes

MIB = 1 << 20


def resident_nbytes(path):
    """How much of the mappings of files under `path` this process has touched."""
    inside, total = False, 0
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split()[0]:
            inside = str(path) in line
        elif inside and name == "Rss":
            total += int(value.split()[0]) * 1024
    return total


def test_the_pages_of_all_files_are_made_ready_ahead_of_use(lmdb_path, open_lmdb):
    pool = open_lmdb(capacity_nbytes=40 * MIB, shards=2)
    pool._home._opened.prefault.wait()
    assert resident_nbytes(lmdb_path) >= 2 * map_nbytes(20 * MIB)


def test_an_old_kernel_makes_no_difference_but_of_speed(lmdb_path, open_lmdb, monkeypatch):
    monkeypatch.setattr(prefault, "_MADV_POPULATE_WRITE", 12345)
    pool = open_lmdb(capacity_nbytes=40 * MIB)
    pool._home._opened.prefault.wait()
    assert ctypes.get_errno() in {0, errno.EINVAL}
    assert resident_nbytes(lmdb_path) < 10 * MIB
    save(pool, "a")
    assert load(pool, "a") == [bytes_of("a")]


def test_files_on_a_disk_are_left_alone(tmp_path, open_lmdb, monkeypatch):
    monkeypatch.setattr(prefault, "_is_in_memory", lambda device: False)
    path = tmp_path / "pool"
    pool = open_lmdb(path=path, capacity_nbytes=40 * MIB)
    pool._home._opened.prefault.wait()
    assert resident_nbytes(path) < 10 * MIB
    save(pool, "a")
    assert load(pool, "a") == [bytes_of("a")]


def test_closing_at_once_ends_it(lmdb_path, open_lmdb):
    for _ in range(5):
        open_lmdb(capacity_nbytes=40 * MIB, shards=2).close()
        assert resident_nbytes(lmdb_path) == 0
