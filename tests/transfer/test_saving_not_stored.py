"""What the pool could not store after all counts as not stored, and costs the others nothing."""

from transfer_fakes import World

from ems.common.result import CcResult
from ems.pool.base import NotStored

HASHES = [11, 12, 13, 14]
BLOCKS = [0, 1, 2, 3]


class NoRoomForTheSecond:
    """The memory pool, but for the second place of each commit."""

    def __init__(self, pool):
        self._pool = pool

    def __getattr__(self, name):
        return getattr(self._pool, name)

    def view(self, **_):
        return self

    def commit(self, places):
        self._pool.commit([place for place in places if place is not places[1]])
        self._pool.abort([places[1]])
        raise NotStored("no room", [places[1]])


def test_a_place_that_was_not_stored_ends_the_count_and_later_ones_are_stored(caplog):
    world = World()
    world.pool = NoRoomForTheSecond(world.memory_pool)
    saved = world.save(HASHES, BLOCKS)
    assert (saved.success, saved.total) == (1, 4)
    assert isinstance(saved, CcResult)
    assert world.stored(HASHES) == [True, False, True, True]
    assert "no room" in caplog.text


def test_a_save_after_one_that_was_not_stored_stores_the_rest():
    world = World()
    world.pool = NoRoomForTheSecond(world.memory_pool)
    world.save(HASHES, BLOCKS)
    world.pool = world.memory_pool
    assert world.save(HASHES, BLOCKS).success == 4
    assert world.load(HASHES, [8, 9, 10, 11]).success == 4
