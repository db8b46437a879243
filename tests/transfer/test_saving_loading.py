import tempfile
import threading
from pathlib import Path

import pytest
from contracts.host_memory import MappedMemory
from moody_pool import MoodyPool
from transfer_fakes import BLOCK_SIZE, OPENED, World, same

from ems.common.exception import DeviceFailed, EmsException, PoolUnavailable, RequestTimeout
from ems.common.result import CcResult
from ems.device.base import StillMoving
from ems.pool.lmdb.pool import LmdbPool
from ems.pool.lmdb.settings import LmdbSettings
from ems.transfer import slices
from ems.transfer.pipeline import Pipeline

HASHES = [11, 12, 13, 14]
SOURCES = [0, 1, 2, 3]
TARGETS = [8, 9, 10, 11]


@pytest.fixture(params=[1, 2], ids=["one group", "two groups"])
def world(request):
    world = World(groups=request.param)
    yield world
    stats = world.memory_pool.stats()
    assert (stats.reserved_nbytes, stats.held_nbytes) == (0, 0), "a place or a hold is lost"


@pytest.fixture
def one_block_slices(monkeypatch):
    """Every block is a copy of its own."""
    monkeypatch.setattr(slices, "SLICE_NBYTES", 1)


def result(success, total=4):
    return CcResult(success, total)


def test_what_is_saved_comes_back_byte_for_byte(world):
    before = [world.block(number) for number in SOURCES]
    assert world.save(HASHES, SOURCES) == result(4)
    world.poison(*SOURCES)
    assert world.load(HASHES, TARGETS) == result(4)
    assert all(same(world.block(to), old) for to, old in zip(TARGETS, before, strict=True))


@pytest.mark.usefixtures("one_block_slices")
def test_many_slices_come_back_byte_for_byte(world):
    hashes, sources, targets = range(8), range(8), range(15, 7, -1)
    before = [world.block(number) for number in sources]
    assert world.save(hashes, sources) == result(8, 8)
    world.poison(*targets)
    assert world.load(hashes, targets) == result(8, 8)
    assert all(same(world.block(to), old) for to, old in zip(targets, before, strict=True))
    assert len(world.device.copies) == 16


@pytest.mark.parametrize("missing", range(4))
@pytest.mark.parametrize("sliced", [False, True], ids=["one slice", "a slice per block"])
def test_a_load_counts_to_the_first_miss_and_writes_nothing_at_or_after_it(
    world, missing, sliced, monkeypatch
):
    if sliced:
        monkeypatch.setattr(slices, "SLICE_NBYTES", 1)
    there = [at for at in range(4) if at != missing]
    world.save([HASHES[at] for at in there], [SOURCES[at] for at in there])
    world.poison(*TARGETS)
    poison = world.block(TARGETS[0])
    assert world.load(HASHES, TARGETS) == result(missing)
    for at in range(4):
        wanted = world.block(SOURCES[at]) if at < missing else poison
        assert same(world.block(TARGETS[at]), wanted)


def test_a_hash_that_misses_in_one_group_alone_ends_the_load():
    world = World(groups=2)
    world.save(HASHES, SOURCES)
    world.memory_pool.remove([world.parts(HASHES, SOURCES)[1].keys[2]])
    world.poison(*TARGETS)
    poison = world.block(TARGETS[0])
    assert world.load(HASHES, TARGETS) == result(2)
    assert same(world.block(TARGETS[2]), poison)
    assert same(world.block(TARGETS[3]), poison)
    assert world.memory_pool.stats().held_nbytes == 0


def test_a_load_of_what_was_never_saved_writes_nothing(world):
    world.poison(*TARGETS)
    assert world.load(HASHES, TARGETS) == result(0)
    assert world.device.copies == []


def test_blocks_after_one_that_finds_no_space_are_stored_and_not_counted():
    world = World(blocks=64, capacity_nbytes=5 * 1024)
    blocks, tokens = [0, 1, 62, 63], [4, 240, 4, 4]
    assert world.parts(HASHES, blocks, tokens)[0].nbytes[1] > 5 * 1024
    assert world.save(HASHES, blocks, tokens) == result(1)
    assert world.stored(HASHES) == [True, False, True, True]
    assert world.memory_pool.stats().reserved_nbytes == 0


