"""What every pool engine promises. Subclass, provide `pool` and `small_pool`; the names say it."""

import ctypes
import random
import sys
import threading
import time

import pytest

from ems.common.exception import PoolUnavailable
from ems.pool.base import Held, Miss, Place, PoolKey, Refused

ENTRY_NBYTES = 4096
TOKENS = 16
SMALL = 16
"""How many entries of `ENTRY_NBYTES` fit into `small_pool`."""


def key_of(name):
    return PoolKey(f"contract/{name}")


def bytes_of(name, nbytes=ENTRY_NBYTES):
    """Bytes that differ between names, and between places within one entry."""
    return random.Random(str(name)).randbytes(nbytes)  # noqa: S311 - a pattern, not a secret


def soon():
    return time.monotonic() + 10


def write(place, content):
    assert len(content) == place.nbytes
    ctypes.memmove(place.address, content, len(content))


def read(held):
    return ctypes.string_at(held.address, held.nbytes)


def reserve(pool, *names, tokens=TOKENS, nbytes=ENTRY_NBYTES):
    keys = [key_of(name) for name in names]
    return pool.reserve(keys, [tokens] * len(keys), [nbytes] * len(keys), deadline=soon())


def save(pool, *names, tokens=TOKENS, nbytes=ENTRY_NBYTES):
    """Save each name's bytes and return what `reserve` answered."""
    answers = reserve(pool, *names, tokens=tokens, nbytes=nbytes)
    places = []
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, Place):
            write(answer, bytes_of(name, nbytes))
            places.append(answer)
    pool.commit(places)
    return answers


def acquire(pool, *names, tokens=TOKENS):
    return pool.acquire([key_of(name) for name in names], [tokens] * len(names), deadline=soon())


def load(pool, *names, tokens=TOKENS):
    """Return the bytes of each name, or why there are none."""
    found = acquire(pool, *names, tokens=tokens)
    loaded = [read(one) if isinstance(one, Held) else one for one in found]
    pool.release([one for one in found if isinstance(one, Held)])
    return loaded


def stored(pool, *names):
    found = pool.lookup([key_of(name) for name in names], deadline=soon())
    return [info is not None for info in found]


