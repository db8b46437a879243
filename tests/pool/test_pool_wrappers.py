"""Tiered, traced and faulty pools keep the promises of what they stand in front of."""

from contextlib import closing

import pytest
from contracts.host_memory import MappedMemory, SlowMemory
from contracts.pool_engine import (
    ENTRY_NBYTES,
    SMALL,
    TOKENS,
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

from ems.common.exception import InvalidArgument, PoolUnavailable
from ems.pool.base import Held, Miss, Place
from ems.pool.faulty import Fault, FaultyPool
from ems.pool.memory import MemoryPool
from ems.pool.registry import open_pool
from ems.pool.tiered import TieredPool
from ems.pool.traced import TracedPool


def memory_pool(entries):
    return MemoryPool(
        MappedMemory(),
        capacity_nbytes=entries * ENTRY_NBYTES,
        segment_nbytes=min(entries, 100) * ENTRY_NBYTES,
    )


@pytest.fixture
def tiers():
    with closing(TieredPool(memory_pool(SMALL), memory_pool(400))) as pool:
        yield pool


class TestTieredPool(PoolEngineContract):
    @pytest.fixture
    def pool(self):
        with closing(TieredPool(memory_pool(SMALL), memory_pool(400))) as pool:
            yield pool

    @pytest.fixture
    def small_pool(self):
        with closing(TieredPool(memory_pool(SMALL // 2), memory_pool(SMALL))) as pool:
            yield pool

    def test_the_least_recently_used_goes_first(self, small_pool):
        """Each tier by the use that it sees: what is used stays in one of them."""
        save(small_pool, *range(SMALL))
        for new in range(SMALL, 4 * SMALL):
            assert load(small_pool, 0) == [bytes_of(0)]
            save(small_pool, new)
        assert stored(small_pool, 0, 1) == [True, False]


class TestTracedPool(PoolEngineContract):
    @pytest.fixture
    def pool(self):
        with closing(TracedPool(memory_pool(400), lambda call: None)) as pool:
            yield pool

    @pytest.fixture
    def small_pool(self):
        with closing(TracedPool(memory_pool(SMALL), lambda call: None)) as pool:
            yield pool


class TestFaultyPoolWithoutFaults(PoolEngineContract):
    @pytest.fixture
    def pool(self):
        with closing(FaultyPool(memory_pool(400))) as pool:
            yield pool

    @pytest.fixture
    def small_pool(self):
        with closing(FaultyPool(memory_pool(SMALL))) as pool:
            yield pool


def test_what_is_saved_is_in_both_tiers(tiers):
    save(tiers, "a")
    assert load(tiers.local, "a") == load(tiers.inner, "a") == [bytes_of("a")]


def test_write_rcache_off_saves_into_the_shared_tier_alone(tiers):
    save(tiers.view(write_local=False, local_only=False), "a")
    assert (stored(tiers.local, "a"), stored(tiers.inner, "a")) == ([False], [True])
    assert load(tiers.view(write_local=False, local_only=False), "a") == [bytes_of("a")]


def test_read_local_only_finds_nothing_that_is_only_shared(tiers):
    save(tiers.inner, "a")
    near = tiers.view(write_local=True, local_only=True)
    assert load(near, "a") == [Miss.ABSENT]
    assert stored(near, "a") == [False]
    save(near, "b")
    assert load(near, "b") == [bytes_of("b")]


def test_a_load_from_the_shared_tier_leaves_a_copy_in_the_local_one(tiers):
    save(tiers.inner, "a")
    assert load(tiers, "a") == [bytes_of("a")]
    assert load(tiers.local, "a") == [bytes_of("a")]


def test_what_is_loaded_twice_at_once_leaves_one_local_copy_and_nothing_reserved(tiers):
    save(tiers.view(write_local=False, local_only=False), "a")
    assert load(tiers, "a", "a") == [bytes_of("a")] * 2
    assert stored(tiers.local, "a") == [True]
    assert tiers.stats().reserved_nbytes == 0


def test_a_local_hit_does_not_ask_the_shared_tier(tiers):
    save(tiers, "a")
    tiers.inner = FaultyPool(tiers.inner, [Fault("acquire", nth=0, failure=PoolUnavailable("x"))])
    assert load(tiers, "a") == [bytes_of("a")]
    with pytest.raises(PoolUnavailable):
        load(tiers, "a", "b")
    assert tiers.stats().held_nbytes == 0


def test_a_shorter_local_copy_does_not_hide_the_fuller_shared_one(tiers):
    save(tiers, "a", tokens=1, nbytes=100)
    save(tiers.inner, "a")
    assert load(tiers, "a") == [bytes_of("a")]
    assert load(tiers.local, "a") == [bytes_of("a")]


def test_what_the_local_tier_evicted_is_still_served(tiers):
    names = range(4 * SMALL)
    for name in names:
        save(tiers, name)
    assert stored(tiers.local, 0) == [False]
    assert load(tiers, *names) == [bytes_of(name) for name in names]


def test_a_full_local_tier_is_no_failure(tiers):
    held = tiers.local.reserve(
        [key_of(f"busy {at}") for at in range(SMALL)],
        [TOKENS] * SMALL,
        [ENTRY_NBYTES] * SMALL,
        deadline=soon(),
    )
    save(tiers, "a")
    assert load(tiers, "a") == [bytes_of("a")]
    tiers.local.abort(held)


def test_a_local_tier_whose_host_hangs_costs_no_time():
    host = SlowMemory()
    with closing(memory_pool(400)) as shared:
        local = MemoryPool(host, capacity_nbytes=SMALL * ENTRY_NBYTES)
        pool = TieredPool(local, shared)
        save(pool, "a")
        assert load(pool, "a") == [bytes_of("a")]
        host.steps.release(100)
        local.close()


def test_a_save_that_the_shared_tier_loses_is_in_neither():
    shared = FaultyPool(memory_pool(400), [Fault("commit", failure=PoolUnavailable("gone"))])
    with closing(TieredPool(memory_pool(SMALL), shared)) as pool:
        [place] = reserve(pool, "a")
        with pytest.raises(PoolUnavailable, match="gone"):
            pool.commit([place])
        assert stored(pool.local, "a") == [False]
        assert pool.local.stats().reserved_nbytes == 0


@pytest.mark.parametrize("removal", [TieredPool.clear, lambda pool: pool.remove([key_of("a")])])
def test_what_is_removed_while_it_is_read_does_not_come_back_into_the_local_tier(tiers, removal):
    save(tiers.inner, "a", "b")
    held = acquire(tiers, "a")
    assert removal(tiers) in {1, 2}
    tiers.release(held)
    assert stored(tiers, "a") == [False]
    save(tiers.inner, "a")
    assert load(tiers, "a") == load(tiers.local, "a") == [bytes_of("a")]


@pytest.mark.parametrize("operation", ["commit", "acquire"])
def test_a_fault_of_the_shared_tier_leaves_nothing_out_of_the_local_one(operation):
    shared = FaultyPool(memory_pool(400), [Fault(operation, failure=RuntimeError("boom"))])
    with closing(TieredPool(memory_pool(SMALL), shared)) as pool:
        save(pool.local, "near")
        places = reserve(pool, "a")
        with pytest.raises(RuntimeError):
            pool.commit(places) if operation == "commit" else acquire(pool, "near", "far")
        local = pool.local.stats()
        assert (local.reserved_nbytes, local.held_nbytes) == (0, 0)


def test_capacity_is_told_by_tier(tiers):
    local, shared = tiers.tiers()
    assert (local.capacity_nbytes, shared.capacity_nbytes) == (
        SMALL * ENTRY_NBYTES,
        400 * ENTRY_NBYTES,
    )


def test_a_url_puts_a_local_tier_in_front():
    with closing(open_pool("tiered+memory://?capacity=1MiB&local=64KiB", MappedMemory())) as pool:
        assert [tier.capacity_nbytes for tier in pool.tiers()] == [64 << 10, 1 << 20]


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("tiered+memory://?capacity=1MiB", "local"),
        ("tiered+memory://?local=1MiB&local=2MiB", "local"),
        ("tiered+memory://?local=much", "much"),
        ("tiered+nothing://?local=1MiB", "'nothing' is unknown"),
        ("tiered+tiered+memory://?local=1MiB", "unknown"),
    ],
)
def test_a_wrong_tiered_url_is_refused(url, says):
    with pytest.raises(InvalidArgument, match=says):
        open_pool(url, MappedMemory())


def test_a_trace_tells_every_call_and_how_it_failed():
    calls = []
    inner = FaultyPool(memory_pool(8), [Fault("acquire", nth=2, failure=PoolUnavailable("x"))])
    with closing(TracedPool(inner, calls.append)) as pool:
        save(pool, "a", "b")
        load(pool, "a", "b", "c")
        with pytest.raises(PoolUnavailable):
            load(pool, "a")
    told = [(call.operation, call.keys, call.failure) for call in calls]
    assert told == [
        ("reserve", 2, None),
        ("commit", 2, None),
        ("acquire", 3, None),
        ("release", 2, None),
        ("acquire", 1, "PoolUnavailable"),
    ]


def test_the_nth_call_fails_and_no_other():
    with closing(
        FaultyPool(memory_pool(8), [Fault("reserve", nth=2, failure=OSError("x"))])
    ) as pool:
        save(pool, "a")
        with pytest.raises(OSError, match="x"):
            save(pool, "b")
        save(pool, "c")
        assert stored(pool, "a", "b", "c") == [True, False, True]


def test_a_short_write_leaves_garbage_behind_its_part():
    with closing(FaultyPool(memory_pool(8), [Fault("commit", short_fraction=0.5)])) as pool:
        save(pool, "a")
        [content] = load(pool, "a")
    half = ENTRY_NBYTES // 2
    assert content == bytes_of("a")[:half] + b"\xa5" * half


def test_an_eviction_can_be_forced_between_a_lookup_and_a_load():
    with closing(FaultyPool(memory_pool(8))) as pool:
        save(pool, "a", "b")
        pool.faults = [Fault("acquire", evict=(key_of("b"),))]
        assert stored(pool, "a", "b") == [True, True]
        found = acquire(pool, "a", "b")
        assert isinstance(found[0], Held)
        assert found[1] in {Miss.ABSENT, Miss.EVICTED}
        pool.release(found[:1])


def test_a_place_of_a_view_is_a_place_of_its_pool(tiers):
    [place] = reserve(tiers.view(write_local=True, local_only=False), "a")
    assert isinstance(place, Place)
    tiers.abort([place])
    assert tiers.stats().reserved_nbytes == 0
