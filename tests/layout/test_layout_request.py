"""The inputs of `cases.md` 16 to 19: slots, hashes and offsets that do not belong together."""

import numpy as np
import pytest
from layout_examples import k_and_v, layers

from ems.common.exception import InvalidArgument
from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.registration import register
from ems.layout.request import request_of_slots

BLOCK = 4
CACHE = register(k_and_v())  # 8 blocks of 4 tokens


def slots_of(*blocks):
    return [block * BLOCK + i for block in blocks for i in range(BLOCK)]


def request(slots, hashes, offsets, *, cache=CACHE, writes=True):
    return request_of_slots(cache, slots, hashes, offsets, writes=writes)


def refusal(*arguments, **options):
    with pytest.raises(InvalidArgument) as failure:
        request(*arguments, **options)
    return str(failure.value)


def test_whole_blocks_are_known_as_such():
    chunks = request(slots_of(6, 2), [143, 144], [BLOCK, BLOCK]).chunks[0]
    assert chunks.block_ids.tolist() == [6, 2]
    assert chunks.touched_blocks.tolist() == [6, 2]
    assert chunks.runs.slot.tolist() == [24, 8]


def test_parts_of_blocks_are_known_by_their_runs():
    made = request([9, 10, 4, 5, 6, 7, 8], [1, 2], [2, 5])
    chunks = made.chunks[0]
    assert list(made.hashes) == [1, 2]
    assert chunks.block_ids is None
    assert chunks.runs.slot.tolist() == [9, 4, 8]
    assert chunks.runs.chunk.tolist() == [0, 1, 1]
    assert chunks.touched_blocks.tolist() == [2, 1, 2]


def test_slots_hashes_and_offsets_may_be_arrays():
    made = request(np.array(slots_of(1)), np.array([-7]), np.array([BLOCK]))
    assert list(made.hashes) == [-7]
    assert made.chunks[0].block_ids.tolist() == [1]


def test_each_group_has_the_same_chunks():
    cache = register(k_and_v(), [StoreLayerGroupDesc(4, [0]), StoreLayerGroupDesc(4, [1])])
    made = request(slots_of(3), [5], [BLOCK], cache=cache)
    assert len(made.chunks) == 2
    assert made.chunks[0] is made.chunks[1]


@pytest.mark.parametrize(
    ("slots", "hashes", "offsets", "words"),
    [
        (
            slots_of(4, 5, 6, 7),
            [143, 144],
            [4, 4],
            "offsets add up to 8 tokens, slot_mapping has 16",
        ),
        (slots_of(6, 7)[:-1], [143, 144], [4, 4], "offsets add up to 8 tokens, slot_mapping has 7"),
        (slots_of(6, 7)[:6], [143, 144], [4, 4], "offsets add up to 8 tokens, slot_mapping has 6"),
        (slots_of(6, 7), [143, 144], [4, 3], "offsets add up to 7 tokens, slot_mapping has 8"),
        (slots_of(6, 7), [143, 144], [4], "there are 2 hashes and 1 offsets"),
        (slots_of(6, 7), [143], [4, 4], "there are 1 hashes and 2 offsets"),
        ([], [], [], "slot_mapping is empty"),
        (slots_of(6), [], [4], "hashes is empty"),
        (slots_of(6), [1], [], "offsets is empty"),
        (None, [1], [4], "slot_mapping must be a list of ints, not None"),
        (slots_of(6), None, [4], "hashes must be a list of ints, not None"),
        (slots_of(6), [1], None, "offsets must be a list of ints, not None"),
        (slots_of(6), [1], 4, "offsets must be a list of ints, not 4"),
        (slots_of(6), [1], [4.0], "offsets[0] is 4.0, not a 64-bit int"),
        (slots_of(6), [1, 2], [4, 0], "offsets[1] is 0; a hash owns at least one token"),
        (slots_of(6), [1, 2], [5, -1], "offsets[1] is -1; a hash owns at least one token"),
        (slots_of(6), [1, 2], [2**63 - 1, 2**63 - 1], f"offsets add up to {2**64 - 2} tokens"),
        (slots_of(6, 6), [1, 2], [4, 4], "slot_mapping[0] and slot_mapping[4] are both slot 24"),
        ([0, 1, 2, 1], [1], [4], "slot_mapping[1] and slot_mapping[3] are both slot 1"),
    ],
)
def test_lists_that_do_not_fit_together_are_refused_with_the_numbers(slots, hashes, offsets, words):
    assert words in refusal(slots, hashes, offsets)


