"""What Mooncake does differently from a pool of our own, and what the engine makes of it."""

import ctypes
import re
import subprocess
import sys
import threading
import time

import pytest
from contracts.mooncake_cluster import cluster, eventually, needs_mooncake, pool_of
from contracts.pool_engine import (
    acquire,
    bytes_of,
    key_of,
    load,
    read,
    reserve,
    save,
    soon,
    stored,
    write,
)

from ems.common.exception import InvalidArgument, PoolUnavailable, RequestTimeout
from ems.pool.base import Held, Miss, NotStored, Place, Refused
from ems.pool.mooncake.header import object_nbytes

pytestmark = needs_mooncake

LEASE_SECONDS = 1.0


@pytest.fixture(scope="module")
def trial():
    with cluster(segment_nbytes=16 << 20, lease_seconds=LEASE_SECONDS) as trial:
        yield trial


@pytest.fixture(scope="module")
def with_metrics(trial):
    with pool_of(trial, staging="8MiB") as pool:
        yield pool


@pytest.fixture(scope="module")
def without_metrics(trial):
    with pool_of(trial, staging="8MiB", metrics=False) as pool:
        yield pool


@pytest.fixture(params=["with_metrics", "without_metrics"])
def pool(request):
    pool = request.getfixturevalue(request.param)
    pool.clear()
    return pool


@pytest.fixture
def other(with_metrics, without_metrics, pool):
    """Another process would be another client, as this one is."""
    return with_metrics if pool is without_metrics else without_metrics


def name_of(name):
    return f"ems:{key_of(name)}"


def library_of(pool):
    return pool._connection._link.library


def plant(pool, name, content):
    """Store bytes under the name of an entry, past the engine."""
    [start] = pool._staging().take([len(content)], deadline=soon())
    ctypes.memmove(start, content, len(content))
    assert library_of(pool).put([name_of(name)], [start], [len(content)]) == [0]
    pool._staging().give([start])


def content_of(pool, name):
    """The bytes that are stored under the name of an entry, header and all."""
    held = acquire(pool, name)
    size = object_nbytes(tokens=held[0].tokens, nbytes=held[0].nbytes)
    content = ctypes.string_at(held[0].address - 64, size)
    pool.release(held)
    return content


@pytest.mark.parametrize("where", [0, 8, 20, 63, 64, 2000, 4159])
def test_one_wrong_byte_is_damage_which_is_removed_and_counted(pool, where):
    save(pool, "a")
    content = bytearray(content_of(pool, "a"))
    pool.remove([key_of("a")])
    content[where] ^= 1
    plant(pool, "a", bytes(content))
    before = pool.damaged
    assert load(pool, "a") == [Miss.DAMAGED]
    assert pool.damaged == before + 1
    assert stored(pool, "a") == [False]
    save(pool, "a")
    assert load(pool, "a") == [bytes_of("a")]


@pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 5000])
def test_an_object_of_others_under_an_entry_s_name_is_damage(pool, nbytes):
    plant(pool, "a", bytes(nbytes))
    assert stored(pool, "a") == [False]
    assert load(pool, "a") == [Miss.DAMAGED]


def test_an_entry_under_the_name_of_another_is_damage(pool):
    save(pool, "a")
    plant(pool, "b", content_of(pool, "a"))
    assert load(pool, "a", "b") == [bytes_of("a"), Miss.DAMAGED]


def test_a_save_replaces_what_is_no_entry(pool):
    plant(pool, "a", bytes(4160))
    save(pool, "a")
    assert load(pool, "a") == [bytes_of("a")]


def test_another_process_sees_what_was_saved_and_how_many_tokens(pool, other):
    save(pool, "a", tokens=5)
    assert other.lookup([key_of("a")])[0].tokens == 5
    assert reserve(other, "a", tokens=5) == [Refused.ALREADY_THERE]
    assert load(other, "a", tokens=5) == [bytes_of("a")]
    assert load(other, "a", tokens=6) == [Miss.TOO_SHORT]


