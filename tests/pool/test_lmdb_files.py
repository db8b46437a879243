import errno
import fcntl
import json
import os
import shutil
import stat
import subprocess
import threading

import lmdb
import pytest
from contracts.pool_engine import bytes_of, key_of, load, save, soon, stored
from lmdb_sharing import clear_there, elsewhere, load_there, save_there, save_with

from ems.common.exception import InvalidArgument, PoolUnavailable
from ems.pool.base import Miss
from ems.pool.lmdb.home import Agreement
from ems.pool.lmdb.record import BROKEN, Header

MIB = 1 << 20


def data_of(path):
    return sorted(path.glob("*.mdb"))


def replace_in(file, old, new):
    """Change bytes of a file where they stand, behind the back of LMDB."""
    content = file.read_bytes()
    at = content.index(old)
    assert content.count(old) == 1
    descriptor = os.open(file, os.O_WRONLY)
    os.pwrite(descriptor, new, at)
    os.close(descriptor)


def test_everything_is_readable_by_its_user_alone(lmdb_path, open_lmdb):
    before = os.umask(0)
    try:
        open_lmdb(shards=2)
    finally:
        os.umask(before)
    assert stat.S_IMODE(lmdb_path.stat().st_mode) == 0o700
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in lmdb_path.iterdir()}
    assert len(modes) == 8
    assert set(modes.values()) == {0o600}


def test_what_is_saved_survives_the_pool(open_lmdb):
    first = open_lmdb()
    save(first, "a", "b")
    first.close()
    assert load(open_lmdb(), "a", "b") == [bytes_of("a"), bytes_of("b")]


def test_the_space_is_taken_when_the_pool_is_made(lmdb_path, open_lmdb):
    open_lmdb(capacity_nbytes=8 * MIB, shards=2)
    taken = sum(file.stat().st_blocks * 512 for file in data_of(lmdb_path))
    assert taken >= Agreement.of(8 * MIB, 2).file_nbytes > 8 * MIB * 9 // 8


def test_a_capacity_beyond_the_file_system_is_one_clear_error_and_leaves_nothing(
    lmdb_path, open_lmdb
):
    with pytest.raises(PoolUnavailable, match=r"needs files of .* are free on that file system"):
        open_lmdb(capacity_nbytes=1 << 50)
    assert not lmdb_path.exists()


def test_space_that_is_gone_when_it_is_to_be_taken_is_one_clear_error(
    lmdb_path, open_lmdb, monkeypatch
):
    def full(descriptor, start, nbytes):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", full)
        with pytest.raises(PoolUnavailable, match="does not give: No space left on device"):
            open_lmdb()
    assert not lmdb_path.exists()
    save(open_lmdb(), "a")


