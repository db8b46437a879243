import errno
import fcntl
import os
import signal
import threading
import time
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context

import pytest
from bounded import within
from contracts.pool_engine import acquire, bytes_of, key_of, load, read, reserve, save, soon, stored
from killed_writers import Writer, forking
from lmdb_sharing import (
    elsewhere,
    fill_there,
    load_there,
    other_processes,
    read_for_ever,
    save_own_then_load_all,
    save_there,
    stall_in_a_transaction,
    use_as,
    write_until_killed,
    wrong_contents,
)

from ems.common.exception import PoolUnavailable
from ems.pool.base import Miss, Refused

NAMES = 60


@contextmanager
def process(target, *arguments, method="spawn"):
    """A process that is killed at the end."""
    child = get_context(method).Process(target=target, args=arguments, daemon=True)
    child.start()
    try:
        yield child
    finally:
        child.kill()
        child.join()


@contextmanager
def stuck_process(target, path):
    """A process that has begun something and does not end it."""
    ready = get_context("spawn").Event()
    with process(target, path, ready) as child:
        assert ready.wait(60)
        yield child


def test_what_one_process_saves_another_loads(lmdb_path, open_lmdb):
    assert elsewhere(save_there, lmdb_path, "a", "b") == ["Place", "Place"]
    pool = open_lmdb()
    assert load(pool, "a", "b") == [bytes_of("a"), bytes_of("b")]
    save(pool, "c")
    assert elsewhere(load_there, lmdb_path, "a", "c", "d") == [
        bytes_of("a"),
        bytes_of("c"),
        Miss.ABSENT,
    ]


def test_a_key_that_another_process_stored_is_already_there(lmdb_path, open_lmdb):
    # case 41
    pool = open_lmdb()
    [place] = reserve(pool, "a")
    elsewhere(save_there, lmdb_path, "a")
    assert reserve(pool, "a") == [Refused.ALREADY_THERE]
    pool.commit([place])
    assert load(pool, "a") == [bytes_of("a")]
    assert pool.stats().entries == 1


def test_what_another_process_evicted_is_known_as_evicted(lmdb_path, open_lmdb):
    pool = open_lmdb()
    save(pool, "a")
    elsewhere(fill_there, lmdb_path)
    assert load(pool, "a") == [Miss.EVICTED]
    assert elsewhere(load_there, lmdb_path, "a", "never") == [Miss.EVICTED, Miss.ABSENT]


def test_a_use_in_one_process_keeps_an_entry_from_the_eviction_of_another(lmdb_path, open_lmdb):
    pool = open_lmdb()
    save(pool, "used", "unused", *range(500))
    pool.release(acquire(pool, "used"))
    save(pool, "next")
    elsewhere(fill_there, lmdb_path, 600)
    assert stored(pool, "used", "unused") == [True, False]


def test_a_process_that_only_loads_tells_the_others_what_it_uses(lmdb_path, open_lmdb, monkeypatch):
    monkeypatch.setattr("ems.pool.lmdb.memories._TOUCH_SECONDS", 0)
    pool = open_lmdb()
    save(pool, "used", "unused", *range(500))
    pool.release(acquire(pool, "used"))
    elsewhere(fill_there, lmdb_path, 600)
    assert stored(pool, "used", "unused") == [True, False]


def test_a_process_whose_saves_are_there_already_tells_the_others_what_it_uses(
    lmdb_path, open_lmdb, monkeypatch
):
    monkeypatch.setattr("ems.pool.lmdb.memories._TOUCH_SECONDS", 0)
    pool = open_lmdb()
    save(pool, "used", "unused", *range(500))
    assert reserve(pool, "used") == [Refused.ALREADY_THERE]
    elsewhere(fill_there, lmdb_path, 600)
    assert stored(pool, "used", "unused") == [True, False]


def test_held_entries_keep_their_bytes_while_another_process_evicts_them(lmdb_path, open_lmdb):
    # case 33
    pool = open_lmdb()
    save(pool, "a")
    held = acquire(pool, "a")
    elsewhere(fill_there, lmdb_path)
    assert load(pool, "a") == [Miss.EVICTED]
    assert read(held[0]) == bytes_of("a")
    pool.release(held)


def test_four_processes_with_a_hundred_entries_each_load_all_four_hundred(lmdb_path):
    # case 35
    ranks, count = 4, 100
    arrived = lmdb_path.parent / "arrived"
    arrived.mkdir()
    with other_processes(ranks) as executor:
        loads = [
            executor.submit(save_own_then_load_all, lmdb_path, rank, ranks, count, arrived)
            for rank in range(ranks)
        ]
        expected = [bytes_of(f"{rank}-{at}") for rank in range(ranks) for at in range(count)]
        assert all(one.result(timeout=120) == expected for one in loads)


def test_a_killed_reader_does_not_keep_pages_from_being_used_again(lmdb_path, open_lmdb):
    pool = open_lmdb()
    save(pool, *range(100))
    with stuck_process(read_for_ever, lmdb_path) as reader:
        reader.kill()
        reader.join()
        for first in range(0, 6000, 60):
            save(pool, *range(first, first + 60))
    assert load(pool, 5999) == [bytes_of(5999)]