def test_what_another_process_stored_meanwhile_stays_and_counts_as_stored(pool, other):
    [mine] = reserve(pool, "a")
    write(mine, bytes_of("a"))
    save(other, "a")
    pool.commit([mine])
    assert load(pool, "a") == [bytes_of("a")]
    assert pool.damaged == 0 or stored(pool, "a") == [True]


def test_a_fuller_version_of_another_process_is_seen_at_once(pool, other):
    save(pool, "a", tokens=5, nbytes=1000)
    save(other, "a", tokens=9, nbytes=2000)
    assert pool.lookup([key_of("a")])[0].tokens == 9
    assert load(pool, "a", tokens=9) == [bytes_of("a", 2000)]


def replaced_while_read(writer, reader, *, versions=40):
    """Replace an entry again and again; return the last version, which must be what is read.

    The version tells its bytes; a miss between two versions is all right.
    """
    writer.clear()
    contents = [bytes([version]) * (1 << 20) for version in range(1, versions)]
    ended = threading.Event()
    seen = []

    def read_on():
        while not ended.is_set():
            [one] = acquire(reader, "a", tokens=1)
            if isinstance(one, Held):
                seen.append((one.tokens, set(read(one))))
                reader.release([one])

    thread = threading.Thread(target=read_on)
    thread.start()
    for version, content in enumerate(contents, start=1):
        places = reserve(writer, "a", tokens=version, nbytes=len(content))
        write(places[0], content)
        writer.commit(places)
    ended.set()
    thread.join(30)
    assert seen
    assert all(found == {version} for version, found in seen)
    assert load(reader, "a", tokens=len(contents)) == [contents[-1]]
    return len(contents)


def test_readers_never_see_mixed_bytes_while_an_entry_is_replaced(pool, other):
    replaced_while_read(pool, other)


def test_without_checksums_a_reader_sees_no_mixed_bytes_either(trial, with_metrics):
    with pool_of(trial, staging="8MiB", checksum="off") as unchecked:
        versions = replaced_while_read(with_metrics, unchecked)
        assert versions == replaced_while_read(unchecked, with_metrics)


def test_lookups_keep_saves_out_no_longer_than_the_lease(pool):
    names = range(30)
    for name in names:
        save(pool, name, nbytes=1 << 20)
    there = [name for name in names if stored(pool, name)[0]]
    for _ in range(1000):
        stored(pool, *there, "absent")
    start = time.monotonic()
    for name in ("x", "y"):
        assert isinstance(save(pool, name, nbytes=1 << 20)[0], Place)
    assert time.monotonic() - start < 3 * LEASE_SECONDS + 2
    assert load(pool, "y") == [bytes_of("y", 1 << 20)]


def test_what_finds_no_room_before_the_deadline_is_named_and_the_rest_is_stored(without_metrics):
    pool = without_metrics
    pool.clear()
    for name in range(10):
        save(pool, name, nbytes=1 << 20)
    stored(pool, *range(10))  # each lookup renews what keeps them
    keys = [key_of(name) for name in "abcdefgh"]
    deadline = time.monotonic() + 0.8 * LEASE_SECONDS
    places = pool.reserve(keys, [1] * 8, [900_000] * 8, deadline=deadline)
    with pytest.raises(NotStored, match="no room") as refusal:
        pool.commit(places)
    missing = [place.key for place in refusal.value.places]
    assert 0 < len(missing) < 8
    found = pool.lookup(keys, deadline=soon())
    assert [key for key, info in zip(keys, found, strict=True) if info is None] == missing
    time.sleep(LEASE_SECONDS)
    save(pool, "later", nbytes=1 << 20)
    assert load(pool, "later") == [bytes_of("later", 1 << 20)]


def test_memory_of_a_transfer_that_failed_comes_back_in_a_while(without_metrics, monkeypatch):
    from ems.pool.mooncake import fetch  # noqa: PLC0415 - it imports mooncake

    monkeypatch.setattr(fetch, "_SUSPECT_SECONDS", 0.3)
    staging = without_metrics._staging()
    before = staging.lent_nbytes
    fetch.withhold(staging, staging.take([64], deadline=soon()))
    assert staging.lent_nbytes == before + 64
    assert eventually(lambda: staging.lent_nbytes == before)


