import gc
import subprocess
import sys
import threading
import time
import weakref
from contextlib import closing

import pytest
from contracts.host_memory import MappedMemory, ScarceMemory, SlowMemory
from contracts.pool_engine import (
    ENTRY_NBYTES,
    SMALL,
    PoolEngineContract,
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

from ems.common.exception import EmsException, InvalidArgument, PoolUnavailable, RequestTimeout
from ems.pool import ledger
from ems.pool.base import Miss, Place, Refused
from ems.pool.memory import MemoryPool

SEGMENT_NBYTES = 4 * ENTRY_NBYTES


@pytest.fixture
def memory():
    """The host, which has everything back at the end of each test."""
    memory = MappedMemory()
    yield memory
    eventually(lambda: memory.live_nbytes == 0)


def opened(memory, entries, *, segment_nbytes=SEGMENT_NBYTES, retry_seconds=0.02):
    return MemoryPool(
        memory,
        capacity_nbytes=entries * ENTRY_NBYTES,
        segment_nbytes=segment_nbytes,
        retry_seconds=retry_seconds,
    )


def eventually(true, seconds=10):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not come true"
        time.sleep(0.002)


def in_background(call):
    """Start `call` and return (its answers, its thread)."""
    answers = []

    def run():
        try:
            answers.append(call())
        except EmsException as error:
            answers.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return answers, thread


def pinning_threads():
    return [one for one in threading.enumerate() if one.name == "ems-pinning"]


class TestMemoryPool(PoolEngineContract):
    @pytest.fixture
    def pool(self, memory):
        with closing(opened(memory, 400, segment_nbytes=100 * ENTRY_NBYTES)) as pool:
            yield pool

    @pytest.fixture
    def small_pool(self, memory):
        with closing(opened(memory, SMALL)) as pool:
            yield pool

    def test_exactly_the_least_recently_used_goes(self, small_pool):
        save(small_pool, *range(SMALL))
        load(small_pool, 0)
        stored(small_pool, 1)
        save(small_pool, 2)
        save(small_pool, "new", "newer")
        assert stored(small_pool, 0, 1, 2, 3) == [True, False, True, False]
        assert list(small_pool.keys())[:2] == [key_of(4), key_of(5)]
        assert list(small_pool.keys())[-2:] == [key_of("new"), key_of("newer")]

    def test_there_is_no_space_while_everything_is_held(self, small_pool):
        save(small_pool, *range(SMALL))
        held = acquire(small_pool, *range(SMALL))
        assert small_pool.stats().held_nbytes == small_pool.stats().capacity_nbytes
        assert save(small_pool, "new") == [Refused.NO_SPACE]
        assert load(small_pool, "new") == [Miss.SAVE_FAILED]
        small_pool.release(held[:1])
        assert isinstance(save(small_pool, "new")[0], Place)
        assert load(small_pool, 0, "new") == [Miss.EVICTED, bytes_of("new")]
        small_pool.release(held[1:])

    def test_there_is_no_space_while_everything_is_reserved(self, small_pool):
        answers = reserve(small_pool, *range(SMALL + 2))
        assert answers[SMALL:] == [Refused.NO_SPACE] * 2
        small_pool.abort(answers[:SMALL])
        assert isinstance(save(small_pool, SMALL)[0], Place)

    def test_a_call_never_evicts_what_it_found_already_there(self, small_pool):
        save(small_pool, *range(SMALL))
        answers = save(small_pool, *(f"new {at}" for at in range(SMALL)), 0)
        assert answers[-2:] == [Refused.NO_SPACE, Refused.ALREADY_THERE]
        assert stored(small_pool, 0) == [True]

    def test_a_release_too_many_is_reported_and_changes_nothing(self, small_pool):
        save(small_pool, "a", "b")
        once, again = acquire(small_pool, "a"), acquire(small_pool, "b")
        small_pool.release(once)
        with pytest.raises(EmsException, match="release of 1 entries"):
            small_pool.release([*once, *again])
        assert small_pool.stats().held_nbytes == 0

    @pytest.mark.parametrize("operation", ["commit", "abort"])
    def test_a_place_given_back_twice_is_reported(self, small_pool, operation):
        places = reserve(small_pool, "a")
        getattr(small_pool, operation)(places)
        used = small_pool.stats().used_nbytes
        with pytest.raises(EmsException, match=f"{operation} of 1 entries"):
            getattr(small_pool, operation)(places)
        assert small_pool.stats().used_nbytes == used

    def test_what_is_asked_for_in_a_longer_version_is_evicted_last(self, small_pool):
        save(small_pool, *range(SMALL), tokens=3)
        assert load(small_pool, 0, tokens=5) == [Miss.TOO_SHORT]
        save(small_pool, *(f"new {at}" for at in range(SMALL - 1)))
        assert stored(small_pool, 0, 1) == [True, False]

    def test_a_removed_key_is_no_longer_called_a_failed_save(self, small_pool):
        small_pool.abort(reserve(small_pool, "a"))
        small_pool.remove([key_of("a")])
        assert load(small_pool, "a") == [Miss.ABSENT]

    def test_only_so_many_misses_are_remembered(self, small_pool, monkeypatch):
        monkeypatch.setattr(ledger, "_REMEMBERED", 2)
        small_pool.abort(reserve(small_pool, "a", "b", "c"))
        assert load(small_pool, "a", "b", "c") == [
            Miss.ABSENT,
            Miss.SAVE_FAILED,
            Miss.SAVE_FAILED,
        ]


class TestFragmentation:
    def test_room_for_a_large_entry_costs_about_its_size(self, memory):
        with closing(opened(memory, 64, segment_nbytes=64 * ENTRY_NBYTES)) as pool:
            save(pool, *range(64))
            for name in range(0, 64, 2):
                load(pool, name)  # so that the oldest are never neighbours
            assert isinstance(save(pool, "large", nbytes=8 * ENTRY_NBYTES)[0], Place)
            assert pool.stats().evictions <= 16
            assert load(pool, "large") == [bytes_of("large", 8 * ENTRY_NBYTES)]

    def test_what_is_held_is_gone_around(self, memory):
        with closing(opened(memory, 8, segment_nbytes=8 * ENTRY_NBYTES)) as pool:
            save(pool, *range(8))
            held = acquire(pool, 2)
            assert isinstance(save(pool, "large", nbytes=5 * ENTRY_NBYTES)[0], Place)
            assert read(held[0]) == bytes_of(2)
            pool.release(held)

    def test_what_is_reserved_is_gone_around(self, memory):
        with closing(opened(memory, 8, segment_nbytes=8 * ENTRY_NBYTES)) as pool:
            save(pool, *range(2))
            places = reserve(pool, "reserved")
            save(pool, *range(2, 7))
            assert isinstance(save(pool, "large", nbytes=5 * ENTRY_NBYTES)[0], Place)
            write(places[0], bytes_of("reserved"))
            pool.commit(places)
            assert load(pool, "reserved") == [bytes_of("reserved")]
            assert load(pool, "large") == [bytes_of("large", 5 * ENTRY_NBYTES)]

    def test_there_is_no_space_where_what_is_reserved_cuts_everything_up(self, memory):
        with closing(opened(memory, 8, segment_nbytes=8 * ENTRY_NBYTES)) as pool:
            save(pool, *range(3))
            places = reserve(pool, "reserved")
            save(pool, *range(3, 7))
            assert reserve(pool, "large", nbytes=5 * ENTRY_NBYTES) == [Refused.NO_SPACE]
            assert pool.stats().reserved_nbytes == ENTRY_NBYTES
            pool.abort(places)

    def test_there_is_no_space_where_what_is_held_cuts_everything_up(self, memory):
        with closing(opened(memory, 8, segment_nbytes=8 * ENTRY_NBYTES)) as pool:
            save(pool, *range(8))
            held = acquire(pool, 2, 5)
            assert reserve(pool, "large", nbytes=4 * ENTRY_NBYTES) == [Refused.NO_SPACE]
            pool.release(held)


class TestPinning:
    def test_only_the_pinning_thread_asks_the_host(self, memory):
        with closing(opened(memory, SMALL)) as pool:
            for name in range(2 * SMALL):
                save(pool, name)
        assert memory.threads == {"ems-pinning"}
        assert memory.sizes == [SEGMENT_NBYTES] * 4

    def test_one_segment_is_in_hand_before_it_is_needed(self, memory):
        with closing(opened(memory, SMALL)) as pool:
            eventually(lambda: pool.stats().backed_nbytes == SEGMENT_NBYTES)
            time.sleep(0.02)
            assert len(memory.sizes) == 1
            save(pool, "a")
            eventually(lambda: pool.stats().backed_nbytes == 2 * SEGMENT_NBYTES)
            time.sleep(0.02)
            assert len(memory.sizes) == 2

    @pytest.mark.parametrize(
        ("sizes", "fits"),
        [
            ([3] * 8, 4),  # one in each segment of 4
            ([2] * 9, 8),
            ([3, 1] * 5, 8),
            ([3, 3, 2, 2, 2, 3], 5),
            ([3, 17, 3, 3, 3], 5),  # what finds no room at all takes none
            ([6, 6, 3, 3], 3),  # larger ones get a segment of their size, beside the one in hand
            ([1] * 16, 16),
            ([], 0),
        ],
    )
    def test_what_fits_lies_in_segments(self, memory, sizes, fits):
        with closing(opened(memory, SMALL)) as pool:
            pool.check_health(deadline=soon())
            keys = [key_of(at) for at in range(len(sizes))]
            assert pool.fitting(keys, [size * ENTRY_NBYTES for size in sizes]) == fits
            for at in range(fits):
                save(pool, at, nbytes=sizes[at] * ENTRY_NBYTES)
            assert stored(pool, *range(fits)) == [size <= SMALL for size in sizes[:fits]]

    def test_what_the_host_does_not_give_is_no_room(self):
        memory = ScarceMemory(SEGMENT_NBYTES)
        with closing(opened(memory, SMALL, retry_seconds=60)) as pool:
            save(pool, "a")
            eventually(lambda: memory.refusals)
            assert pool.fitting([key_of(at) for at in range(9)], [ENTRY_NBYTES] * 9) == 4

    def test_a_new_segment_is_preferred_to_eviction(self, memory):
        with closing(opened(memory, SMALL)) as pool:
            for name in range(SMALL):
                save(pool, name)
            assert pool.stats().evictions == 0
            assert pool.stats().backed_nbytes == SMALL * ENTRY_NBYTES

    def test_the_last_segment_is_what_remains_of_the_capacity(self, memory):
        with closing(opened(memory, 6)) as pool:
            assert all(isinstance(one, Place) for one in save(pool, *range(6)))
        assert memory.sizes == [4 * ENTRY_NBYTES, 2 * ENTRY_NBYTES]

    def test_a_segment_is_never_larger_than_the_capacity(self, memory):
        with closing(opened(memory, 2)) as pool:
            save(pool, "a")
        assert memory.sizes == [2 * ENTRY_NBYTES]

    def test_an_entry_larger_than_a_segment_gets_a_segment_of_its_size(self, memory):
        with closing(opened(memory, SMALL)) as pool:
            assert isinstance(save(pool, "large", nbytes=6 * ENTRY_NBYTES)[0], Place)
            assert load(pool, "large") == [bytes_of("large", 6 * ENTRY_NBYTES)]
        assert 6 * ENTRY_NBYTES in memory.sizes

    def test_a_request_does_not_wait_for_a_segment_that_cannot_help(self):
        memory = SlowMemory()
        memory.steps.release()
        with closing(opened(memory, 8)) as pool:
            pool.check_health(deadline=soon())
            memory.asked.clear()
            places = reserve(pool, "a")
            assert memory.asked.wait(10)
            answers, thread = in_background(lambda: reserve(pool, "b", nbytes=5 * ENTRY_NBYTES))
            thread.join(3)
            assert answers == [[Refused.NO_SPACE]]
            pool.abort(places)
            memory.steps.release(9)

    def test_a_request_waits_for_memory_on_its_way(self):
        memory = SlowMemory()
        with closing(opened(memory, SMALL)) as pool:
            assert memory.asked.wait(10)
            answers, thread = in_background(lambda: save(pool, "a"))
            time.sleep(0.02)
            assert answers == []
            assert pool.stats().backed_nbytes == 0
            memory.steps.release(9)
            thread.join(10)
            assert load(pool, "a") == [bytes_of("a")]

    def test_a_request_that_waits_too_long_times_out_and_leaves_nothing(self):
        memory = SlowMemory()
        memory.steps.release()
        with closing(opened(memory, SMALL)) as pool:
            pool.check_health(deadline=soon())
            keys = [key_of(name) for name in range(6)]
            with pytest.raises(RequestTimeout, match="pinned"):
                pool.reserve(keys, [1] * 6, [ENTRY_NBYTES] * 6, deadline=time.monotonic() + 0.05)
            assert pool.stats().used_nbytes == pool.stats().reserved_nbytes == 0
            assert load(pool, 0) == [Miss.SAVE_FAILED]
            memory.steps.release(9)

    def test_others_are_served_while_a_request_waits(self):
        memory = SlowMemory()
        memory.steps.release()
        with closing(opened(memory, SMALL)) as pool:
            save(pool, "a")
            _, thread = in_background(lambda: save(pool, *range(6)))
            eventually(lambda: pool.stats().reserved_nbytes)
            assert load(pool, "a", 0) == [bytes_of("a"), Miss.ABSENT]
            memory.steps.release(9)
            thread.join(10)
            assert stored(pool, "a", *range(6)) == [True] * 7

    def test_memory_given_back_ends_the_wait_as_well(self):
        memory = SlowMemory()
        memory.steps.release()
        with closing(opened(memory, SMALL)) as pool:
            pool.check_health(deadline=soon())
            places = reserve(pool, *range(4))
            answers, thread = in_background(lambda: save(pool, "a"))
            time.sleep(0.02)
            assert answers == []
            pool.abort(places)
            thread.join(3)
            assert stored(pool, "a") == [True]
            memory.steps.release(9)

    def test_memory_of_a_replaced_version_ends_the_wait_as_well(self):
        memory = SlowMemory()
        memory.steps.release()
        with closing(opened(memory, SMALL)) as pool:
            save(pool, "a", tokens=1)
            places = reserve(pool, "a", "b", "c", tokens=2)
            _, thread = in_background(lambda: save(pool, "d"))
            time.sleep(0.02)
            pool.commit(places)
            thread.join(3)
            assert stored(pool, "d") == [True]
            memory.steps.release(9)

    def test_a_timeout_is_no_reason_to_wait_while_there_is_memory(self, memory):
        with closing(opened(memory, SMALL)) as pool:
            pool.check_health(deadline=soon())
            [place] = pool.reserve([key_of("a")], [1], [1], deadline=time.monotonic() - 1)
            pool.abort([place])

    def test_a_host_without_memory_makes_the_pool_unavailable(self):
        with closing(opened(ScarceMemory(0), SMALL)) as pool:
            with pytest.raises(PoolUnavailable, match=r"pinning 16.00 KiB .* has no 16384 bytes"):
                save(pool, "a")
            with pytest.raises(PoolUnavailable, match=r"has no memory: pinning 16.00 KiB"):
                pool.check_health(deadline=soon())

    def test_an_unforeseen_failure_of_the_host_does_not_hang_requests(self, memory):
        memory.allocate = lambda nbytes: 1 // 0
        with closing(opened(memory, SMALL)) as pool, pytest.raises(PoolUnavailable, match="zero"):
            save(pool, "a")

    def test_a_pool_works_with_what_the_host_gave(self):
        memory = ScarceMemory(SEGMENT_NBYTES)
        with closing(opened(memory, SMALL)) as pool:
            for name in range(SMALL):
                assert isinstance(save(pool, name)[0], Place)
            assert pool.stats().backed_nbytes == SEGMENT_NBYTES
            assert pool.stats().entries == 4
            pool.check_health(deadline=soon())

    def test_the_host_is_asked_again_but_not_all_the_time(self):
        memory = ScarceMemory(0)
        start = time.monotonic()
        with closing(opened(memory, SMALL, retry_seconds=0.02)) as pool:
            eventually(lambda: memory.refusals >= 4)
            assert time.monotonic() - start >= 3 * 0.02
            memory.limit_nbytes = 1 << 20
            eventually(lambda: pool.stats().backed_nbytes)
            assert isinstance(save(pool, "a")[0], Place)

    def test_a_host_that_gave_once_more_has_not_failed(self):
        memory = ScarceMemory(0)
        with closing(opened(memory, SMALL)) as pool:
            eventually(lambda: memory.refusals)
            memory.limit_nbytes = 1 << 20
            eventually(lambda: pool.stats().backed_nbytes)
            assert pool._pinning.failure is None

    def test_one_warning_is_logged_however_often_the_host_refuses(self, caplog):
        memory = ScarceMemory(0)
        with closing(opened(memory, SMALL, retry_seconds=0.005)):
            eventually(lambda: memory.refusals >= 3)
        assert [one.levelname for one in caplog.records] == ["WARNING"]

    def test_health_waits_for_the_first_memory_and_then_says_what_is_missing(self):
        memory = SlowMemory()
        with closing(opened(memory, SMALL)) as pool:
            with pytest.raises(PoolUnavailable, match="no memory yet"):
                pool.check_health(deadline=time.monotonic() + 0.02)
            memory.steps.release(9)
            pool.check_health(deadline=soon())


class TestClose:
    def test_a_pool_left_open_lets_the_interpreter_end(self):
        script = (
            "import time\n"
            "from ems.pool.memory import MemoryPool\n"
            "class Host:\n"
            "    def allocate(self, nbytes):\n"
            "        time.sleep(60)\n"
            "pool = MemoryPool(Host(), capacity_nbytes=1 << 20)\n"
            "print(pool.stats().entries)\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")

    def test_the_pinning_thread_ends_and_the_memory_goes_back(self, memory):
        before = set(pinning_threads())
        pool = opened(memory, SMALL)
        save(pool, *range(SMALL))
        pool.close()
        eventually(lambda: set(pinning_threads()) <= before)
        assert memory.live_nbytes == 0

    def test_close_does_not_wait_for_the_host(self):
        memory = SlowMemory()
        pool = opened(memory, SMALL)
        assert memory.asked.wait(10)
        pool.close()
        assert memory.sizes == []
        memory.steps.release()
        eventually(lambda: memory.sizes == [SEGMENT_NBYTES] and memory.live_nbytes == 0)

    def test_close_ends_a_request_that_waits(self):
        memory = SlowMemory()
        pool = opened(memory, SMALL)
        assert memory.asked.wait(10)
        answers, thread = in_background(lambda: save(pool, "a"))
        time.sleep(0.02)
        pool.close()
        thread.join(10)
        assert isinstance(answers[0], PoolUnavailable)
        memory.steps.release()

    def test_a_request_that_waits_gets_no_memory_of_a_pool_that_is_closed_meanwhile(self):
        memory = SlowMemory()
        memory.steps.release()
        pool = opened(memory, 8)
        places = reserve(pool, *range(4))
        answers, thread = in_background(lambda: reserve(pool, "a"))
        eventually(lambda: len(memory.sizes) == 1 and pool._pinning._changed._waiters)
        pool.abort(places)
        pool.close()
        thread.join(10)
        assert isinstance(answers[0], PoolUnavailable)
        memory.steps.release()

    def test_memory_stays_until_the_last_reader_has_released_it(self, memory):
        pool = opened(memory, SMALL)
        save(pool, "a", "b")
        a, b = acquire(pool, "a", "b")
        pool.close()
        pool.release([a])
        assert read(b) == bytes_of("b")
        pool.release([b])
        assert memory.live_nbytes == 0

    def test_memory_stays_until_the_last_place_is_given_back(self, memory):
        pool = opened(memory, SMALL)
        a, b = reserve(pool, "a", "b")
        pool.close()
        write(a, bytes_of("a"))
        pool.abort([b])
        assert memory.live_nbytes > 0
        with pytest.raises(PoolUnavailable):
            pool.commit([a])
        assert memory.live_nbytes == 0

    def test_nothing_keeps_a_closed_pool_alive(self, memory):
        pool = opened(memory, SMALL)
        save(pool, "a")
        pool.close()
        gone = weakref.ref(pool)
        del pool
        gc.collect()
        assert gone() is None


@pytest.mark.parametrize(("capacity", "segment"), [(0, 64), (63, 64), (64, 63), (-1, 64)])
def test_a_pool_too_small_for_anything_is_refused(capacity, segment):
    with pytest.raises(InvalidArgument, match="at least 64"):
        MemoryPool(MappedMemory(), capacity_nbytes=capacity, segment_nbytes=segment)
