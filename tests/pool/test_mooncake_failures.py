"""Masters, nodes and writers of a real Mooncake cluster die or hang; each call ends in time."""

import signal
import subprocess
import sys
import threading
import time

import pytest
from contracts.mooncake_cluster import (
    cluster,
    eventually,
    hang,
    kill,
    needs_mooncake,
    pool_of,
)
from contracts.pool_engine import (
    acquire,
    bytes_of,
    key_of,
    load,
    reserve,
    save,
    soon,
    stored,
    write,
)

from ems.common.exception import PoolUnavailable, RequestTimeout
from ems.pool.base import Miss, NotStored
from ems.pool.registry import open_pool

pytestmark = needs_mooncake

NAMES = range(20)
SECONDS = 4.0
"""Within which each call of these tests ends, on a busy computer."""
HEALTH_SECONDS = 2.0
"""Within which a check of the health ends, and shows what has become of the master."""


@pytest.fixture
def trial():
    with cluster(lease_seconds=0.5) as trial:
        yield trial


@pytest.fixture(params=[True, False], ids=["with-metrics", "without-metrics"])
def pool(request, trial):
    with pool_of(trial, metrics=request.param) as pool:
        yield pool


def healthy(pool):
    """Whether the pool says so; it must say something in time."""
    start = time.monotonic()
    try:
        pool.check_health(deadline=start + HEALTH_SECONDS)
    except PoolUnavailable:
        return False
    finally:
        assert time.monotonic() - start < HEALTH_SECONDS
    return True


def took(call):
    """Return the seconds that a call took, and its value or exception."""
    start = time.monotonic()
    try:
        value = call()
    except (PoolUnavailable, RequestTimeout) as error:
        value = error
    return time.monotonic() - start, value


def load_within(pool, names, seconds):
    return pool.acquire(
        [key_of(name) for name in names], [1] * len(names), deadline=time.monotonic() + seconds
    )


def works(pool, name):
    """Whether an entry goes in and comes out."""
    try:
        save(pool, name)
    except PoolUnavailable:
        return False
    return load(pool, name) == [bytes_of(name)]


def test_a_dead_master_is_an_error_at_once_and_after_its_restart_all_is_well(trial, pool):
    save(pool, *NAMES)
    kill(trial.master)
    for call in (
        lambda: load_within(pool, NAMES, SECONDS),
        lambda: stored(pool, *NAMES),
        lambda: reserve(pool, "new"),
        lambda: pool.remove([key_of(0)]),
    ):
        seconds, error = took(call)
        assert isinstance(error, PoolUnavailable)
        assert seconds < SECONDS
    assert not healthy(pool)
    trial.start_master()
    assert eventually(lambda: healthy(pool))
    assert load(pool, *NAMES) == [Miss.ABSENT] * len(NAMES)
    assert works(pool, "after")


def test_what_was_reserved_before_the_master_died_is_given_up_and_its_memory_returns(trial, pool):
    places = reserve(pool, *NAMES)
    kill(trial.master)
    for name, place in zip(NAMES, places, strict=True):
        write(place, bytes_of(name))
    seconds, error = took(lambda: pool.commit(places))
    assert isinstance(error, PoolUnavailable)
    assert seconds < SECONDS
    trial.start_master()
    assert eventually(lambda: healthy(pool))
    assert load(pool, 0) == [Miss.SAVE_FAILED]
    assert staging_used(pool) == own_nbytes()


def test_a_master_that_hangs_costs_no_more_than_the_time_out_and_heals(trial, pool):
    save(pool, *NAMES)
    hang(trial.master, signal.SIGSTOP)
    try:
        seconds, error = took(lambda: load_within(pool, NAMES, 0.5))
        assert isinstance(error, RequestTimeout | PoolUnavailable)
        assert seconds < 0.5 + 1
        assert not healthy(pool)
        assert not healthy(pool)
        assert staging_used(pool) <= own_nbytes() + len(NAMES) * 8192
    finally:
        hang(trial.master, signal.SIGCONT)
    assert eventually(lambda: healthy(pool))
    assert eventually(lambda: staging_used(pool) == own_nbytes())
    assert works(pool, "after")


def test_entries_of_a_node_that_died_are_absent_once_per_call_not_per_entry(trial, pool):
    save(pool, *NAMES)
    kill(trial.nodes[0])
    for _ in range(3):
        seconds, found = took(lambda: load_within(pool, NAMES, SECONDS))
        assert found == [Miss.ABSENT] * len(NAMES)
        assert seconds < SECONDS
    trial.start_node()
    assert eventually(lambda: works(pool, "after"))
    assert eventually(lambda: healthy(pool))