class PoolEngineContract:
    """The promises of `ems.pool.base.PoolEngine`, as far as every engine can keep them."""

    knows_its_room = True
    """Whether it can say how many entries are stored side by side."""

    @pytest.fixture
    def pool(self):
        """An engine with room for a few hundred entries of ENTRY_NBYTES; closed afterwards."""
        raise NotImplementedError("the subclass provides the engine under test")

    @pytest.fixture
    def small_pool(self):
        """An engine with room for SMALL entries of ENTRY_NBYTES; closed afterwards."""
        raise NotImplementedError("the subclass provides the engine under test")

    def test_the_bytes_of_an_entry_come_back(self, pool):
        save(pool, "a")
        assert load(pool, "a") == [bytes_of("a")]

    @pytest.mark.parametrize("nbytes", [1, 63, 64, 65, 4097, 3 * ENTRY_NBYTES + 17])
    def test_an_entry_of_any_size_comes_back(self, pool, nbytes):
        save(pool, "before", "odd", "after", nbytes=nbytes)
        assert load(pool, "odd") == [bytes_of("odd", nbytes)]
        assert pool.lookup([key_of("odd")])[0].nbytes == nbytes

    def test_entries_of_different_sizes_in_one_call_come_back(self, pool):
        sizes = [ENTRY_NBYTES, 100, ENTRY_NBYTES, 1000]
        keys = [key_of(at) for at in range(4)]
        places = pool.reserve(keys, [1, 2, 3, 4], sizes, deadline=soon())
        for at, place in enumerate(places):
            write(place, bytes_of(at, sizes[at]))
        pool.commit(places)
        assert load(pool, *range(4), tokens=1) == [bytes_of(at, sizes[at]) for at in range(4)]

    def test_a_place_says_what_was_asked_for(self, pool):
        [place] = reserve(pool, "a", tokens=7, nbytes=1000)
        assert (place.key, place.tokens, place.nbytes) == (key_of("a"), 7, 1000)
        pool.abort([place])

    def test_addresses_are_multiples_of_64(self, pool):
        places = reserve(pool, "a", "b", "c", nbytes=65)
        pool.commit(places)
        held = acquire(pool, "a", "b", "c")
        assert [one.address % 64 for one in (*places, *held)] == [0] * 6
        pool.release(held)

    def test_answers_keep_the_order_of_the_keys(self, pool):
        save(pool, "a", "c")
        expected = [Miss.ABSENT, bytes_of("c"), Miss.ABSENT, bytes_of("a")]
        assert load(pool, "d", "c", "b", "a") == expected
        assert stored(pool, "d", "c", "b", "a") == [False, True, False, True]
        answers = save(pool, "d", "c", "b", "a")
        assert [one is Refused.ALREADY_THERE for one in answers] == [False, True, False, True]

    def test_calls_without_keys_are_harmless(self, pool):
        assert pool.lookup([]) == []
        assert pool.reserve([], [], [], deadline=soon()) == []
        assert pool.acquire([], [], deadline=soon()) == []
        assert pool.remove([]) == 0
        pool.commit([])
        pool.abort([])
        pool.release([])

    def test_a_miss_leaves_everything_untouched(self, pool):
        save(pool, "a")
        before = pool.stats()
        assert load(pool, "b") == [Miss.ABSENT]
        assert stored(pool, "b") == [False]
        assert pool.stats() == before

    def test_a_lookup_tells_tokens_and_size_and_holds_nothing(self, pool):
        save(pool, "a", tokens=5, nbytes=1000)
        before = pool.stats()
        [info] = pool.lookup([key_of("a")])
        assert (info.tokens, info.nbytes) == (5, 1000)
        assert pool.stats() == before

    def test_nothing_reserved_is_visible_before_commit(self, pool):
        [place] = reserve(pool, "a")
        assert stored(pool, "a") == [False]
        assert isinstance(load(pool, "a")[0], Miss)
        assert list(pool.keys()) == []
        write(place, bytes_of("a"))
        pool.commit([place])
        assert load(pool, "a") == [bytes_of("a")]

    def test_an_abort_is_unseen_and_says_save_failed(self, pool):
        pool.abort(reserve(pool, "a"))
        assert stored(pool, "a") == [False]
        assert load(pool, "a") == [Miss.SAVE_FAILED]

    def test_a_save_after_an_abort_works(self, pool):
        pool.abort(reserve(pool, "a"))
        save(pool, "a")
        assert load(pool, "a") == [bytes_of("a")]

    def test_the_space_of_aborted_places_returns(self, small_pool):
        for turn in range(5):
            places = reserve(small_pool, *range(turn * SMALL, turn * SMALL + SMALL // 2))
            assert all(isinstance(place, Place) for place in places)
            small_pool.abort(places)
        assert small_pool.stats().used_nbytes == 0

    def test_part_of_a_reservation_can_be_aborted(self, pool):
        a, b, c = reserve(pool, "a", "b", "c")
        write(a, bytes_of("a"))
        write(c, bytes_of("c"))
        pool.abort([b])
        pool.commit([a, c])
        assert load(pool, "a", "b", "c") == [bytes_of("a"), Miss.SAVE_FAILED, bytes_of("c")]

    @pytest.mark.parametrize("tokens", [TOKENS, TOKENS - 1])
    def test_as_many_tokens_or_fewer_are_already_there(self, pool, tokens):
        save(pool, "a")
        assert reserve(pool, "a", tokens=tokens) == [Refused.ALREADY_THERE]
        assert load(pool, "a") == [bytes_of("a")]

    def test_more_tokens_than_stored_are_too_short_to_load(self, pool):
        save(pool, "a", tokens=5)
        assert load(pool, "a", tokens=6) == [Miss.TOO_SHORT]
        assert load(pool, "a", tokens=5) == [bytes_of("a")]

    def test_fewer_tokens_than_stored_are_a_hit_that_tells_the_stored_count(self, pool):
        save(pool, "a", tokens=5)
        [held] = acquire(pool, "a", tokens=2)
        assert held.tokens == 5
        pool.release([held])

    def test_a_fuller_version_replaces_the_stored_one_at_commit(self, pool):
        save(pool, "a", tokens=5, nbytes=1000)
        [place] = reserve(pool, "a", tokens=9, nbytes=2000)
        write(place, bytes_of("fuller", 2000))
        assert load(pool, "a", tokens=5) == [bytes_of("a", 1000)]
        pool.commit([place])
        assert load(pool, "a", tokens=9) == [bytes_of("fuller", 2000)]
        assert pool.stats().entries == 1

    def test_readers_of_a_replaced_entry_keep_their_bytes(self, pool):
        save(pool, "a", tokens=5, nbytes=1000)
        held = acquire(pool, "a", tokens=5)
        [place] = reserve(pool, "a", tokens=9, nbytes=1000)
        write(place, bytes_of("fuller", 1000))
        pool.commit([place])
        save(pool, *range(40), nbytes=1000)
        assert read(held[0]) == bytes_of("a", 1000)
        pool.release(held)
        pool.clear()
        assert pool.stats().used_nbytes == 0

    def test_an_aborted_fuller_version_leaves_the_stored_one(self, pool):
        save(pool, "a", tokens=5)
        pool.abort(reserve(pool, "a", tokens=9))
        assert load(pool, "a", tokens=5) == [bytes_of("a")]
        assert load(pool, "a", tokens=9) == [Miss.TOO_SHORT]

    def test_of_two_saves_of_one_key_at_once_both_succeed(self, pool):
        [first] = reserve(pool, "a")
        [second] = reserve(pool, "a")
        for place in (first, second):
            write(place, bytes_of("a"))
        pool.commit([first])
        pool.commit([second])
        assert load(pool, "a") == [bytes_of("a")]
        pool.clear()
        assert pool.stats().used_nbytes == 0

    def test_a_shorter_save_that_ends_later_does_not_replace(self, pool):
        [short] = reserve(pool, "a", tokens=5, nbytes=1000)
        save(pool, "a")
        write(short, bytes_of("short", 1000))
        pool.commit([short])
        assert load(pool, "a") == [bytes_of("a")]

    def test_a_full_pool_makes_room_for_what_is_new(self, small_pool):
        for name in range(10 * SMALL):
            [answer] = save(small_pool, name)
            assert isinstance(answer, Place)
            assert load(small_pool, name) == [bytes_of(name)]
        assert small_pool.stats().used_nbytes <= small_pool.stats().capacity_nbytes

    def test_what_fits_can_be_stored_side_by_side(self, small_pool):
        names = range(2 * SMALL)
        sizes = [ENTRY_NBYTES] * len(names)
        fitting = small_pool.fitting([key_of(name) for name in names], sizes)
        assert fitting == (SMALL if self.knows_its_room else len(names))
        for name in names[:SMALL]:
            save(small_pool, name)
        assert all(stored(small_pool, *names[:SMALL]))

    def test_what_was_evicted_says_so(self, small_pool):
        for name in range(4 * SMALL):
            save(small_pool, name)
        assert load(small_pool, 0) == [Miss.EVICTED]
        assert small_pool.stats().evictions > 0

    def test_the_least_recently_used_goes_first(self, small_pool):
        save(small_pool, *range(SMALL))
        names = [name for name in range(SMALL) if stored(small_pool, name)[0]]
        load(small_pool, names[0])
        stored(small_pool, names[1])
        evicted = small_pool.stats().evictions
        new = iter(range(SMALL, 4 * SMALL))
        while small_pool.stats().evictions == evicted:
            save(small_pool, next(new))
        assert stored(small_pool, names[0], names[1]) == [True, False]

    def test_held_entries_survive_eviction_pressure(self, small_pool):
        save(small_pool, "held")
        held = acquire(small_pool, "held")
        for name in range(4 * SMALL):
            save(small_pool, name)
            assert read(held[0]) == bytes_of("held")
        small_pool.release(held)

    def test_an_entry_larger_than_the_pool_is_refused_and_nothing_goes(self, small_pool):
        save(small_pool, "a")
        answers = reserve(small_pool, "b", nbytes=4 * SMALL * ENTRY_NBYTES)
        assert answers == [Refused.NO_SPACE]
        assert load(small_pool, "a", "b") == [bytes_of("a"), Miss.SAVE_FAILED]

    def test_lookups_never_keep_later_saves_out(self, small_pool):
        for name in range(1000):
            save(small_pool, name)
            stored(small_pool, name, "absent")
        save(small_pool, "last")
        assert load(small_pool, "last") == [bytes_of("last")]
        assert small_pool.stats().held_nbytes == 0

    def test_an_entry_can_be_held_twice(self, small_pool):
        save(small_pool, "a")
        first, second = acquire(small_pool, "a"), acquire(small_pool, "a")
        small_pool.release(first)
        save(small_pool, *range(SMALL // 2))
        assert read(second[0]) == bytes_of("a")
        small_pool.release(second)
        assert small_pool.stats().held_nbytes == 0

    def test_removed_entries_are_absent(self, pool):
        save(pool, "a", "b", "c")
        assert pool.remove([key_of("a"), key_of("x"), key_of("c")]) == 2
        assert load(pool, "a", "b", "c") == [Miss.ABSENT, bytes_of("b"), Miss.ABSENT]

    def test_a_removed_entry_stays_readable_for_who_holds_it(self, pool):
        save(pool, "a")
        held = acquire(pool, "a")
        assert pool.remove([key_of("a")]) == 1
        assert stored(pool, "a") == [False]
        save(pool, *range(20))
        assert read(held[0]) == bytes_of("a")
        pool.release(held)
        save(pool, "a")
        assert load(pool, "a") == [bytes_of("a")]

    def test_a_removed_place_can_still_be_committed(self, pool):
        [place] = reserve(pool, "a")
        assert pool.remove([key_of("a")]) == 0
        write(place, bytes_of("a"))
        pool.commit([place])
        assert load(pool, "a") == [bytes_of("a")]

    def test_clear_removes_everything(self, pool):
        save(pool, "a", "b", "c")
        assert pool.clear() == 3
        assert stored(pool, "a", "b", "c") == [False] * 3
        assert pool.stats().entries == 0
        assert pool.clear() == 0

    def test_keys_are_what_is_stored(self, pool):
        save(pool, "a", "b", "c")
        pool.remove([key_of("b")])
        assert sorted(pool.keys()) == [key_of("a"), key_of("c")]

    def test_keys_may_be_listed_while_entries_come_and_go(self, pool):
        save(pool, "a", "b")
        listed = pool.keys()
        pool.clear()
        save(pool, "c")
        assert set(listed) <= {key_of("a"), key_of("b"), key_of("c")}

    def test_the_figures_return_to_zero(self, pool):
        places = reserve(pool, *range(20))
        assert pool.stats().reserved_nbytes >= 20 * ENTRY_NBYTES
        pool.abort(places[:10])
        pool.commit(places[10:])
        assert pool.stats().entries == 10
        pool.release(acquire(pool, *range(10, 20)))
        assert pool.stats().held_nbytes == pool.stats().reserved_nbytes == 0
        pool.clear()
        assert pool.stats().used_nbytes == 0

    def test_the_parts_stay_within_the_whole(self, small_pool):
        for name in range(3 * SMALL):
            save(small_pool, name)
            stats = small_pool.stats()
            assert 0 <= stats.used_nbytes <= stats.backed_nbytes <= stats.capacity_nbytes
            assert stats.largest_free_nbytes <= stats.backed_nbytes - stats.used_nbytes
            assert stats.entries == len(list(small_pool.keys()))

    @pytest.mark.parametrize("write_local", [False, True])
    @pytest.mark.parametrize("local_only", [False, True])
    def test_every_view_finds_what_it_saved(self, pool, write_local, local_only):
        view = pool.view(write_local=write_local or local_only, local_only=local_only)
        save(view, "a")
        assert load(view, "a") == [bytes_of("a")]

    def test_a_pool_that_answers_is_healthy(self, pool):
        pool.check_health(deadline=soon())

    def test_what_is_out_when_the_pool_closes_may_still_be_given_back(self, pool):
        save(pool, "a")
        held, places = acquire(pool, "a"), reserve(pool, "b")
        pool.close()
        pool.release(held)
        pool.abort(places)

    def test_close_may_be_repeated(self, pool):
        save(pool, "a")
        pool.close()
        pool.close()

    @pytest.mark.parametrize(
        "call",
        [
            lambda pool: pool.lookup([key_of("a")]),
            lambda pool: pool.reserve([key_of("a")], [1], [1], deadline=soon()),
            lambda pool: pool.commit([]),
            lambda pool: pool.acquire([key_of("a")], [1], deadline=soon()),
            lambda pool: pool.remove([key_of("a")]),
            lambda pool: pool.clear(),
            lambda pool: pool.keys(),
            lambda pool: pool.stats(),
            lambda pool: pool.check_health(deadline=soon()),
        ],
        ids=[
            "lookup",
            "reserve",
            "commit",
            "acquire",
            "remove",
            "clear",
            "keys",
            "stats",
            "check_health",
        ],
    )
    def test_a_closed_pool_says_that_it_is_unavailable(self, pool, call):
        save(pool, "a")
        pool.close()
        with pytest.raises(PoolUnavailable):
            call(pool)

    @pytest.fixture
    def restless_threads(self):
        """Threads change often enough to meet one another inside a call."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        yield
        sys.setswitchinterval(before)

    @pytest.mark.usefixtures("restless_threads")
    def test_threads_that_save_and_load_at_once_see_whole_entries_only(self, small_pool):
        faults = []
        threads = [
            threading.Thread(target=_hammer, args=(small_pool, seed, faults)) for seed in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=60)
        assert not any(thread.is_alive() for thread in threads)
        assert faults == []
        stats = small_pool.stats()
        assert stats.held_nbytes == stats.reserved_nbytes == 0
        small_pool.clear()
        assert small_pool.stats().used_nbytes == 0

    @pytest.mark.usefixtures("restless_threads")
    def test_one_key_saved_by_many_threads_is_one_entry(self, pool):
        barrier = threading.Barrier(4)
        answers = []

        def save_with_others():
            barrier.wait()
            answers.extend(save(pool, *range(30)))

        threads = [threading.Thread(target=save_with_others) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert Refused.NO_SPACE not in answers
        assert len(answers) == 4 * 30
        assert pool.stats().entries == 30
        assert load(pool, *range(30)) == [bytes_of(name) for name in range(30)]


def _hammer(pool, seed, faults):
    """Save and load names that others save and load, and note what is not as promised."""
    chance = random.Random(seed)  # noqa: S311 - a pattern, not a secret
    contents = {name: bytes_of(name) for name in range(3 * SMALL)}
    try:
        for _ in range(1000):
            names = chance.sample(range(3 * SMALL), 3)
            keys = [key_of(name) for name in names]
            if chance.random() < 0.5:
                answers = reserve(pool, *names)
                places = [one for one in answers if isinstance(one, Place)]
                for name, place in zip(names, answers, strict=True):
                    if isinstance(place, Place):
                        write(place, contents[name])
                (pool.commit if chance.random() < 0.9 else pool.abort)(places)
            else:
                held = acquire(pool, *names)
                faults.extend(
                    name
                    for name, one in zip(names, held, strict=True)
                    if isinstance(one, Held) and read(one) != contents[name]
                )
                pool.release([one for one in held if isinstance(one, Held)])
            if chance.random() < 0.05:
                pool.remove(keys)
    except Exception as error:  # noqa: BLE001 - the test shows whatever it is
        faults.append(error)
