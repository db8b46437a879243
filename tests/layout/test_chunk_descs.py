"""Chunk descriptions: every form that is taken, every one that is refused, groups with windows."""

import tracemalloc
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_examples import layers, untimed

from ems.common.addressing import ChunkDesc
from ems.common.exception import InvalidArgument
from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.chunk_descs import request_of_chunks
from ems.layout.part import parts_of
from ems.layout.registration import register

# group 0: 8 blocks of 4 tokens, any chunk up to 8; group 1: 6 blocks of 2 tokens, looks back 4
CACHE = register(
    layers([(8, 4, 2, 8), (8, 4, 2, 8)], [(6, 2, 1, 16)]),
    [StoreLayerGroupDesc(8, [0]), StoreLayerGroupDesc(4, [1], window=4)],
)
PLAIN = register(layers([(8, 4, 2, 8)]))


class Pair(NamedTuple):
    start_slot: int
    length: int


def request(hashes, descs, *, cache=CACHE, writes=True):
    return request_of_chunks(cache, hashes, descs, writes=writes)


def refusal(hashes, descs, *, cache=CACHE, writes=True):
    with pytest.raises(InvalidArgument) as refused:
        request(hashes, descs, cache=cache, writes=writes)
    return str(refused.value)


@pytest.mark.parametrize(
    "desc",
    [
        ChunkDesc(4, 6),
        ChunkDesc(start_slot=4, length=6),
        (4, 6),
        [4, 6],
        Pair(4, 6),
        {"start_slot": 4, "length": 6},
        {"length": 6, "start_slot": 4},
        SimpleNamespace(start_slot=4, length=6),
        SimpleNamespace(start_slot=4, length=6, more=1),
        (np.int64(4), np.uint8(6)),
    ],
    ids=repr,
)
def test_a_chunk_is_an_object_a_pair_or_a_dict_with_start_and_length(desc):
    [chunks] = request([1], [[desc]], cache=PLAIN).chunks
    assert chunks.slots.tolist() == [4, 5, 6, 7, 8, 9]
    assert chunks.tokens.tolist() == [6]


@pytest.mark.parametrize(
    "desc",
    [
        None,
        4,
        "46",
        b"46",
        (4,),
        (4, 6, 1),
        {},
        {"start_slot": 4},
        {"start_slot": 4, "length": 6, "group": 0},
        {4, 6},
        object(),
        SimpleNamespace(start_slot=4),
    ],
    ids=lambda desc: repr(desc).partition(" at 0x")[0],
)
def test_what_has_no_start_and_length_is_refused_by_its_place(desc):
    text = refusal([1, 2], [[(0, 4), desc]], cache=PLAIN)
    assert text.startswith("chunk_descs[0][1] must have start_slot and length")


@pytest.mark.parametrize("value", [None, True, False, 4.0, "4", [4], len], ids=repr)
@pytest.mark.parametrize(("field", "at"), [("start_slot", 0), ("length", 1)])
def test_a_start_or_length_that_is_no_int_is_refused_by_its_place_and_value(field, at, value):
    desc = [4, 4]
    desc[at] = value
    text = refusal([1, 2], [[(0, 4), desc]], cache=PLAIN)
    assert text.startswith(f"chunk_descs[0][1].{field} must be an int, not {value!r}")


@pytest.mark.parametrize(
    ("descs", "words"),
    [
        (None, "chunk_descs must be a list of lists, not None"),
        ("ab", "chunk_descs must be a list of lists, not 'ab'"),
        ({0: [], 1: []}, "chunk_descs must be a list of lists"),
        ([], "chunk_descs has 0 lists, the registered cache 2 layer groups"),
        ([[(0, 4)]], "chunk_descs has 1 lists, the registered cache 2 layer groups"),
        ([[(0, 4)], [None], []], "chunk_descs has 3 lists, the registered cache 2 layer groups"),
        ([(0, 4), [None]], "chunk_descs[0] has 2 chunks for 1 hashes"),
        ([[(0, 4)], None], "chunk_descs[1] must be a list, not None"),
        ([[(0, 4)], []], "chunk_descs[1] has 0 chunks for 1 hashes"),
        ([[(0, 4), (4, 4)], [None]], "chunk_descs[0] has 2 chunks for 1 hashes"),
    ],
)
def test_lists_that_do_not_fit_the_groups_and_hashes_are_refused_with_the_numbers(descs, words):
    assert words in refusal([1], descs)


@pytest.mark.parametrize(
    ("group", "desc", "words"),
    [
        (0, (0, 0), "chunk_descs[0][0].length is 0; it must be 1 to 8 tokens"),
        (0, (0, -1), "chunk_descs[0][0].length is -1; it must be 1 to 8 tokens"),
        (0, (0, 9), "chunk_descs[0][0].length is 9; it must be 1 to 8 tokens"),
        (0, (0, 2**63), f"chunk_descs[0][0].length is {2**63}; it must be 1 to 8 tokens"),
        (0, (-1, 4), "chunk_descs[0][0] names slots -1 to 2; the registered cache has slots 0 to"),
        (0, (29, 4), "chunk_descs[0][0] names slots 29 to 32; the registered cache has slots 0 to"),
        (0, (2**70, 1), f"chunk_descs[0][0] names slots {2**70} to {2**70}"),
        (1, (0, 5), "chunk_descs[1][0].length is 5; it must be 1 to 4 tokens"),
        (1, (10, 3), "slots 0 to 11 in layer group 1"),
    ],
)
def test_a_chunk_outside_its_group_is_refused_by_place_and_value(group, desc, words):
    descs = [[(0, 4)], [(0, 2)]]
    descs[group] = [desc]
    assert words in refusal([1], descs)


