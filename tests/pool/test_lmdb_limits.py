"""At the limit for long: LMDB never runs out of pages, whatever sizes come and go."""

import itertools
import random

import numpy as np
import pytest
from contracts.pool_engine import acquire, key_of, soon

from ems.pool.base import Held, Place, Refused
from ems.pool.lmdb.record import LONG_PIECE_PAGES, SHORT_PIECE_PAGES, charge_of

MIB = 1 << 20
CAPACITY = 64 * MIB
SIZES = {
    "one size": lambda chance: MIB,
    "three sizes": lambda chance: chance.choice([256 << 10, MIB, 4 * MIB]),
    "any size": lambda chance: int(4096 * 2 ** (chance.random() * 11)),
    "small among large": lambda chance: chance.choice([4096] * 20 + [6 * MIB]),
}


@pytest.fixture
def pool(open_lmdb):
    return open_lmdb(capacity_nbytes=CAPACITY, staging_nbytes=64 * MIB)


def put(pool, names, sizes):
    keys = [key_of(name) for name in names]
    places = pool.reserve(keys, [1] * len(keys), sizes, deadline=soon())
    assert all(isinstance(place, Place) for place in places)
    for name, place in zip(names, places, strict=True):
        mark(pool, place, name)
    pool.commit(places)


def mark(pool, place, name):
    """Make the first bytes of each page tell the name; the rest is whatever was there."""
    content = pool._staging.bytes_at(place.address, place.nbytes)
    words = content[: place.nbytes // 4096 * 4096].reshape(-1, 4096)[:, :8]
    words[...] = np.frombuffer(int(name).to_bytes(8, "little"), np.uint8)


def tells(pool, held, name):
    content = pool._staging.bytes_at(held.address, held.nbytes)
    words = content[: held.nbytes // 4096 * 4096].reshape(-1, 4096)[:, :8]
    return bool((words == np.frombuffer(int(name).to_bytes(8, "little"), np.uint8)).all())


@pytest.mark.parametrize("mixture", SIZES)
def test_a_full_pool_takes_what_comes_without_running_out_of_pages(pool, mixture):
    chance = random.Random(mixture)  # noqa: S311 - a pattern, not a secret
    written = name = 0
    while written < 40 * CAPACITY:
        sizes = [SIZES[mixture](chance) for _ in range(2)]
        put(pool, range(name, name + 2), sizes)
        name += 2
        written += sum(sizes)
        old = chance.randrange(max(0, name - 40), name)
        [held] = acquire(pool, old, tokens=1)
        if isinstance(held, Held):
            assert tells(pool, held, old)
            pool.release([held])
    assert [shard.map_full for shard in pool._home._opened.shards._shards] == [0]
    assert pool.stats().entries > 0


def test_where_no_pages_in_a_row_are_left_for_a_long_piece_entries_are_cut_into_short_ones(pool):
    chance = random.Random(1)  # noqa: S311 - a pattern, not a secret
    [shard] = pool._home._opened.shards._shards
    for name in itertools.count():
        put(pool, [name], [SIZES["any size"](chance)])
        [header] = shard.headers([key_of(name)])
        if header.piece_pages == SHORT_PIECE_PAGES:
            break
    [held] = acquire(pool, name, tokens=1)
    assert tells(pool, held, name)
    pool.release([held])
    assert shard.map_full == 0


def test_where_pages_are_too_scattered_even_for_short_pieces_more_is_evicted(pool, monkeypatch):
    monkeypatch.setattr("ems.pool.lmdb.transactions.SHORT_PIECE_PAGES", LONG_PIECE_PAGES)
    chance = random.Random(1)  # noqa: S311 - a pattern, not a secret
    [shard] = pool._home._opened.shards._shards
    name = 0
    while not shard.map_full:
        put(pool, [name], [SIZES["any size"](chance)])
        name += 1
    put(pool, [name], [MIB])


@pytest.mark.parametrize("nbytes", [CAPACITY // 4, CAPACITY // 5 + 1])
def test_entries_of_a_good_part_of_the_pool_replace_one_another(open_lmdb, nbytes):
    pool = open_lmdb(capacity_nbytes=CAPACITY, staging_nbytes=80 * MIB)
    for name in range(12):
        put(pool, [name], [nbytes])
        [held] = acquire(pool, name, tokens=1)
        assert tells(pool, held, name)
        pool.release([held])
    assert [shard.map_full for shard in pool._home._opened.shards._shards] == [0]


def test_an_entry_as_large_as_the_pool_is_kept_and_a_larger_one_is_not(open_lmdb):
    pool = open_lmdb(capacity_nbytes=8 * MIB, staging_nbytes=64 * MIB)
    put(pool, range(100), [4096] * 100)
    put(pool, [1000], [8 * MIB])
    assert list(pool.keys()) == [key_of(1000)]
    assert charge_of(8 * MIB) == 8 * MIB
    answers = pool.reserve([key_of(1001)], [1], [8 * MIB + 1], deadline=soon())
    assert answers == [Refused.NO_SPACE]
    assert list(pool.keys()) == [key_of(1000)]