def test_with_metrics_lookups_lease_nothing(with_metrics):
    with_metrics.clear()
    save(with_metrics, "a")
    stored(with_metrics, "a")
    store = library_of(with_metrics)._store
    assert store.batch_remove([name_of("a")], False) == [0]


def test_a_pool_that_evicts_while_it_is_read_gives_whole_entries_or_misses(pool):
    nbytes = 1 << 20
    save(pool, "read", nbytes=nbytes)
    for name in range(30):
        save(pool, name, nbytes=nbytes)
        [found] = load(pool, "read")
        assert found in (Miss.ABSENT, bytes_of("read", nbytes))
        if found is Miss.ABSENT:
            save(pool, "read", nbytes=nbytes)


def test_requests_wait_for_staging_memory_with_their_deadline(pool):
    places = reserve(pool, *range(7), nbytes=1 << 20)
    start = time.monotonic()
    with pytest.raises(RequestTimeout, match="staging memory"):
        pool.reserve([key_of("a")], [1], [2 << 20], deadline=start + 0.2)
    assert time.monotonic() - start < 2
    threading.Timer(0.1, pool.abort, [places]).start()
    waited = pool.reserve([key_of("a")], [1], [2 << 20], deadline=soon())
    assert isinstance(waited[0], Place)
    pool.abort(waited)


def test_what_can_never_pass_through_staging_is_refused_in_words(pool):
    assert reserve(pool, "a", nbytes=9 << 20) == [Refused.NO_SPACE]
    for name in range(9):
        save(pool, name, nbytes=1 << 20)
    with pytest.raises(PoolUnavailable, match=r"staging"):
        acquire(pool, *range(9))
    assert pool.stats().held_nbytes == 0


def test_keys_without_metrics_say_which_parameter_is_missing(without_metrics):
    with pytest.raises(InvalidArgument, match="metrics=PORT"):
        without_metrics.keys()


def test_without_metrics_the_figures_are_those_of_this_process(without_metrics):
    places = reserve(without_metrics, "a")
    stats = without_metrics.stats()
    assert stats.capacity_nbytes == 8 << 20
    assert stats.used_nbytes == stats.reserved_nbytes == 4096
    without_metrics.abort(places)


def test_objects_of_others_are_neither_listed_nor_cleared(with_metrics):
    with_metrics.clear()
    save(with_metrics, "a")
    [start] = with_metrics._staging().take([64], deadline=soon())
    library = library_of(with_metrics)
    assert library.put(["other:ems:a", "xems:b"], [start] * 2, [64] * 2) == [0, 0]
    with_metrics._staging().give([start])
    assert list(with_metrics.keys()) == [key_of("a")]
    assert with_metrics.clear() == 1
    assert library.exist(["other:ems:a", "xems:b"]) == [True, True]
    library.remove(["other:ems:a", "xems:b"])


def test_a_check_of_its_health_leaves_nothing_behind(with_metrics):
    with_metrics.clear()
    for _ in range(3):
        with_metrics.check_health(deadline=soon())
    assert with_metrics.stats().entries == 0


def test_protocol_ascend_is_refused_where_mooncake_is_not_built_for_it(trial):
    with (
        pool_of(trial, protocol="ascend") as pool,
        pytest.raises(InvalidArgument, match="not built for NPUs"),
    ):
        pool.check_health(deadline=soon())


QUIET = """
import sys, time
from contracts.host_memory import MappedMemory
from contracts.pool_engine import load, save
from ems.pool.registry import open_pool
pool = open_pool(sys.argv[1], MappedMemory())
save(pool, "quiet")
for name in range(1000):
    load(pool, "quiet", f"quiet-{name}")
pool.close()
"""


@pytest.mark.parametrize("option", ["&metrics={}", ""])
def test_a_thousand_misses_write_a_handful_of_lines(trial, option):
    url = f"mooncake://127.0.0.1:{trial.port}?staging=1MiB{option.format(trial.metrics_port)}"
    child = subprocess.run(
        [sys.executable, "-c", QUIET, url],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    assert child.stdout == ""
    lines = child.stderr.splitlines()
    assert len(lines) <= 4, child.stderr
    assert not any(re.search("contract/", line) for line in lines)