@pytest.fixture
def small_file_system(lmdb_path):
    """Four MiB of memory with a file system on it, where the pool is to be."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    options = ["-t", "tmpfs", "-o", "size=4m,mode=700", "tmpfs", lmdb_path.parent]
    if not mount or subprocess.run([mount, *options], capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system is not permitted here")
    yield
    subprocess.run([umount, "-l", lmdb_path.parent], check=True)


@pytest.mark.usefixtures("small_file_system")
def test_a_small_file_system_is_an_error_when_the_pool_is_made_and_never_later(
    lmdb_path, open_lmdb
):
    with pytest.raises(PoolUnavailable, match="are free on that file system"):
        open_lmdb(capacity_nbytes=4 * MIB)
    assert list(lmdb_path.parent.iterdir()) == []
    pool = open_lmdb(capacity_nbytes=MIB // 2)
    for name in range(500):
        save(pool, name)
    assert load(pool, 499) == [bytes_of(499)]
    pool.close()


def test_a_link_is_not_followed(lmdb_path, open_lmdb):
    elsewhere_ = lmdb_path.parent / "elsewhere"
    elsewhere_.mkdir(0o700)
    lmdb_path.symlink_to(elsewhere_)
    with pytest.raises(InvalidArgument, match="is a link or a file"):
        open_lmdb()
    assert list(elsewhere_.iterdir()) == []


@pytest.mark.parametrize("name", ["users", "0.mdb", "0.mdb-lock", "pool.json"])
def test_a_link_in_the_directory_is_not_followed(lmdb_path, open_lmdb, name):
    open_lmdb().close()
    victim = lmdb_path.parent / "victim"
    victim.write_bytes(b"precious")
    (lmdb_path / name).unlink()
    (lmdb_path / name).symlink_to(victim)
    with pytest.raises(PoolUnavailable, match=name):
        open_lmdb()
    assert victim.read_bytes() == b"precious"


def test_a_file_in_its_place_is_refused(lmdb_path, open_lmdb):
    lmdb_path.write_text("mine")
    with pytest.raises(InvalidArgument, match="is a link or a file"):
        open_lmdb()
    assert lmdb_path.read_text() == "mine"


@pytest.mark.parametrize("stranger", ["notes.txt", "data.mdb", ".profile"])
def test_a_directory_with_files_of_somebody_is_refused_and_they_stay(
    lmdb_path, open_lmdb, stranger
):
    lmdb_path.mkdir(0o700)
    (lmdb_path / stranger).write_text("precious")
    with pytest.raises(InvalidArgument, match=rf"not a pool's, such as '{stranger}'"):
        open_lmdb()
    assert [path.read_text() for path in lmdb_path.iterdir()] == ["precious"]


def test_a_pool_to_which_somebody_added_a_file_is_used_and_not_made_anew(lmdb_path, open_lmdb):
    first = open_lmdb()
    save(first, "a")
    first.close()
    (lmdb_path / "notes.txt").write_text("precious")
    with pytest.raises(InvalidArgument, match="notes"):
        open_lmdb(capacity_nbytes=9 * MIB)
    assert (lmdb_path / "notes.txt").read_text() == "precious"
    assert load(open_lmdb(), "a") == [bytes_of("a")]


def test_a_directory_that_others_can_enter_is_refused(lmdb_path, open_lmdb):
    lmdb_path.mkdir(0o755)
    with pytest.raises(InvalidArgument, match="open to other users"):
        open_lmdb()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(lmdb_path, open_lmdb):
    lmdb_path.mkdir(0o700)
    os.chown(lmdb_path, 12345, 12345)
    with pytest.raises(InvalidArgument, match="belongs to user 12345"):
        open_lmdb()


def test_a_path_without_parents_is_unavailable_in_words(lmdb_path, open_lmdb):
    with pytest.raises(PoolUnavailable, match="No such file or directory"):
        open_lmdb(path=lmdb_path / "deeper")


def test_a_pool_in_use_keeps_its_capacity(lmdb_path, open_lmdb):
    pool = open_lmdb(capacity_nbytes=8 * MIB)
    with pytest.raises(InvalidArgument, match=r"in use with a capacity of 8\.00 MiB"):
        elsewhere(save_with, lmdb_path, 4 * MIB)
    assert elsewhere(save_with, lmdb_path, None) == 16 * MIB
    assert stored(pool, "a") == [True]


@pytest.mark.parametrize("change", [{"capacity_nbytes": 4 * MIB}, {"shards": 2}])
def test_a_pool_that_nobody_uses_is_made_anew_with_another_capacity(open_lmdb, change):
    first = open_lmdb(capacity_nbytes=8 * MIB)
    save(first, "a")
    first.close()
    second = open_lmdb(**{"capacity_nbytes": 8 * MIB, **change})
    assert load(second, "a") == [Miss.ABSENT]
    save(second, "a")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"capacity_nbytes": 1}', "\0"])
def test_a_pool_of_which_nothing_is_known_is_made_anew(lmdb_path, open_lmdb, text):
    first = open_lmdb()
    save(first, "a")
    first.close()
    (lmdb_path / "pool.json").write_text(text)
    second = open_lmdb()
    assert load(second, "a") == [Miss.ABSENT]
    save(second, "a")


def test_what_another_boot_of_the_host_left_is_not_trusted(lmdb_path, open_lmdb):
    first = open_lmdb()
    save(first, "a")
    first.close()
    agreed = lmdb_path / "pool.json"
    agreed.write_text(json.dumps({**json.loads(agreed.read_text()), "boot": "earlier"}))
    assert load(open_lmdb(), "a") == [Miss.ABSENT]


def test_a_file_that_is_not_of_lmdb_is_unavailable_and_no_miss(lmdb_path, open_lmdb):
    first = open_lmdb()
    first.close()
    (lmdb_path / "0.mdb").write_bytes(b"x" * 8192)
    with pytest.raises(PoolUnavailable, match=r"0\.mdb: .*MDB_INVALID"):
        open_lmdb()


def test_one_pool_is_open_once_in_a_process(open_lmdb):
    open_lmdb()
    with pytest.raises(PoolUnavailable, match="already open in this process"):
        open_lmdb()


def test_a_pool_that_another_process_cleared_goes_on(lmdb_path, open_lmdb):
    pool = open_lmdb()
    save(pool, "a", "b")
    assert elsewhere(clear_there, lmdb_path) == 2
    assert stored(pool, "a") == [False]
    save(pool, "a")
    assert load(pool, "a") == [bytes_of("a")]


@pytest.mark.parametrize("remade", [False, True])
def test_a_pool_that_was_removed_under_its_users_goes_on(lmdb_path, open_lmdb, remade):
    pool = open_lmdb()
    save(pool, "a")
    shutil.rmtree(lmdb_path)
    if remade:
        elsewhere(save_there, lmdb_path, "b")
    assert stored(pool, "a", "b") == [False, remade]
    save(pool, "c")
    pool.check_health(deadline=soon())
    assert elsewhere(load_there, lmdb_path, "c") == [bytes_of("c")]


def test_a_pool_that_was_removed_and_cannot_be_made_again_is_unavailable(lmdb_path, open_lmdb):
    pool = open_lmdb()
    shutil.rmtree(lmdb_path)
    lmdb_path.write_text("something else")
    with pytest.raises(PoolUnavailable, match="was removed"):
        stored(pool, "a")
    lmdb_path.unlink()
    assert stored(pool, "a") == [False]


@pytest.mark.parametrize("at", [0, 2000, 4079, 4080, 4095])
def test_a_changed_byte_is_a_damaged_miss_and_the_entry_goes(lmdb_path, open_lmdb, at, caplog):
    pool = open_lmdb()
    save(pool, "a", "b")
    start = at if at in {0, 4080} else at - 15  # within one piece
    there = bytearray(bytes_of("a")[start : start + 16])
    changed = bytearray(there)
    changed[at - start] ^= 1
    replace_in(lmdb_path / "0.mdb", bytes(there), bytes(changed))
    assert load(pool, "a", "b") == [Miss.DAMAGED, bytes_of("b")]
    assert load(pool, "a") == [Miss.ABSENT]
    assert "1 entries of" in caplog.text
    save(pool, "a")
    assert load(pool, "a") == [bytes_of("a")]
    pool.clear()
    assert pool.stats().used_nbytes == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda header: Header(header.serial, 99, header.nbytes, header.clock, header.checksum),
        lambda header: Header(header.serial, header.tokens, 1 << 62, header.clock, 0),
        lambda header: Header(header.serial, header.tokens, 100, header.clock, header.checksum),
        lambda header: Header(77, header.tokens, header.nbytes, header.clock, header.checksum),
    ],
    ids=["tokens", "a size that cannot be", "another size", "another's pieces"],
)
def test_a_changed_header_is_a_damaged_miss_and_nothing_is_left_of_it(lmdb_path, open_lmdb, change):
    pool = open_lmdb()
    save(pool, "a")
    [header] = pool._home._opened.shards.headers([key_of("a")])
    replace_in(lmdb_path / "0.mdb", header.pack(), change(header).pack())
    assert load(pool, "a") == [Miss.DAMAGED]
    assert load(pool, "a") == [Miss.ABSENT]
    pool.close()
    pool = open_lmdb()
    assert pool.stats().used_nbytes == 0
    save(pool, "a")
    assert load(pool, "a") == [bytes_of("a")]


def test_opening_alone_counts_anew_and_removes_what_nothing_leads_to(open_lmdb):
    pool = open_lmdb()
    save(pool, "a", "b", "c")
    with pool._home.shards() as shards:
        shard = shards._shards[0]
        [header] = shard.headers([key_of("b")])
        with shard._transactions.environment.begin(write=True) as txn:
            txn.delete(key_of("a").encode(), db=shard._tables.entries)
            txn.put(key_of("c").encode(), b"broken", db=shard._tables.entries)
    assert header is not BROKEN
    pool.close()
    pool = open_lmdb()
    assert load(pool, "a", "b", "c") == [Miss.ABSENT, bytes_of("b"), Miss.ABSENT]
    assert len(list(pool.keys())) == 1
    pool.remove([key_of("b")])
    stats = pool.stats()
    assert (stats.entries, stats.used_nbytes) == (0, 0)


def test_eviction_passes_over_a_damaged_key(open_lmdb):
    pool = open_lmdb(capacity_nbytes=16 * 2 * 4096)
    save(pool, "a", "b")
    with pool._home.shards() as shards:
        shard = shards._shards[0]
        with shard._transactions.environment.begin(write=True) as txn:
            cursor = txn.cursor(db=shard._tables.ages)
            assert cursor.first()
            assert cursor.put(cursor.key(), b"\xff\xfe")
    assert len(list(pool.keys())) == 2
    for name in range(40):
        save(pool, name)
        assert load(pool, name) == [bytes_of(name)]
    assert stored(pool, "b") == [False]


def test_figures_that_nobody_wrote_make_the_pool_unavailable(open_lmdb):
    pool = open_lmdb()
    with pool._home.shards() as shards:
        shard = shards._shards[0]
        with shard._transactions.environment.begin(write=True) as txn:
            txn.put(b"figures", b"?", db=shard._tables.meta)
    with pytest.raises(PoolUnavailable, match=r"0\.mdb: unpack"):
        pool.stats()
    with pytest.raises(PoolUnavailable, match=r"0\.mdb: unpack"):
        save(pool, "a")


def test_one_process_opens_at_a_time(lmdb_path, open_lmdb):
    open_lmdb().close()
    other = os.open(lmdb_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    opening = threading.Thread(target=open_lmdb)
    opening.start()
    opening.join(0.1)
    assert opening.is_alive()
    os.close(other)
    opening.join(10)
    assert not opening.is_alive()


def test_what_lmdb_raises_is_unavailable_with_its_text(open_lmdb, monkeypatch):
    pool = open_lmdb()
    with pool._home.shards() as shards:
        shard = shards._shards[0]

    class Broken:
        def begin(self, **keywords):
            raise lmdb.CorruptedError("mdb_txn_begin")

        def close(self):
            pass

    shard._transactions.environment.close()
    monkeypatch.setattr(shard._transactions, "environment", Broken())
    with pytest.raises(PoolUnavailable, match=r"0\.mdb: mdb_txn_begin"):
        load(pool, "a")