def test_what_is_there_already_counts_and_is_not_written(world):
    world.save(HASHES[:2], SOURCES[:2])
    copies = len(world.device.copies)
    world.save(HASHES[:2], SOURCES[2:])
    assert len(world.device.copies) == copies
    before = [world.block(number) for number in (0, 1, 2, 3)]
    assert world.save(HASHES, [8, 9, 2, 3]) == result(4)
    world.load(HASHES, [12, 13, 14, 15])
    assert all(same(world.block(12 + at), before[at]) for at in range(4))


def test_all_being_there_already_needs_no_copy(world):
    world.save(HASHES, SOURCES)
    world.device.lost = "no copy can be made"
    assert world.save(HASHES, SOURCES) == result(4)


def test_a_fuller_version_replaces_a_shorter_one(world):
    assert world.save([11], [0], [3]) == result(1, 1)
    world.poison(8)
    poison = world.block(8)
    assert world.load([11], [8]) == result(0, 1)
    assert same(world.block(8), poison)
    assert world.save([11], [0]) == result(1, 1)
    assert world.load([11], [8]) == result(1, 1)
    assert same(world.block(8), world.block(0))


def test_fewer_tokens_than_stored_are_loaded_from_their_places(world):
    world.save([11], [0])
    world.poison(8)
    poison = world.block(8)
    assert world.load([11], [8], [3]) == result(1, 1)
    assert same([part[:3] for part in world.block(8)], [part[:3] for part in world.block(0)])
    assert same([part[3:] for part in world.block(8)], [part[3:] for part in poison])


def test_of_repeats_in_one_save_the_first_wins_and_all_count(world):
    assert world.save([11, 12, 11, 12], SOURCES) == result(4)
    world.load([11, 12], [8, 9])
    assert same(world.block(8), world.block(0))
    assert same(world.block(9), world.block(1))


def test_repeats_in_one_load_fill_each_target(world):
    world.save([11], [0])
    assert world.load([11, 11, 11], [8, 9, 10]) == result(3, 3)
    assert all(same(world.block(at), world.block(0)) for at in (8, 9, 10))


def test_repeats_share_the_failure_of_the_first():
    world = World(blocks=64, capacity_nbytes=5 * 1024)
    assert world.save([12, 11, 12, 11], [0, 1, 62, 63], [4, 240, 4, 4]) == result(1)


@pytest.mark.parametrize("window_blocks", [1, 2, 3, 4, 7])
def test_no_more_than_a_window_is_reserved_or_held_at_once(world, window_blocks):
    window_nbytes = window_blocks * world.block_nbytes
    world.pool = MoodyPool(world.memory_pool, window_nbytes=window_nbytes)
    before = [world.block(number) for number in range(8)]
    assert world.save(range(8), range(8)) == result(8, 8)
    assert world.load(range(8), range(8, 16)) == result(8, 8)
    assert 0 < world.pool.most_reserved_nbytes <= window_nbytes
    assert 0 < world.pool.most_held_nbytes <= window_nbytes
    assert all(same(world.block(8 + at), before[at]) for at in range(8))


@pytest.mark.parametrize(
    ("first", "wanted"), [(None, [4, 4]), (1, [1, 4, 3]), (4, [4, 4]), (5, [4, 4])]
)
def test_a_request_begins_with_as_little_as_the_pool_says(world, first, wanted):
    world.pool = MoodyPool(world.memory_pool, window_nbytes=8 * world.block_nbytes)
    world.pool.first_nbytes = first and first * world.block_nbytes
    for move, blocks in ((world.save, range(8)), (world.load, range(8, 16))):
        before = len(world.device.copies)
        assert move(range(8), blocks) == result(8, 8)
        moved = [
            copy.spans.total_nbytes // world.block_nbytes for copy in world.device.copies[before:]
        ]
        assert moved == wanted


@pytest.mark.parametrize("first_blocks", [None, 1, 3])
@pytest.mark.parametrize("window_blocks", [None, 1, 2, 4, 8])
def test_a_load_of_groups_with_a_window_writes_nothing_behind_its_run(window_blocks, first_blocks):
    world = World(groups=2, window=BLOCK_SIZE)
    world.save(HASHES, SOURCES)
    world.memory_pool.remove(world.parts(HASHES, SOURCES)[1].keys[2:])
    limit = window_blocks and window_blocks * world.block_nbytes
    world.pool = MoodyPool(world.memory_pool, window_nbytes=limit)
    world.pool.first_nbytes = first_blocks and first_blocks * world.block_nbytes
    world.poison(*TARGETS)
    assert world.load(HASHES, TARGETS) == result(2)
    assert all((world.block(at)[0] == 0xDEAD).all() for at in TARGETS[2:])


