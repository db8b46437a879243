import os
import threading
import time
from contextlib import closing

import pytest
from bounded import without_threads
from contracts.host_memory import MappedMemory, ScarceMemory
from contracts.pool_engine import (
    ENTRY_NBYTES,
    PoolEngineContract,
    acquire,
    bytes_of,
    key_of,
    load,
    reserve,
    save,
    soon,
    stored,
)

from ems.common.exception import (
    EmsException,
    InvalidArgument,
    PoolUnavailable,
    RequestTimeout,
)
from ems.pool.base import Held, Miss, Place, Refused
from ems.pool.lmdb.pool import LmdbPool
from ems.pool.lmdb.settings import LmdbSettings
from ems.pool.registry import open_pool
from ems.pool.url import PoolUrl

MIB = 1 << 20


class TestLmdbPool(PoolEngineContract):
    @pytest.fixture
    def pool(self, open_lmdb):
        return open_lmdb()

    @pytest.fixture
    def small_pool(self, open_lmdb):
        return open_lmdb(capacity_nbytes=16 * 2 * 4096)


class TestLmdbPoolInFourFiles(TestLmdbPool):
    @pytest.fixture
    def pool(self, open_lmdb):
        return open_lmdb(shards=4)

    @pytest.fixture
    def small_pool(self, open_lmdb):
        return open_lmdb(capacity_nbytes=2 * 16 * 4096, shards=1, checked=False)


def test_a_url_says_path_capacity_staging_and_checksum(lmdb_path):
    memory = MappedMemory()
    url = f"lmdb://{lmdb_path}?capacity=2MiB&staging=1MiB&checksum=off"
    pool = open_pool(url, memory)
    assert isinstance(pool, LmdbPool)
    assert memory.sizes == [1 * MIB]
    assert pool.stats().capacity_nbytes == 3 * MIB
    pool.close()
    assert memory.live_nbytes == 0


@pytest.mark.parametrize("url", ["lmdb://", "lmdb:///"])
def test_without_a_path_it_is_the_users_own_in_shared_memory(url):
    settings = LmdbSettings.from_url(PoolUrl.parse(url))
    assert str(settings.path) == f"/dev/shm/ems-{os.geteuid()}-pool"  # noqa: S108 - documented
    assert settings.capacity_nbytes is None


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("lmdb://dev/shm/pool", "three slashes"),
        ("lmdb://:80/dev/shm/pool", "three slashes"),
        ("lmdb:///x?size=1MiB", "'size' is unknown; known are capacity, checksum, staging"),
        ("lmdb:///x?capacity=1KiB", "capacity is 1024 bytes; at least 65536"),
        ("lmdb:///x?staging=1", "staging is 1 bytes; at least 65536"),
        ("lmdb:///x?checksum=yes", "checksum is 'yes'; it is on or off"),
    ],
)
def test_a_wrong_url_is_refused_in_words(url, words):
    with pytest.raises(InvalidArgument, match=words):
        open_pool(url, MappedMemory())


def test_staging_memory_is_no_room_for_entries(lmdb_path):
    settings = LmdbSettings(lmdb_path, capacity_nbytes=4 * MIB, staging_nbytes=MIB)
    with closing(LmdbPool(MappedMemory(), settings)) as pool:
        assert (pool.stats().capacity_nbytes, pool.stats().room_nbytes) == (5 * MIB, 4 * MIB)


def test_a_closed_pool_gives_its_staging_memory_back_with_the_last_place(lmdb_path):
    memory = MappedMemory()
    pool = LmdbPool(memory, LmdbSettings(lmdb_path, capacity_nbytes=MIB, staging_nbytes=MIB))
    save(pool, "a")
    held, places = acquire(pool, "a"), reserve(pool, "b")
    pool.close()
    pool.release(held)
    assert memory.live_nbytes == MIB
    with pytest.raises(PoolUnavailable):
        pool.commit(places)
    assert memory.live_nbytes == 0


def test_a_host_without_memory_for_staging_is_an_error_and_the_files_are_let_go(lmdb_path):
    settings = LmdbSettings(lmdb_path, capacity_nbytes=MIB, staging_nbytes=MIB)
    with pytest.raises(PoolUnavailable):
        LmdbPool(ScarceMemory(0), settings)
    LmdbPool(MappedMemory(), settings).close()


def test_staging_memory_never_exceeds_its_bound_with_ten_thousand_entries_on_their_way(open_lmdb):
    pool = open_lmdb(capacity_nbytes=64 * MIB, staging_nbytes=1 * MIB)
    bound = 1 * MIB - 10 * ENTRY_NBYTES
    out, seen = [], []
    for first in range(0, 10_000, 10):
        names = range(first, first + 10)
        if pool.stats().reserved_nbytes > bound:
            pool.commit(out)
            out = []
        places = reserve(pool, *names)
        assert all(isinstance(place, Place) for place in places)
        out += places
        seen.append(pool.stats().reserved_nbytes)
    pool.commit(out)
    assert 10 * ENTRY_NBYTES < max(seen) <= 1 * MIB
    assert pool.stats().reserved_nbytes == 0


