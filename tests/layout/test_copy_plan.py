from itertools import pairwise

import numpy as np
import pytest
from copy_model import (
    POISON,
    Memory,
    caches,
    chunks_of,
    copy,
    cuts,
    entries_for,
    naive_pairs,
    pairs_of,
    plan,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_examples import facts, k_and_v, layers, untimed

from ems.layout.copy_plan import ALIGNMENT, entry_nbytes, plan_spans, slices_of
from ems.layout.registration import register

HOSTS = st.sampled_from([64, (1 << 33) - 64, (1 << 46) + 128])
thorough = settings(untimed, max_examples=150)


def ints(*values):
    return np.array(values, np.int64)


def uints(*values):
    return np.array(values, np.uint64)


def rows(spans):
    return pairs_of(spans, save=False)


@given(caches(), st.data())
@thorough
def test_a_save_puts_each_token_where_the_entry_has_it_and_nothing_else(cache, data):
    for group, token_planes in zip(cache.registration.groups, cache.token_planes, strict=True):
        slots, tokens = data.draw(cuts(group))
        entries, host = data.draw(entries_for(group, tokens, data.draw(HOSTS)))
        device, before = cache.memory(1), cache.memory(1).content
        spans = plan(group, slots, tokens, entries, tokens)
        copy(host, device, pairs_of(spans, save=True))
        expected = Memory(host.base, np.full_like(host.content, POISON))
        copy(expected, device, naive_pairs(token_planes, slots, tokens, entries, tokens, save=True))
        assert np.array_equal(host.content, expected.content)
        assert np.array_equal(host.writes, expected.writes)
        assert host.writes.max() == 1
        assert np.array_equal(device.content, before)
        assert spans.total_nbytes == len(slots) * group.token_nbytes
        assert spans.total_nbytes == sum(plane.token_nbytes for plane in token_planes) * len(slots)


@given(caches(), st.data())
@thorough
def test_a_load_gives_other_slots_the_tokens_that_were_saved(cache, data):
    for group, token_planes in zip(cache.registration.groups, cache.token_planes, strict=True):
        slots, stored = data.draw(cuts(group))
        entries, host = data.draw(entries_for(group, stored, data.draw(HOSTS)))
        source = cache.memory(1)
        copy(host, source, pairs_of(plan(group, slots, stored, entries, stored), save=True))

        # as many tokens of each entry as stored, or fewer, into slots in any other order
        tokens = ints(*(data.draw(st.integers(1, int(n))) for n in stored))
        others = ints(*data.draw(st.permutations(range(group.num_slots))))[: tokens.sum()]
        target, before = cache.memory(2), cache.memory(2)
        spans = plan(group, others, tokens, entries, stored)
        copy(target, host, pairs_of(spans, save=False))

        starts = np.cumsum(stored) - stored
        origin = [
            int(slots[at + i]) for at, n in zip(starts, tokens, strict=True) for i in range(n)
        ]
        for plane in token_planes:
            for old, new in zip(origin, others, strict=True):
                here, there = (
                    memory.at(plane.token(int(slot)), plane.token_nbytes)
                    for memory, slot in ((source, old), (target, new))
                )
                assert np.array_equal(target.content[there], source.content[here])
                before.writes[there] += 1
        assert np.array_equal(target.writes, before.writes)
        assert target.writes.max() == 1
        untouched = before.writes == 0
        assert np.array_equal(target.content[untouched], before.content[untouched])
        assert spans.total_nbytes == len(others) * group.token_nbytes


@given(caches(), st.data())
@thorough
def test_chunks_planned_in_slices_move_what_they_move_together(cache, data):
    group = cache.registration.groups[0]
    slots, tokens = data.draw(cuts(group))
    entries, whole = data.draw(entries_for(group, tokens, 64))
    sliced = Memory(whole.base, whole.content.copy())
    device = cache.memory(1)
    copy(whole, device, pairs_of(plan(group, slots, tokens, entries, tokens), save=True))
    slice_nbytes = data.draw(st.integers(1, 4096))
    for each in slices_of(entry_nbytes(group, tokens).tolist(), slice_nbytes):
        spans = plan(group, slots, tokens, entries, tokens, which=each)
        copy(sliced, device, pairs_of(spans, save=True))
    assert np.array_equal(sliced.content, whole.content)
    assert np.array_equal(sliced.writes, whole.writes)


@given(caches(), st.data())
@thorough
def test_any_chunks_can_be_planned_without_the_others(cache, data):
    group, token_planes = cache.registration.groups[-1], cache.token_planes[-1]
    slots, tokens = data.draw(cuts(group))
    which = sorted(data.draw(st.sets(st.integers(0, len(tokens) - 1), min_size=1)))
    entries, host = data.draw(entries_for(group, tokens, 64))
    device, expected = cache.memory(1), Memory(host.base, host.content.copy())
    copy(
        host, device, pairs_of(plan(group, slots, tokens, entries, tokens, which=which), save=True)
    )
    starts = np.cumsum(tokens) - tokens
    for chunk in which:
        own = slots[starts[chunk] : starts[chunk] + tokens[chunk]]
        one = [each[chunk : chunk + 1] for each in (tokens, entries, tokens)]
        copy(expected, device, naive_pairs(token_planes, own, *one, save=True))
    assert np.array_equal(host.content, expected.content)
    assert np.array_equal(host.writes, expected.writes)


@given(caches(), st.data())
@thorough
def test_whole_blocks_are_the_same_copies_when_they_are_planned_as_runs(cache, data):
    group = cache.registration.groups[0]
    count = data.draw(st.integers(1, group.num_blocks))
    blocks = ints(*data.draw(st.permutations(range(group.num_blocks))))[:count]
    slots = (blocks[:, None] * group.block_size + np.arange(group.block_size)).ravel()
    tokens = np.full(count, group.block_size)
    stored = tokens + ints(*(data.draw(st.integers(0, 3)) for _ in blocks))
    entries, _ = data.draw(entries_for(group, stored, 64))
    as_blocks = chunks_of(group, slots, tokens)
    as_runs = chunks_of(group, slots, tokens)
    vars(as_runs)["block_ids"] = None  # as if one of them were no whole block
    assert as_blocks.block_ids is not None
    which = np.arange(count)
    one, other = (
        {
            (device + i, host + i)
            for device, host, nbytes in rows(plan_spans(group, chunks, which, entries, stored))
            for i in range(nbytes)
        }
        for chunks in (as_blocks, as_runs)
    )
    assert one == other


@given(caches(), st.data())
@thorough
def test_a_span_stays_in_its_entry(cache, data):
    # entries of neighbouring addresses may be in two allocations, which one copy must not cross
    group = cache.registration.groups[0]
    slots, tokens = data.draw(cuts(group))
    entries, _ = data.draw(entries_for(group, tokens, 64))
    ends = entries + entry_nbytes(group, tokens).astype(np.uint64)
    for _, host, nbytes in rows(plan(group, slots, tokens, entries, tokens)):
        assert ((entries <= host) & (host + nbytes <= ends)).any()


@given(caches(), st.data())
@thorough
def test_neighbours_of_a_plane_are_merged(cache, data):
    group = cache.registration.groups[0]
    slots, tokens = data.draw(cuts(group))
    entries, _ = data.draw(entries_for(group, tokens, 64))
    spans = rows(plan(group, slots, tokens, entries, tokens))
    sizes = entry_nbytes(group, tokens)
    # where every part of an entry starts: spans that begin there need not be merged
    starts = {
        int(entry) + sum(int(entry_nbytes_of(plane, n)) for plane in group.planes[:part])
        for entry, n in zip(entries, tokens, strict=True)
        for part in range(len(group.planes))
    }
    assert len(sizes) == len(entries)
    for (device, host, nbytes), (next_device, next_host, _) in pairwise(spans):
        adjacent = device + nbytes == next_device and host + nbytes == next_host
        assert not adjacent or next_host in starts


def entry_nbytes_of(plane, tokens):
    return -(-plane.token_nbytes * tokens // 64) * 64


def test_consecutive_blocks_of_one_chunk_are_one_span_per_plane():
    group = register(k_and_v(1)).groups[0]
    spans = plan(group, np.arange(8, 24), ints(16), uints(640), ints(16))
    k, v = (plane.address for plane in group.planes)
    assert rows(spans) == [(k + 8 * 32, 640, 512), (v + 8 * 32, 640 + 512, 512)]


def test_padded_blocks_are_a_span_each():
    padded = facts((8, 4, 2, 8), strides=(64 + 16, 16, 8, 1))
    group = register([[padded]]).groups[0]
    spans = plan(group, np.arange(8), ints(8), uints(640), ints(8))
    start = padded.address
    assert rows(spans) == [(start, 640, 128), (start + 160, 640 + 128, 128)]


def page_of_k_and_v(token_elements, block_size=4, blocks=8):
    block = block_size * token_elements
    strides = (2 * block, token_elements, token_elements, 1)
    shape = (blocks, block_size, 1, token_elements)
    start = 1 << 20
    return [[facts(shape, address=start + i * 2 * block, strides=strides) for i in range(2)]]


def test_k_and_v_in_one_page_are_one_span_where_their_parts_are_neighbours_too():
    group = register(page_of_k_and_v(8)).groups[0]  # parts of 64 bytes
    spans = plan(group, np.arange(4, 8), ints(4), uints(640), ints(4))
    assert rows(spans) == [((1 << 20) + 128, 640, 128)]


def test_k_and_v_in_one_page_are_two_spans_where_their_parts_are_padded():
    group = register(page_of_k_and_v(9)).groups[0]  # parts of 72 bytes
    spans = plan(group, np.arange(4, 8), ints(4), uints(640), ints(4))
    start = (1 << 20) + 144
    assert rows(spans) == [(start, 640, 72), (start + 72, 640 + 128, 72)]


def test_planes_that_happen_to_be_neighbours_are_not_copied_as_one():
    # K ends where V begins: two allocations, which one copy must not cross
    k = facts((4, 2, 1, 16), address=4096)
    v = facts((4, 2, 1, 16), address=4096 + 4 * 64)
    group = register([[k, v]]).groups[0]
    slots = ints(0, 1, 6, 7)  # the first and the last block: V's first follows K's last
    spans = plan(group, slots, ints(4), uints(640), ints(4))
    assert rows(spans) == [
        (4096, 640, 64),
        (4096 + 192, 704, 64),
        (4096 + 256, 768, 64),
        (4096 + 448, 832, 64),
    ]


@pytest.mark.parametrize("kvcache", [layers([(8, 4, 1, 8)]), page_of_k_and_v(8)], ids=["K", "page"])
def test_entries_that_happen_to_be_neighbours_are_not_copied_as_one(kvcache):
    group = register(kvcache).groups[0]
    nbytes = int(entry_nbytes(group, ints(4))[0])
    start = group.planes[0].address
    whole_blocks, runs = np.arange(8), ints(1, *range(1, 8))
    for slots in (whole_blocks, runs):
        spans = plan(group, slots, ints(4, 4), uints(640, 640 + nbytes), ints(4, 4))
        assert (start + nbytes, 640 + nbytes) in [(d, h) for d, h, _ in rows(spans)]


def test_a_span_is_only_joined_where_both_sides_are_neighbours():
    group = register(layers([(8, 4, 1, 32)])).groups[0]
    (plane,) = group.planes
    near_on_host_only = plan(group, ints(*range(4), *range(8, 12)), ints(8), uints(640), ints(8))
    assert rows(near_on_host_only) == [
        (plane.address, 640, 256),
        (plane.address + 512, 640 + 256, 256),
    ]
    near_on_device_only = plan(group, np.arange(8), ints(4, 4), uints(640, 4096), ints(4, 4))
    assert rows(near_on_device_only) == [
        (plane.address, 640, 256),
        (plane.address + 256, 4096, 256),
    ]


def test_fewer_tokens_than_stored_are_found_where_the_stored_ones_are():
    group = register(k_and_v(1)).groups[0]  # 32 bytes a token and plane
    spans = plan(group, ints(20, 21, 22), ints(3), uints(640), ints(16))
    k, v = (plane.address for plane in group.planes)
    assert rows(spans) == [(k + 640, 640, 96), (v + 640, 640 + 512, 96)]


def test_whole_blocks_are_found_in_entries_that_store_more():
    group = register(k_and_v(1)).groups[0]
    spans = plan(group, np.arange(8, 16), ints(4, 4), uints(640, 6400), ints(4, 8))
    k, v = (plane.address for plane in group.planes)
    assert rows(spans) == [
        (k + 256, 640, 128),
        (v + 256, 640 + 128, 128),
        (k + 384, 6400, 128),
        (v + 384, 6400 + 256, 128),
    ]


def test_chunks_with_others_between_them_go_to_their_own_entries():
    group = register(layers([(8, 4, 1, 32)])).groups[0]
    start = group.planes[0].address
    entries = uints(640, 6400, 64000)
    spans = plan(group, ints(3, 9, 13), ints(1, 1, 1), entries, ints(1, 1, 1), which=[0, 2])
    assert rows(spans) == [(start + 3 * 64, 640, 64), (start + 13 * 64, 64000, 64)]


@pytest.mark.parametrize("address", [1 << 33, (1 << 40) + 4096, (1 << 47) - (1 << 35)])
def test_addresses_far_beyond_32_bits_are_exact(address):
    blocks, size, width = 70_001, 128, 576
    token_nbytes = width * 2
    tensors = layers([(blocks, size, 1, width)])[0] + [
        facts((blocks, size, 1, 1), address=1 << 50, dtype="int8")
    ]
    tensors[0] = facts((blocks, size, 1, width), address=address)
    group = register([tensors]).groups[0]
    block = 70_000
    host = (1 << 46) + 64
    last = address + block * size * token_nbytes
    assert last - address > 1 << 32
    first_scale = (1 << 50) + block * size
    whole = plan(
        group, np.arange(block * size, (block + 1) * size), ints(size), uints(host), ints(size)
    )
    assert rows(whole) == [
        (last, host, size * token_nbytes),
        (first_scale, host + size * token_nbytes, size),
    ]
    partial = plan(group, ints(block * size + 5), ints(1), uints(host), ints(9_000_000))
    assert rows(partial) == [
        (last + 5 * token_nbytes, host, token_nbytes),
        (first_scale + 5, host + 9_000_000 * token_nbytes, 1),
    ]
    assert entry_nbytes(group, ints(9_000_000)).tolist() == [9_000_000 * (token_nbytes + 1)]
    assert whole.total_nbytes == size * (token_nbytes + 1)


def test_the_columns_are_contiguous_64_bit_arrays():
    group = register(k_and_v(1)).groups[0]
    for slots, tokens in ((np.arange(8), ints(4, 4)), (ints(1, 3, 9), ints(3))):
        spans = plan(group, slots, tokens, uints(640, 6400)[: len(tokens)], tokens)
        for column in (spans.device, spans.host, spans.nbytes):
            assert column.dtype == np.uint64
            assert column.flags.c_contiguous
            assert len(column) == len(spans)


@untimed
@given(caches(), st.lists(st.integers(1, 300), min_size=1, max_size=12))
def test_an_entry_is_the_sum_of_its_parts_each_on_64_bytes(cache, tokens):
    for group, token_planes in zip(cache.registration.groups, cache.token_planes, strict=True):
        sizes = entry_nbytes(group, ints(*tokens)).tolist()
        assert sizes == [
            sum(-(-n * plane.token_nbytes // 64) * 64 for plane in token_planes) for n in tokens
        ]


@untimed
@given(caches(), st.data())
def test_every_part_of_an_entry_starts_on_64_bytes(cache, data):
    group = cache.registration.groups[0]
    stored = data.draw(st.integers(1, 100))
    spans = plan(group, ints(0), ints(1), uints(640), ints(stored))
    first_tokens = [host for _, host, _ in rows(spans)]
    assert all(host % ALIGNMENT == 0 for host in first_tokens)


def test_the_bytes_of_a_layer_are_the_sum_over_its_planes():
    # the three layers of case 12
    kvcache = layers([(8, 4, 1, 16), (8, 4, 1, 4)], [(8, 4, 1, 16), (8, 4, 1, 4)], [(8, 4, 1, 16)])
    kvcache[0].append(facts((8, 4, 1, 4), address=1 << 50, dtype="int8"))
    group = register(kvcache).groups[0]
    assert [plane.block_nbytes for plane in group.planes] == [128, 32, 16, 128, 32, 128]
    assert group.token_nbytes == 32 + 8 + 4 + 32 + 8 + 32
    assert entry_nbytes(group, ints(4)).tolist() == [128 + 64 + 64 + 128 + 64 + 128]


@untimed
@given(st.lists(st.integers(1, 50), max_size=20), st.integers(1, 100))
def test_slices_are_consecutive_full_and_no_larger_than_wanted(sizes, slice_nbytes):
    slices = slices_of(sizes, slice_nbytes)
    assert [index for each in slices for index in each] == list(range(len(sizes)))
    for each in slices:
        assert len(each) == 1 or sum(sizes[index] for index in each) <= slice_nbytes
        assert len(each) >= 1
    for each, following in pairwise(slices):
        filled = sum(sizes[index] for index in each)
        assert filled + sizes[following.start] > slice_nbytes


def test_an_entry_larger_than_a_slice_is_a_slice_of_its_own():
    assert slices_of([5, 100, 5, 5], 10) == [range(1), range(1, 2), range(2, 4)]


def test_a_slice_may_be_filled_exactly():
    assert slices_of([5, 5, 5, 5], 10) == [range(2), range(2, 4)]


def test_no_entries_are_no_slices():
    assert slices_of([], 10) == []