def test_what_is_stored_longer_than_asked_for_is_held_by_one_window_at_a_time():
    world = World(size=64)
    hashes, tokens = range(8), [1] * 8
    world.save(hashes, range(8))
    asked_nbytes = world.block_nbytes // BLOCK_SIZE
    world.pool = MoodyPool(world.memory_pool, window_nbytes=4 * asked_nbytes)
    assert world.load(hashes, range(8, 16), tokens) == result(8, 8)
    assert world.pool.most_held_nbytes == 2 * world.block_nbytes


@pytest.mark.parametrize("there", [1, 7, 11, 16])
def test_what_is_stored_much_longer_than_asked_for_comes_piece_by_piece(there):
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:  # as users have it
        world = World(size=1024, blocks=32)
        settings = LmdbSettings(
            Path(folder) / "pool", capacity_nbytes=8 << 20, staging_nbytes=16 * world.block_nbytes
        )
        world.pool = LmdbPool(MappedMemory(), settings)
        OPENED.append(world.pool)
        before = [world.block(at) for at in range(16)]
        world.save(range(there), range(there))
        world.poison(*range(16, 32))
        assert world.load(range(16), range(16, 32), [1] * 16) == result(there, 16)
        for at in range(16):
            found = [plane[0] for plane in world.block(16 + at)]
            wanted = [plane[0] for plane in before[at]]
            assert same(found, wanted) == (at < there)


def test_a_block_larger_than_the_window_is_moved_by_itself(world):
    world.pool = MoodyPool(world.memory_pool, window_nbytes=1)
    assert world.save(HASHES, SOURCES) == result(4)
    assert world.load(HASHES, TARGETS) == result(4)
    assert world.pool.most_reserved_nbytes == world.block_nbytes
    assert world.pool.most_held_nbytes == world.block_nbytes


def test_a_miss_in_an_early_window_asks_for_no_later_one(world):
    world.save([12, 13, 14], [1, 2, 3])
    world.pool = MoodyPool(world.memory_pool, {"acquire": 2}, window_nbytes=world.block_nbytes)
    assert world.load(HASHES, TARGETS) == result(0)


@pytest.mark.usefixtures("one_block_slices")
@pytest.mark.parametrize("error", [PoolUnavailable, RuntimeError])
@pytest.mark.parametrize(
    ("method", "nth"), [("reserve", 1), ("reserve", 2), *[("commit", nth) for nth in (1, 2, 3, 4)]]
)
def test_a_pool_that_fails_a_save_is_reported_and_gets_everything_back(world, method, nth, error):
    world.pool = MoodyPool(
        world.memory_pool, {method: nth}, error=error, window_nbytes=2 * world.block_nbytes
    )
    with pytest.raises(error, match=f"{method} went wrong"):
        world.save(HASHES, SOURCES)
    stored = world.stored(HASHES)
    kept = [at for at in range(4) if stored[at]]
    world.pool = world.memory_pool
    for at in kept:
        world.load([HASHES[at]], [TARGETS[at]])
        assert same(world.block(TARGETS[at]), world.block(SOURCES[at]))
    assert world.save(HASHES, SOURCES) == result(4)


@pytest.mark.usefixtures("one_block_slices")
@pytest.mark.parametrize("error", [PoolUnavailable, RuntimeError])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_pool_that_fails_an_acquire_is_reported_and_gets_everything_back(world, nth, error):
    world.save(HASHES, SOURCES)
    world.pool = MoodyPool(
        world.memory_pool, {"acquire": nth}, error=error, window_nbytes=2 * world.block_nbytes
    )
    world.poison(*TARGETS)
    poison = world.block(TARGETS[0])
    with pytest.raises(error):
        world.load(HASHES, TARGETS)
    assert same(world.block(TARGETS[2 * nth - 1]), poison)


@pytest.mark.usefixtures("one_block_slices")
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_load_whose_release_fails_has_loaded_all_the_same(world, nth):
    world.save(HASHES, SOURCES)
    world.pool = MoodyPool(world.memory_pool, {"release": nth})
    assert world.load(HASHES, TARGETS) == result(4)


