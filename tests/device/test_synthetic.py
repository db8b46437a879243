import numpy as np
import pytest
import torch

from ems.common.exception import DeviceFailed
from ems.device.acl import FEATURE_NOT_SUPPORTED, AclError
from ems.device.base import Direction
from ems.device.synthetic import RawCopies, SyntheticCache, TensorShape, halves, memory_of
from ems.layout.copy_plan import Spans

SHAPES = [[TensorShape((6, 4, 2, 8), "float16"), TensorShape((6, 4, 1, 3), "bfloat16")]] * 2


@pytest.fixture
def cache():
    made = SyntheticCache(0, SHAPES)
    yield made
    made.close()


def rows(blocks, nbytes):
    return np.random.default_rng(7).integers(0, 256, (blocks, nbytes), np.uint8)


def test_the_tensors_are_as_asked_for(cache):
    found = [[(tuple(one.shape), one.dtype, str(one.device)) for one in k] for k in cache.kvcache]
    layer = [((6, 4, 2, 8), torch.float16, "npu:0"), ((6, 4, 1, 3), torch.bfloat16, "npu:0")]
    assert found == [layer, layer]


@pytest.mark.parametrize("blocks", [[0, 1, 2, 3, 4, 5], [4, 0, 1, 5], [3]])
def test_blocks_hold_what_was_written_and_others_are_untouched(cache, blocks):
    cache.write(1, 1, range(6), np.zeros((6, 24), np.uint8))
    written = rows(len(blocks), 24)
    cache.write(1, 1, blocks, written)
    assert np.array_equal(cache.read(1, 1, blocks), written)
    others = [block for block in range(6) if block not in blocks]
    assert not cache.read(1, 1, others).any()


def test_what_does_not_fit_is_refused_before_it_is_allocated():
    total = memory_of(0).total_nbytes
    blocks = total // 1024 + 1
    with pytest.raises(DeviceFailed, match=rf"npu:0 has .* free .*takes .*{blocks * 1024} bytes"):
        SyntheticCache(0, [[TensorShape((blocks, 1, 1, 512), "float16")]])


def raw_round_trip(cache, raw, way="copy"):
    """Copy two blocks out to the buffer, exchanged, and in again."""
    tensor = cache.kvcache[0][0]
    cache.write(0, 0, [0, 1], rows(2, 128))
    before = cache.read(0, 0, [0, 1])
    cache.synchronize()
    device = np.array([tensor.data_ptr(), tensor.data_ptr() + 128], np.uint64)
    host = np.array([raw.address, raw.address + 128], np.uint64)
    nbytes = np.array([128, 128], np.uint64)
    out, into = Spans(device, host, nbytes), Spans(device[::-1].copy(), host, nbytes)
    if way == "copy_both_ways":
        raw.copy(out, Direction.OUT)
        (first, second), nothing = halves(into), halves(out)[0]
        raw.copy_both_ways(nothing, first)
        raw.copy_both_ways(nothing, second)
        return before, cache.read(0, 0, [0, 1])
    copy = getattr(raw, way)
    copy(out, Direction.OUT)
    copy(into, Direction.IN)
    return before, cache.read(0, 0, [0, 1])


def test_raw_copies_move_spans_both_ways(cache):
    raw = RawCopies(0, 256)
    before, after = raw_round_trip(cache, raw)
    raw.copy_on_host(256)
    raw.close()
    assert np.array_equal(after, before[::-1])


@pytest.mark.parametrize("way", ["copy_on_two_streams", "copy_both_ways"])
def test_raw_copies_on_two_streams_move_the_same_bytes(cache, way):
    raw = RawCopies(0, 256)
    before, after = raw_round_trip(cache, raw, way)
    raw.close()
    assert np.array_equal(after, before[::-1])


def test_no_stream_moves_a_byte_any_more_when_a_raw_copy_has_failed(cache, monkeypatch):
    raw = RawCopies(0, 256)
    waited_for = []
    wait = raw._acl.synchronize_stream

    def fail(stream, milliseconds):
        wait(stream, milliseconds)
        waited_for.append(stream)
        raise DeviceFailed("a stream has failed")

    monkeypatch.setattr(raw._acl, "synchronize_stream", fail)
    with pytest.raises(DeviceFailed, match="a stream has failed"):
        raw_round_trip(cache, raw, "copy_on_two_streams")
    monkeypatch.undo()
    assert set(waited_for) == set(raw._streams)
    raw.close()


def test_spans_are_halved_by_their_bytes():
    columns = np.arange(4, dtype=np.uint64)
    sizes = np.array([10, 10, 10, 30], np.uint64)
    first, second = halves(Spans(columns, columns, sizes))
    assert (first.nbytes.tolist(), second.nbytes.tolist()) == ([10, 10, 10], [30])
    (alone,) = halves(Spans(columns[:1], columns[:1], sizes[:1]))
    assert alone.total_nbytes == 10


@pytest.mark.parametrize("arrangement", ["interleaved", "padded"])
def test_blocks_with_something_between_them_are_written_and_read(arrangement):
    made = SyntheticCache(0, SHAPES, arrangement)
    first, second = (rows(2, made._blocks[0][plane].shape[1]) for plane in (0, 1))
    made.write(0, 0, [1, 2], first)
    made.write(0, 1, [1, 2], second[::-1].copy())
    assert np.array_equal(made.read(0, 0, [1, 2]), first)
    assert np.array_equal(made.read(0, 1, [2, 1]), second)
    tensor = made.kvcache[0][0]
    assert tensor.stride(0) * tensor.element_size() > first.shape[1]
    made.close()


def test_raw_copies_go_one_by_one_where_there_is_no_batch(cache, monkeypatch):
    raw = RawCopies(0, 256)

    def refuse(*_):
        raise AclError("aclrtMemcpyBatchAsync", FEATURE_NOT_SUPPORTED)

    monkeypatch.setattr(raw._acl, "copy_batch", refuse)
    before, after = raw_round_trip(cache, raw)
    raw.close()
    assert np.array_equal(after, before[::-1])