def test_a_save_into_a_node_that_died_says_what_is_not_stored(trial, pool):
    places = reserve(pool, *NAMES)
    kill(trial.nodes[0])
    seconds, error = took(lambda: pool.commit(places))
    assert isinstance(error, NotStored)
    assert list(error.places) == places
    assert seconds < 10 + 1
    assert load(pool, 0) == [Miss.SAVE_FAILED]


def test_a_name_that_nobody_resolves_delays_neither_a_check_nor_the_close(monkeypatch):
    resolved = threading.Event()

    def resolve(address, *, timeout):
        resolved.wait(30)
        raise OSError("no such name")

    pool = open_pool("mooncake://nowhere:1?staging=1MiB", None)
    monkeypatch.setattr("ems.pool.mooncake.connection.socket.create_connection", resolve)
    start = time.monotonic()
    assert not healthy(pool)
    pool.close()
    assert time.monotonic() - start < HEALTH_SECONDS
    resolved.set()


WRITER = """
import ctypes, mmap, os, signal, sys
from mooncake.store import MooncakeDistributedStore
store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", sys.argv[1]) == 0
assert store.batch_put_session_start([sys.argv[2]], [4096 + 64]) == [0]
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_killed_half_way_leaves_nothing_visible_and_is_found_out(trial, pool):
    name = f"ems:{key_of('a')}"
    master = f"127.0.0.1:{trial.port}"
    ended = subprocess.run([sys.executable, "-c", WRITER, master, name], check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL
    assert load(pool, "a") == [Miss.ABSENT]
    [place, other] = reserve(pool, "a", "b")
    for one, content in ((place, "a"), (other, "b")):
        write(one, bytes_of(content))
    with pytest.raises(NotStored, match="another writer") as refusal:
        pool.commit([place, other])
    assert list(refusal.value.places) == [place]
    assert load(pool, "b") == [bytes_of("b")]
    assert eventually(lambda: works(pool, "a"))


def test_before_the_master_is_there_calls_say_so_at_once_and_later_they_work():
    with cluster(node=False) as trial:
        kill(trial.master)
        with pool_of(trial, metrics=False) as pool:
            seconds, error = took(lambda: pool.lookup([key_of("a")]))
            assert isinstance(error, PoolUnavailable)
            assert f"127.0.0.1:{trial.port}" in str(error)
            assert seconds < SECONDS
            assert not healthy(pool)
            trial.start_master()
            trial.start_node()
            assert eventually(lambda: healthy(pool))
            assert works(pool, "a")


def close_while_the_master_hangs(trial, pool, *, under_way):
    """Close with a load under way, or without; memory stays until the library is left."""
    save(pool, *NAMES)
    memory = pool._connection._memory
    hang(trial.master, signal.SIGSTOP)
    try:
        if under_way:
            took(lambda: load_within(pool, NAMES, 0.3))
        seconds, _ = took(pool.close)
        assert seconds < 8
        assert memory.live_nbytes > 0
    finally:
        hang(trial.master, signal.SIGCONT)
    assert eventually(lambda: memory.live_nbytes == 0)


def test_close_ends_while_the_master_hangs_and_memory_stays_until_the_call_returns(trial):
    with pool_of(trial, metrics=False) as pool:
        close_while_the_master_hangs(trial, pool, under_way=True)


def test_a_process_that_lends_memory_is_not_stopped_by_closing_while_the_master_hangs(trial):
    with pool_of(trial, segment="32MiB") as pool:
        close_while_the_master_hangs(trial, pool, under_way=False)


def test_a_process_that_lends_memory_serves_others_and_takes_its_entries_along():
    with cluster(node=False) as trial, pool_of(trial) as reader:
        with pool_of(trial, segment="32MiB") as lender:
            save(lender, "a")
            assert load(reader, "a") == [bytes_of("a")]
        assert eventually(lambda: load(reader, "a") == [Miss.ABSENT])


def test_nothing_reaches_the_library_of_a_pool_that_never_connected():
    url = "mooncake://127.0.0.1:1?staging=1MiB"
    pool = open_pool(url, None)
    with pytest.raises(PoolUnavailable, match="does not accept connections"):
        acquire(pool, "a")
    pool.close()
    with pytest.raises(PoolUnavailable, match="closed"):
        pool.check_health(deadline=soon())


def staging_used(pool):
    return pool._connection.staging.lent_nbytes


def own_nbytes():
    """What the connection keeps of staging for look-ups and checks."""
    from ems.pool.mooncake.connection import OWN_NBYTES  # noqa: PLC0415 - imports mooncake

    return OWN_NBYTES