def test_a_reader_that_has_stopped_makes_the_pool_unavailable_and_lets_it_recover(
    lmdb_path, open_lmdb, monkeypatch
):
    monkeypatch.setattr("ems.pool.lmdb.transactions._FULL_SECONDS", 0.2)
    pool = open_lmdb()
    save(pool, *range(60))

    def go_through():
        for first in range(0, 6000, 60):
            save(pool, *range(first, first + 60))

    stopped = pytest.raises(PoolUnavailable, match="that reads it seems to have stopped")
    with stuck_process(read_for_ever, lmdb_path), stopped:
        within(go_through)
    assert pool.stats().reserved_nbytes == 0
    save(pool, "after")
    assert load(pool, "after") == [bytes_of("after")]


def test_while_a_reader_has_stopped_loads_go_on(lmdb_path, open_lmdb, monkeypatch):
    monkeypatch.setattr("ems.pool.lmdb.transactions._FULL_SECONDS", 0.2)
    monkeypatch.setattr("ems.pool.lmdb.memories._TOUCH_SECONDS", 0)
    pool = open_lmdb()

    def go_through():
        for first in range(0, 6000, 60):
            save(pool, *range(first, first + 60))

    with stuck_process(read_for_ever, lmdb_path):
        with pytest.raises(PoolUnavailable, match="that reads it seems to have stopped"):
            within(go_through)
        [name, *_] = (name for name in range(6000) if stored(pool, name) == [True])
        for _ in range(100):
            assert load(pool, name) == [bytes_of(name)]
    assert pool.stats().held_nbytes == 0


def test_health_is_bounded_while_a_writer_has_stopped_and_returns_when_it_is_gone(
    lmdb_path, open_lmdb
):
    # case 51
    pool = open_lmdb()
    with stuck_process(stall_in_a_transaction, lmdb_path):
        for _ in range(2):
            with pytest.raises(PoolUnavailable, match="a process that writes to it seems to have"):
                within(lambda: pool.check_health(deadline=time.monotonic() + 0.1))
    pool.check_health(deadline=soon())


def test_while_a_writer_has_stopped_loads_go_on_and_nothing_waits_for_it_without_end(
    lmdb_path, open_lmdb
):
    pool = open_lmdb()
    save(pool, "before")
    with stuck_process(stall_in_a_transaction, lmdb_path):
        for call in (lambda: save(pool, "a"), pool.clear, lambda: pool.remove([key_of("before")])):
            with pytest.raises(PoolUnavailable, match="writer guards is not free to be written"):
                within(call)
        assert within(load, pool, "before", "a") == [bytes_of("before"), Miss.ABSENT]
        pool.close()
        with pytest.raises(PoolUnavailable, match="a process that writes to it seems to have"):
            within(open_lmdb)
    pool = open_lmdb()
    assert load(pool, "before", "a") == [bytes_of("before"), Miss.ABSENT]
    within(save, pool, "a")
    assert load(pool, "a") == [bytes_of("a")]


def test_a_lock_that_the_system_refuses_makes_the_pool_unavailable(open_lmdb, monkeypatch):
    def refused(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    pool = open_lmdb()
    with monkeypatch.context() as patched:
        patched.setattr("ems.pool.lmdb.locks.fcntl.flock", refused)
        with pytest.raises(PoolUnavailable, match=r"0\.mdb: .*No locks available"):
            save(pool, "a")
    save(pool, "a")
    assert load(pool, "a") == [bytes_of("a")]


def test_while_someone_who_opens_the_pool_has_stopped_nobody_waits_for_it_without_end(
    lmdb_path, open_lmdb, monkeypatch
):
    monkeypatch.setattr("ems.pool.lmdb.directory.OPENING_SECONDS", 0.2)
    open_lmdb().close()
    descriptor = os.open(lmdb_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)  # as an opener has it
    with pytest.raises(PoolUnavailable, match="opened by a process that seems to have stopped"):
        within(open_lmdb)
    os.close(descriptor)
    open_lmdb()


def test_a_process_of_another_container_with_the_same_pid_is_named(lmdb_path, open_lmdb):
    open_lmdb().close()
    refused = pytest.raises(PoolUnavailable, match=rf"with this one's pid, {os.getpid()}, which")
    with stuck_process(partial(use_as, os.getpid()), lmdb_path), refused:
        open_lmdb()
    save(open_lmdb(), "a")


def test_a_writer_that_is_stopped_for_a_while_is_waited_for(lmdb_path, open_lmdb):
    pool = open_lmdb()
    writer = Writer(forking(), write_until_killed, lmdb_path, NAMES, 1)
    writer.await_turn()
    for _ in range(20):
        os.kill(writer.process.pid, signal.SIGSTOP)
        going_on = threading.Timer(0.01, os.kill, [writer.process.pid, signal.SIGCONT])
        going_on.start()
        within(save, pool, "a")
        going_on.join()
        assert within(wrong_contents, pool, range(10)) == []
    writer.kill()