def test_each_group_has_slots_and_lengths_of_its_own():
    full, window = request([1, 2], [[(28, 4), (0, 8)], [(10, 2), (0, 4)]]).chunks
    assert full.block_size == 4
    assert window.block_size == 2
    assert full.tokens.tolist() == [4, 8]
    assert window.tokens.tolist() == [2, 4]
    assert window.slots.tolist() == [10, 11, 0, 1, 2, 3]


def test_in_a_group_with_a_window_a_hash_may_keep_nothing():
    full, window = request([1, 2, 3], [[(0, 4), (4, 4), (8, 4)], [None, None, (6, 4)]]).chunks
    assert full.tokens.tolist() == [4, 4, 4]
    assert window.tokens.tolist() == [0, 0, 4]
    assert window.slots.tolist() == [6, 7, 8, 9]


@untimed
@given(st.lists(st.none() | st.integers(1, 4), min_size=1, max_size=6))
def test_hashes_that_keep_nothing_have_no_runs_wherever_they_stand(lengths):
    descs = [length and (2 * at, min(length, 2)) for at, length in enumerate(lengths)]
    full = [(4 * at, 4) for at in range(len(lengths))]
    _, window = request(list(range(len(lengths))), [full, descs]).chunks
    runs = window.runs
    assert [
        (int(chunk), int(slot), int(length))
        for chunk, slot, length in zip(runs.chunk, runs.slot, runs.length, strict=True)
    ] == [(at, *desc) for at, desc in enumerate(descs) if desc]
    assert (runs.position == 0).all()
    assert window.touched_blocks.tolist() == [at for at, desc in enumerate(descs) if desc]


def test_in_a_group_without_a_window_each_hash_needs_a_chunk():
    assert "chunk_descs[0][1] must have" in refusal([1, 2], [[(0, 4), None], [(0, 2), (2, 2)]])


def test_a_hash_that_owns_nothing_anywhere_is_refused():
    cache = register(layers([(8, 4, 2, 8)]), [StoreLayerGroupDesc(4, [0], window=4)])
    text = refusal([1, 2], [[(0, 4), None]], cache=cache)
    assert text == "hashes[1] owns no slot in any layer group"


def test_a_slot_may_be_saved_twice_and_loaded_once_in_each_group():
    descs = [[(0, 4), (3, 4)], [(0, 2), (2, 2)]]
    assert request([1, 2], descs, writes=False)
    assert "chunk_descs[0]: slot" in refusal([1, 2], descs)
    assert "slot 3" in refusal([1, 2], descs)
    assert request([1, 2], [[(0, 4), (4, 4)], [(0, 2), (2, 2)]]), "the same numbers, other groups"


def shared_cache():
    """Return the registration of three groups, of which the first and the last share blocks."""
    one, other = layers([(8, 4, 2, 8)], [(8, 4, 2, 8)])
    groups = [StoreLayerGroupDesc(8, [0]), StoreLayerGroupDesc(8, [1])]
    return register([one, other, one], [*groups, StoreLayerGroupDesc(8, [2], window=4)])


@pytest.mark.parametrize("writes", [True, False], ids=["load", "save"])
def test_a_block_that_groups_share_belongs_to_one_of_them(writes):
    cache = shared_cache()
    descs = [[(0, 4), (4, 4)], [(0, 4), (4, 4)], [None, (8, 4)]]
    assert request([1, 2], descs, cache=cache, writes=writes)
    descs[2] = [None, (6, 4)]
    assert refusal([1, 2], descs, cache=cache, writes=writes) == (
        "chunk_descs[0] and chunk_descs[2] both name block 1; these layer groups share memory, "
        "a block belongs to one of them"
    )


def test_requests_meet_in_a_block_that_groups_share():
    cache = shared_cache()
    wanted = request([1], [[(0, 4)], [(4, 4)], [(8, 4)]], cache=cache)
    parts = parts_of(wanted, cache.groups, ["a-", "b-", "c-"])
    assert [(part.space, part.places) for part in parts] == [(0, [0]), (1, [1]), (0, [2])]


def test_a_huge_length_is_refused_before_anything_is_allocated_for_it():
    tracemalloc.start()
    try:
        for desc in ((0, 2**40), (2**40, 1), (0, 2**63 - 1)):
            refusal([1], [[desc]], cache=PLAIN)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize("hashes", [None, [], "ab", 7, [None]], ids=repr)
def test_hashes_are_checked_as_in_every_other_form(hashes):
    assert "hashes" in refusal(hashes, [[(0, 4)], [None]])
