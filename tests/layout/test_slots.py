from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_examples import untimed

from ems.common.exception import InvalidArgument
from ems.layout.slots import check_distinct, check_range, parse_ints, runs_of, whole_blocks

block_sizes = st.integers(1, 6)


@st.composite
def chunked_slots(draw):
    """Stretches of ascending slots, as engines name them, cut into chunks at any place."""
    stretches = draw(
        st.lists(st.tuples(st.integers(0, 40), st.integers(1, 14)), min_size=1, max_size=8)
    )
    slots = [first + i for first, length in stretches for i in range(length)]
    cuts = draw(st.sets(st.integers(1, len(slots) - 1))) if len(slots) > 1 else set()
    edges = [0, *sorted(cuts), len(slots)]
    tokens = [end - start for start, end in pairwise(edges)]
    return np.array(slots, np.int64), np.array(tokens, np.int64)


def rows(runs):
    columns = (runs.slot, runs.length, runs.chunk, runs.position)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def chunks_of(slots, tokens):
    ends = np.cumsum(tokens)
    return [slots[end - n : end].tolist() for end, n in zip(ends, tokens, strict=True)]


@untimed
@given(chunked_slots(), block_sizes)
def test_expanding_the_runs_gives_back_the_slots_of_each_chunk(request_, block_size):
    slots, tokens = request_
    expanded = [[] for _ in tokens]
    for slot, length, chunk, position in rows(runs_of(slots, tokens, block_size)):
        assert position == len(expanded[chunk])
        expanded[chunk].extend(range(slot, slot + length))
    assert expanded == chunks_of(slots, tokens)


@untimed
@given(chunked_slots(), block_sizes)
def test_a_run_never_leaves_its_block(request_, block_size):
    for slot, length, _, _ in rows(runs_of(*request_, block_size)):
        assert length >= 1
        assert slot // block_size == (slot + length - 1) // block_size


@untimed
@given(chunked_slots(), block_sizes)
def test_two_runs_that_could_be_one_do_not_exist(request_, block_size):
    runs = rows(runs_of(*request_, block_size))
    for (slot, length, chunk, _), (following, _, its_chunk, _) in pairwise(runs):
        assert chunk != its_chunk or slot + length != following or following % block_size == 0


@untimed
@given(chunked_slots(), block_sizes, st.data())
def test_the_runs_of_some_chunks_are_those_that_filtering_finds(request_, block_size, data):
    slots, tokens = request_
    runs = runs_of(slots, tokens, block_size)
    wanted = sorted(data.draw(st.sets(st.integers(0, len(tokens) - 1))))
    found = runs.of_chunks(np.array(wanted, np.int64))
    assert rows(found) == [row for row in rows(runs) if row[2] in wanted]