@pytest.mark.usefixtures("one_block_slices")
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
def test_a_fault_of_the_pool_in_release_ends_the_load_and_loses_no_hold(world, nth):
    world.save(HASHES, SOURCES)
    world.pool = MoodyPool(world.memory_pool, {"release": nth}, error=RuntimeError)
    with pytest.raises(RuntimeError):
        world.load(HASHES, TARGETS)


@pytest.mark.usefixtures("one_block_slices")
@pytest.mark.parametrize("error", [PoolUnavailable, RuntimeError])
def test_an_abort_that_fails_too_does_not_lose_the_other_places(world, error):
    world.device.moods = {1: "fails"}
    world.pool = MoodyPool(world.memory_pool, {"abort": 1}, error=error)
    with pytest.raises((DeviceFailed, error)):
        world.save(HASHES, SOURCES)


@pytest.mark.usefixtures("one_block_slices")
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("mood", ["fails", "is refused"])
def test_a_copy_that_fails_is_reported_and_never_visible(world, mood, nth):
    world.device.moods = {nth: mood}
    with pytest.raises(DeviceFailed, match="copy"):
        world.save(HASHES, SOURCES)
    assert not world.stored(HASHES)[nth - 1]
    stored = world.stored(HASHES)
    for at in [at for at in range(4) if stored[at]]:
        world.load([HASHES[at]], [TARGETS[at]])
        assert same(world.block(TARGETS[at]), world.block(SOURCES[at]))


@pytest.mark.usefixtures("one_block_slices")
@pytest.mark.parametrize("nth", [1, 2, 3, 4])
@pytest.mark.parametrize("mood", ["fails", "is refused"])
def test_a_load_whose_copy_fails_is_reported_and_keeps_what_is_stored(world, mood, nth):
    world.save(HASHES, SOURCES)
    world.device.moods = {4 + nth: mood}
    with pytest.raises(DeviceFailed, match="copy"):
        world.load(HASHES, TARGETS)
    assert world.load(HASHES, TARGETS) == result(4)


@pytest.mark.usefixtures("one_block_slices")
def test_an_expired_save_keeps_what_had_arrived_and_gives_the_rest_back():
    world = World()
    world.device.gate = threading.Semaphore(1)
    timer = threading.Timer(1.2, world.device.gate.release, [2])
    timer.start()
    with pytest.raises(RequestTimeout):
        world.save(HASHES, SOURCES, seconds=1)
    timer.join(60)
    assert world.stored(HASHES) == [True, True, True, False]
    assert world.memory_pool.stats().reserved_nbytes == 0


@pytest.mark.usefixtures("one_block_slices")
def test_an_expired_load_writes_nothing_after_it_has_ended():
    world = World()
    world.save(HASHES, SOURCES)
    world.poison(*TARGETS)
    world.device.gate = threading.Semaphore(0)
    timer = threading.Timer(1.2, world.device.gate.release, [100])
    timer.start()
    with pytest.raises(RequestTimeout):
        world.load(HASHES, TARGETS, seconds=1)
    assert all(copy.done() for copy in world.device.copies)
    assert len(world.device.copies) == 4 + 2
    poison = world.block(TARGETS[3])
    assert (poison[0] == 0xDEAD).all()
    timer.join(60)


@pytest.mark.usefixtures("one_block_slices")
@pytest.mark.parametrize("mood", ["hangs", "is refused and goes on"])
def test_memory_of_a_copy_that_never_ends_is_never_used_again(mood, monkeypatch):
    monkeypatch.setitem(Pipeline.__init__.__kwdefaults__, "drain_seconds", 0.05)
    world = World()
    world.device.moods = {2: mood}
    with pytest.raises(StillMoving):
        world.save(HASHES, SOURCES, seconds=1)
    stats = world.memory_pool.stats()
    assert stats.reserved_nbytes == world.block_nbytes
    assert world.stored(HASHES)[1] is False


def test_the_failure_of_a_request_is_the_first_one(world):
    world.device.moods = {1: "fails"}
    world.pool = MoodyPool(world.memory_pool, {"abort": 1})
    with pytest.raises(EmsException, match="a copy failed"):
        world.save(HASHES, SOURCES)