@pytest.mark.parametrize("writes", [True, False], ids=["load", "save"])
@pytest.mark.parametrize(
    ("slots", "position", "value"),
    [
        ([0, 1, 2, -1], 3, -1),
        ([-1] * 4, 0, -1),
        ([28, 29, 30, 32], 3, 32),
        ([0, 1, 2, 2**40], 3, 2**40),
    ],
)
def test_a_slot_outside_the_cache_is_refused(slots, position, value, writes):
    words = refusal(slots, [151], [4], writes=writes)
    assert words.startswith(f"slot_mapping[{position}] is slot {value};")


def test_block_0_is_a_block_like_others():
    assert request(slots_of(0), [152], [4]).chunks[0].block_ids.tolist() == [0]


def test_the_smallest_plane_limits_the_slots():
    cache = register(layers([(8, 4, 1, 8), (6, 4, 1, 8)]))
    assert request(slots_of(5), [1], [4], cache=cache).chunks[0].block_ids.tolist() == [5]
    assert "slot_mapping[0] is slot 24;" in refusal(slots_of(6), [1], [4], cache=cache)


def test_the_smallest_group_limits_the_slots():
    cache = register(
        layers([(8, 4, 1, 8)], [(6, 4, 1, 8)]),
        [StoreLayerGroupDesc(4, [0]), StoreLayerGroupDesc(4, [1])],
    )
    assert "slots 0 to 23" in refusal(slots_of(6), [1], [4], cache=cache)


def test_a_save_may_read_a_slot_twice():
    assert request(slots_of(6, 6), [1, 2], [4, 4], writes=False).chunks[0].block_ids.tolist() == [
        6,
        6,
    ]


def test_a_block_may_be_partly_filled_and_a_hash_may_own_several():
    made = request([*slots_of(0, 2), 12, 13, 14], [1, 2], [8, 3])
    assert made.chunks[0].runs.length.tolist() == [4, 4, 3]
    assert made.chunks[0].tokens.tolist() == [8, 3]


def test_more_tokens_than_a_group_stores_under_one_hash_are_refused():
    cache = register(k_and_v(), [StoreLayerGroupDesc(4, [0]), StoreLayerGroupDesc(8, [1])])
    words = refusal(slots_of(0, 1, 2), [1, 2], [4, 8], cache=cache)
    assert words == (
        "offsets[1] is 8; store_layer_group_desc[0] stores at most 4 tokens under one hash"
    )
    assert request(slots_of(0), [1], [4], cache=cache)


def test_slots_say_nothing_where_groups_share_memory():
    [layer] = layers([(8, 4, 1, 8)])
    cache = register([layer, layer], [StoreLayerGroupDesc(4, [0]), StoreLayerGroupDesc(4, [1])])
    assert refusal(slots_of(0), [1], [4], cache=cache, writes=False) == (
        "slot_mapping is ambiguous: layer groups 0 and 1 share memory, a block belongs to one of "
        "them; pass chunk_descs"
    )


def test_slots_say_nothing_where_groups_have_blocks_of_different_sizes():
    cache = register(
        layers([(8, 4, 1, 8)], [(8, 2, 1, 8)]),
        [StoreLayerGroupDesc(4, [0]), StoreLayerGroupDesc(2, [1])],
    )
    words = refusal(slots_of(0), [1], [4], cache=cache)
    assert "slot_mapping is ambiguous: the layer groups have blocks of [2, 4] tokens" in words
    assert "chunk_descs" in words


@pytest.mark.parametrize("bad", [None, True, 1.0])
def test_a_hash_of_another_type_is_refused_with_its_index(bad):
    assert f"hashes[1] is {bad}" in refusal(slots_of(0, 1), [1, bad], [4, 4])


@pytest.mark.parametrize(
    "value", [0, -1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 2**256 - 1, b"\1" * 32, "ab" * 32]
)
def test_a_hash_arrives_unchanged(value):
    assert list(request(slots_of(0), [value], [4]).hashes) == [value]