@untimed
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=6),
    block_sizes,
    st.sampled_from(["whole", "shifted", "swapped", "shorter", "cut elsewhere"]),
)
def test_chunks_are_whole_blocks_exactly_where_each_is_one_run_of_a_block(blocks, size, change):
    slots = np.array([block * size + i for block in blocks for i in range(size)], np.int64)
    tokens = np.full(len(blocks), size, np.int64)
    if change == "shifted":
        slots += 1
    elif change == "swapped":
        slots[[0, -1]] = slots[[-1, 0]]
    elif change == "shorter" and size > 1:
        slots, tokens[-1] = slots[:-1], size - 1
    elif change == "cut elsewhere" and size > 1 and len(blocks) > 1:
        tokens[0], tokens[1] = tokens[0] - 1, tokens[1] + 1
    runs = runs_of(slots, tokens, size)
    each_one_block = runs.chunk.tolist() == list(range(len(tokens))) and (runs.length == size).all()
    found = whole_blocks(slots, tokens, size)
    assert (found is not None) == each_one_block
    if found is not None:
        assert found.tolist() == (runs.slot // size).tolist()


def test_as_many_slots_as_whole_blocks_have_may_still_be_cut_otherwise():
    slots = np.arange(8)
    assert whole_blocks(slots, np.array([4, 4]), 4).tolist() == [0, 1]
    assert whole_blocks(slots, np.array([3, 5]), 4) is None
    assert whole_blocks(slots, np.array([8]), 4) is None
    assert whole_blocks(slots, np.array([2, 2, 2, 2]), 4) is None


def test_a_partial_block_is_a_shorter_run():
    assert rows(runs_of(np.array([5, 6]), np.array([2]), 4)) == [(5, 2, 0, 0)]


def test_slots_out_of_order_are_runs_in_the_order_given():
    runs = runs_of(np.array([0, 2, 1, 3]), np.array([4]), 4)
    assert rows(runs) == [(0, 1, 0, 0), (2, 1, 0, 1), (1, 1, 0, 2), (3, 1, 0, 3)]


def test_slots_that_descend_or_stay_are_never_one_run():
    runs = runs_of(np.array([3, 2, 2]), np.array([3]), 8)
    assert runs.length.tolist() == [1, 1, 1]


class AsTensor:
    """Stands for a CPU tensor: all that is used of one is `__array__`."""

    def __init__(self, array):
        self.array = array

    def __array__(self, dtype=None, copy=None):
        return self.array


class OnDevice:
    def __array__(self, dtype=None, copy=None):
        raise TypeError("can't convert npu:0 device type tensor to numpy")


class NotAnIndex:
    """As a torch tensor of floats: it has `__index__`, and that refuses."""

    def __index__(self):
        raise TypeError("only integer tensors of a single element can be converted to an index")

    def __repr__(self):
        return "tensor(1.5)"


@pytest.mark.parametrize(
    "values",
    [
        [3, -1, 2**63 - 1],
        (3, -1, 2**63 - 1),
        [np.int64(3), np.int8(-1), np.uint64(2**63 - 1)],
        np.array([3, -1, 2**63 - 1]),
        np.array([3, -1, 2**63 - 1], ">i8"),
        AsTensor(np.array([3, -1, 2**63 - 1])),
    ],
)
def test_lists_arrays_and_tensors_of_ints_are_read_without_loss(values):
    parsed = parse_ints("slot_mapping", values)
    assert parsed.dtype == np.int64
    assert parsed.tolist() == [3, -1, 2**63 - 1]


def test_every_integer_dtype_is_read():
    for dtype in (np.int8, np.int16, np.int32, np.uint8, np.uint16, np.uint32, np.uint64):
        assert parse_ints("offsets", np.array([0, 1, 127], dtype)).tolist() == [0, 1, 127]


def test_a_range_is_a_list_of_ints():
    assert parse_ints("slot_mapping", range(4, 7)).tolist() == [4, 5, 6]


def test_every_other_element_of_a_strided_array_is_read():
    assert parse_ints("slot_mapping", np.arange(6)[::2]).tolist() == [0, 2, 4]


def test_the_array_may_be_reused_by_the_caller():
    slots = np.array([1, 2, 3])
    for given_ in (slots, AsTensor(slots)):
        parsed = parse_ints("slot_mapping", given_)
        slots[0] = 99
        assert parsed[0] == 1
        slots[0] = 1


@pytest.mark.parametrize(
    "bad",
    [
        *[1.0, 2.5, np.float64(1), np.float16(2), "3", b"3", None, [3]],
        *[2**63, -(2**63) - 1, 2**64, 10**5000, -(10**5000), NotAnIndex(), np.zeros(2)],
    ],
    ids=lambda bad: f"{bad!r:.12}" if not isinstance(bad, int) else f"{bad.bit_length()} bits",
)
def test_an_element_that_is_no_64_bit_int_is_refused_with_its_index(bad):
    with pytest.raises(InvalidArgument, match=r"slot_mapping\[2\] is .*, not a 64-bit int"):
        parse_ints("slot_mapping", [0, 1, bad, 3])


def test_the_first_of_several_bad_elements_is_named():
    with pytest.raises(InvalidArgument, match=r"offsets\[1\] is 'x', not a 64-bit int"):
        parse_ints("offsets", [0, "x", None])


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array([1.0]), "must hold integers, not float64"),
        (np.array([True]), "must hold integers, not bool"),
        (np.array(["1"]), "must hold integers, not <U1"),
        (np.array([1, None]), "must hold integers, not object"),
        (np.array([1], "m8[s]"), "must hold integers, not timedelta64"),
        (np.array([[1, 2]]), r"not an array of shape \(1, 2\)"),
        (np.array(5), r"not an array of shape \(\)"),
        (np.int64(5), r"not an array of shape \(\)"),
        (np.array([], np.int64), r"not an array of shape \(0,\)"),
        (np.array([1, 2**63], np.uint64), r"\[1\] is 9223372036854775808, not a 64-bit int"),
    ],
)
def test_an_array_of_something_else_is_refused(array, words):
    for given_ in (array, AsTensor(np.asarray(array))):
        with pytest.raises(InvalidArgument, match=f"offsets.*{words}"):
            parse_ints("offsets", given_)


@pytest.mark.parametrize("bad", [None, 5, "012", b"012", bytearray(b"012"), {1, 2}, object, 1.5])
def test_what_is_no_list_is_refused_with_the_argument(bad):
    with pytest.raises(InvalidArgument, match="slot_mapping must be a list of ints, not "):
        parse_ints("slot_mapping", bad)


@pytest.mark.parametrize("bad", [[], (), range(0)])
def test_an_empty_list_is_refused(bad):
    with pytest.raises(InvalidArgument, match="slot_mapping is empty"):
        parse_ints("slot_mapping", bad)


def test_a_tensor_on_the_device_is_refused():
    with pytest.raises(InvalidArgument, match="slot_mapping must be in host memory: can't convert"):
        parse_ints("slot_mapping", OnDevice())


@pytest.mark.parametrize(
    ("slots", "position", "value"),
    [
        ([0, 1, 2, -1], 3, -1),
        ([-1] * 4, 0, -1),
        ([28, 29, 30, 32], 3, 32),
        ([0, 2**40, 2, -1], 1, 2**40),
        ([-(2**63), 0], 0, -(2**63)),
        ([0, 2**63 - 1], 1, 2**63 - 1),
    ],
)
def test_a_slot_outside_the_cache_is_refused_with_position_and_value(slots, position, value):
    with pytest.raises(InvalidArgument) as failure:
        check_range("slot_mapping", np.array(slots), 32)
    words = f"slot_mapping[{position}] is slot {value}; the registered cache has slots 0 to 31"
    assert str(failure.value) == words


def test_the_first_and_the_last_slot_of_the_cache_are_legal():
    check_range("slot_mapping", np.array([0, 31]), 32)


@untimed
@given(st.lists(st.integers(0, 19), min_size=1, max_size=15))
def test_a_slot_named_twice_is_refused_with_both_positions(slots):
    try:
        check_distinct("slot_mapping", np.array(slots), 20)
    except InvalidArgument as failure:
        text = str(failure)
    else:
        text = ""
    repeats = {
        f"slot_mapping[{a}] and slot_mapping[{b}] are both slot {slots[a]}; "
        "a slot can be loaded once"
        for b in range(len(slots))
        for a in range(b)
        if slots[a] == slots[b]
    }
    assert text in (repeats or {""})