@pytest.mark.parametrize(
    "ask",
    [
        lambda pool, deadline: pool.reserve([key_of("b")], [1], [200 << 10], deadline=deadline),
        lambda pool, deadline: pool.acquire([key_of("a")], [1], deadline=deadline),
    ],
    ids=["reserve", "acquire"],
)
def test_who_finds_no_staging_memory_waits_until_the_deadline(open_lmdb, ask):
    pool = open_lmdb(staging_nbytes=1 * MIB)
    save(pool, "a", nbytes=200 << 10)
    held = [one for _ in range(5) for one in acquire(pool, "a")]
    with pytest.raises(
        RequestTimeout, match=r"waited for staging memory: 1000\.00 KiB of 1\.00 MiB"
    ):
        ask(pool, time.monotonic() + 0.05)
    assert pool.stats().reserved_nbytes == 0
    waiter = threading.Timer(0.1, pool.release, [held[:1]])
    waiter.start()
    [got] = ask(pool, soon())
    assert isinstance(got, Place | Held)
    waiter.join()
    (pool.abort if isinstance(got, Place) else pool.release)([got])
    pool.release(held[1:])


def test_what_exceeds_a_quarter_of_the_staging_memory_gets_no_place(open_lmdb, caplog):
    pool = open_lmdb(staging_nbytes=1 * MIB)
    assert reserve(pool, "a", "b", nbytes=(256 << 10) + 1) == [Refused.NO_SPACE] * 2
    assert load(pool, "a") == [Miss.SAVE_FAILED]
    answers = reserve(pool, "c", "d", "e", nbytes=100 << 10)
    assert [isinstance(one, Place) for one in answers] == [True, True, False]
    pool.abort(answers[:2])
    assert len(caplog.records) == 1


def test_what_exceeds_a_quarter_of_the_staging_memory_takes_no_room_from_others(open_lmdb):
    pool = open_lmdb(capacity_nbytes=1 * MIB, staging_nbytes=1 * MIB)
    keys = [key_of(name) for name in range(34)]
    assert pool.fitting(keys, [512 << 10] * 2 + [64 << 10] * 32) == 18


def test_an_entry_saved_with_more_staging_memory_is_an_error_and_no_miss(open_lmdb):
    with_more = open_lmdb(staging_nbytes=8 * MIB)
    save(with_more, "a", nbytes=MIB)
    with_more.close()
    with pytest.raises(PoolUnavailable, match="set \\?staging= as high as"):
        acquire(open_lmdb(staging_nbytes=1 * MIB), "a")


def test_windows_of_both_directions_fit_into_the_staging_memory(open_lmdb):
    for staging in (1 * MIB, 256 * MIB):
        pool = open_lmdb(staging_nbytes=staging)
        assert 0 < pool.window_nbytes <= staging // 4
        pool.close()


@pytest.mark.parametrize("back", ["abort", "commit"])
def test_a_place_given_back_twice_is_a_fault_and_nothing_else_suffers(open_lmdb, back):
    pool = open_lmdb()
    [a] = reserve(pool, "a")
    [b] = reserve(pool, "b")
    pool.abort([a])
    with pytest.raises(EmsException, match="did not hand out"):
        getattr(pool, back)([a, b])
    assert pool.stats().reserved_nbytes == 0
    assert stored(pool, "b") == [back == "commit"]


def test_a_hold_released_twice_is_a_fault(open_lmdb):
    pool = open_lmdb()
    save(pool, "a")
    held = acquire(pool, "a")
    pool.release(held)
    with pytest.raises(EmsException, match="did not hand out"):
        pool.release(held)


def test_two_places_of_one_key_in_one_commit_leave_the_fuller(open_lmdb):
    pool = open_lmdb()
    [short] = reserve(pool, "a", tokens=1, nbytes=100)
    [full] = reserve(pool, "a", tokens=2, nbytes=5000)
    pool.commit([short, full])
    assert pool.lookup([key_of("a")])[0].tokens == 2
    pool.clear()
    assert pool.stats().used_nbytes == 0


def test_entries_without_a_checksum_are_read_by_who_wants_one_and_the_reverse(open_lmdb):
    for checked in (False, True):
        first = open_lmdb(checked=checked)
        save(first, checked)
        first.close()
    both = [bytes_of(False), bytes_of(True)]
    for checked in (False, True):
        pool = open_lmdb(checked=checked)
        assert load(pool, False, True) == both
        pool.close()


def test_misses_are_not_logged(open_lmdb, caplog):
    # case 53
    pool = open_lmdb()
    for name in range(1000):
        load(pool, name)
    assert caplog.records == []


def test_health_for_which_there_is_no_thread_is_asked_again(open_lmdb):
    pool = open_lmdb()
    with without_threads(), pytest.raises(PoolUnavailable, match="no thread"):
        pool.check_health(deadline=soon())
    pool.check_health(deadline=soon())


def test_a_probe_of_health_leaves_no_trace(open_lmdb):
    # case 51
    pool = open_lmdb(shards=4)
    save(pool, "a")
    before = pool.stats()
    pool.check_health(deadline=soon())
    pool.check_health(deadline=None)
    assert pool.stats() == before
    assert list(pool.keys()) == [key_of("a")]


def test_keys_are_listed_least_recently_used_first_over_all_files(open_lmdb):
    pool = open_lmdb(shards=4)
    save(pool, *range(20))
    pool.release(acquire(pool, 7, 3))
    order = [key_of(name) for name in (*range(20), 7, 3)]
    assert sorted(pool.keys()) == sorted(order[:20])
    assert list(pool.keys())[-2:] == order[-2:]
