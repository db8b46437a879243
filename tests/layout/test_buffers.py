"""Keys and buffers: what is refused, by index and value, and which spans a part stands for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_examples import untimed

from ems.common.addressing import KvBufferWrapper, PrimaryKey
from ems.common.exception import InvalidArgument
from ems.layout.buffers import name_of_buffer, part_of_buffers

KB = KvBufferWrapper
AT = 0x10000


def part(keys, values, *, writes=False):
    return part_of_buffers(keys, values, key_prefix="p-", writes=writes)


def refusal(keys, values, *, writes=False):
    with pytest.raises(InvalidArgument) as refused:
        part(keys, values, writes=writes)
    return str(refused.value)


def test_a_key_is_stored_under_the_callers_prefix_and_sized_by_its_buffers():
    made = part(["a", "b"], [[KB(AT, 3), KB(AT + 8, 5)], [KB(AT + 64, 7)]])
    assert len(set(made.keys)) == 2
    assert all(key.startswith("p-") for key in made.keys)
    assert made.nbytes.tolist() == [8, 7]
    assert made.tokens.tolist() == [8, 7]
    assert made.window is None


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (None, "key_list must be a non-empty list of str, not None"),
        ([], "key_list must be a non-empty list of str, not []"),
        ("ab", "key_list must be a non-empty list of str, not 'ab'"),
        ({"a": 1}, "key_list must be"),
        (["a", ""], "key_list[1] must be a str of 1 to 127 characters, not ''"),
        (["a", 7], "key_list[1] must be a str of 1 to 127 characters, not 7"),
        (["a", None], "key_list[1] must be a str of 1 to 127 characters, not None"),
        (["a", b"b"], "key_list[1] must be a str of 1 to 127 characters, not b'b'"),
        (["a", ["b"]], "key_list[1] must be a str of 1 to 127 characters, not ['b']"),
        ([PrimaryKey(3), "a"], "key_list[0] must be a str of 1 to 127 characters, not PrimaryKey"),
        (["a", "k" * 128], "key_list[1] must be a str of 1 to 127 characters, not 'kkk"),
        (["a", "a"], "key_list[1] repeats key_list[0]: 'a'; keys must differ"),
        ([PrimaryKey("a"), "a"], "key_list[1] repeats key_list[0]: 'a'; keys must differ"),
    ],
)
def test_what_is_no_list_of_different_keys_is_refused_by_index_and_value(keys, words):
    assert words in refusal(keys, [[KB(AT, 1)], [KB(AT, 1)]])


def test_a_key_has_up_to_127_characters_of_any_kind():
    keys = ["k" * 127, "vllm@t@pp0@tp8@0@-845813920368252098", "ü" * 127, "\ud800", " "]
    assert len(set(part(keys, [[KB(AT, 1)]] * len(keys)).keys)) == len(keys)


def test_a_primary_key_stands_for_its_text_and_so_does_any_object_that_has_one():
    class Own:
        key = "a"

    texts = [part([key], [[KB(AT, 1)]]).keys for key in ("a", PrimaryKey("a"), Own())]
    assert texts[0] == texts[1] == texts[2]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (None, "value_list must be a list of lists, not None"),
        (KB(AT, 1), "there are 1 keys and 2 values"),
        ([], "there are 1 keys and 0 values"),
        ([[KB(AT, 1)]] * 2, "there are 1 keys and 2 values"),
        ([[]], "value_list[0] must be a non-empty list of KvBufferWrapper, not []"),
        ([None], "value_list[0] must be a non-empty list of KvBufferWrapper, not None"),
        ([iter([KB(AT, 1)])], "value_list[0] must be a non-empty list of KvBufferWrapper"),
        ([KB(AT, 1)], f"value_list[0][0] must be a KvBufferWrapper, not {AT}"),
        ([[KB(AT, 1), None]], "value_list[0][1] must be a KvBufferWrapper, not None"),
        ([[KB(AT, 1), (AT, 1)]], f"value_list[0][1] must be a KvBufferWrapper, not ({AT}, 1)"),
        ([[KB(AT, 1), AT]], f"value_list[0][1] must be a KvBufferWrapper, not {AT}"),
    ],
)
def test_what_is_no_list_of_buffers_is_refused_by_index_and_value(values, words):
    assert words in refusal(["a"], values)


class Tensor:
    """As the vendor's own sample passes it: `KvBufferWrapper(tensor.data_ptr, n)`."""

    def data_ptr(self):
        return AT


class Refusing:
    def __index__(self):
        raise TypeError("only integer tensors of a single element can be an index")

    def __repr__(self):
        return "tensor(1.)"


BAD_NUMBERS = [
    (0, "is 0; it must be positive and below 2^63"),
    (-1, "is -1; it must be positive and below 2^63"),
    (2**63, f"is {2**63}; it must be positive and below 2^63"),
    (2**64 + AT, f"is {2**64 + AT}; it must be positive and below 2^63"),
    (-(2**70), f"is {-(2**70)}; it must be positive and below 2^63"),
    (True, "must be an int, not True"),
    (False, "must be an int, not False"),
    (None, "must be an int, not None"),
    (1.0, "must be an int, not 1.0"),
    ("8", "must be an int, not '8'"),
    (len, "must be an int, not <built-in function len>; call it: "),
    (Refusing(), "must be an int, not tensor(1.)"),
    (np.array([1, 2]), "must be an int, not array([1, 2])"),
    (np.float64(8), "must be an int, not "),
]


@pytest.mark.parametrize("field", ["data_ptr", "length"])
@pytest.mark.parametrize(("number", "words"), BAD_NUMBERS, ids=lambda each: repr(each)[:30])
def test_a_number_that_is_no_address_or_length_is_refused_by_index_field_and_value(
    field, number, words
):
    bad = KB(AT, 8)._replace(**{field: number})
    text = refusal(["a", "b"], [[KB(AT, 8)], [KB(AT, 8), bad]])
    assert f"value_list[1][1].{field} {words}" in text


def test_the_method_in_place_of_the_address_is_refused_with_the_missing_brackets():
    text = refusal(["a"], [[KB(Tensor().data_ptr, 8)]])
    assert "value_list[0][0].data_ptr must be an int" in text
    assert "call it: data_ptr()" in text


@pytest.mark.parametrize("length", [2**63 - 1, 2**63 - AT])
def test_a_length_that_ends_beyond_the_address_space_is_refused_and_wraps_around_nowhere(length):
    text = refusal(["a", "b"], [[KB(AT, 8)], [KB(AT, length)]])
    assert f"value_list[1][0] is {length} bytes at 0x10000; it must end below 2^63" in text
    assert part(["a"], [[KB(AT, 2**63 - AT - 1)]]).nbytes.tolist() == [2**63 - AT - 1]


def test_integers_of_numpy_are_integers_and_tuples_are_lists():
    made = part(("a",), ((KB(np.int64(AT), np.uint32(8)),),))
    assert (made.addresses.tolist(), made.lengths.tolist()) == ([AT], [8])


def test_one_byte_at_address_one_is_a_buffer_like_others():
    assert part(["a"], [[KB(1, 1)]]).nbytes.tolist() == [1]


@pytest.mark.parametrize(
    ("values", "names"),
    [
        ([[KB(AT, 8)], [KB(AT + 7, 8)]], "value_list[0][0] and value_list[1][0]"),
        ([[KB(AT + 7, 8)], [KB(AT, 8)]], "value_list[0][0] and value_list[1][0]"),
        ([[KB(AT, 8), KB(AT, 8)], [KB(1, 1)]], "value_list[0][0] and value_list[0][1]"),
        ([[KB(AT, 100), KB(AT + 200, 1)], [KB(AT + 50, 1)]], "value_list[0][0] and value_list[1]"),
    ],
)
def test_buffers_that_overlap_are_refused_in_a_load_by_name_and_fine_in_a_save(values, names):
    assert f"{names}" in refusal(["a", "b"], values, writes=True)
    assert "overlap; a byte can be loaded once" in refusal(["a", "b"], values, writes=True)
    assert part(["a", "b"], values).counts.sum() == sum(map(len, values))


def test_buffers_that_touch_do_not_overlap():
    assert part(["a"], [[KB(AT + 8, 8), KB(AT, 8), KB(AT + 16, 1)]], writes=True)


rows = st.lists(
    st.lists(st.tuples(st.integers(1, 400), st.integers(1, 40)), min_size=1, max_size=4),
    min_size=1,
    max_size=6,
)


@untimed
@given(rows)
def test_overlap_is_found_exactly_where_a_byte_is_named_twice(values):
    keys = [str(at) for at in range(len(values))]
    wrapped = [[KB(*pair) for pair in pairs] for pairs in values]
    named = [at for pairs in values for start, n in pairs for at in range(start, start + n)]
    if len(named) == len(set(named)):
        assert part(keys, wrapped, writes=True)
    else:
        assert "overlap" in refusal(keys, wrapped, writes=True)


@untimed
@given(rows, st.data())
def test_spans_move_the_bytes_of_each_chosen_value_in_order(values, data):
    made = part([str(at) for at in range(len(values))], [[KB(*p) for p in v] for v in values])
    which = sorted(data.draw(st.sets(st.integers(0, len(values) - 1), min_size=1)))
    device = np.random.default_rng(0).integers(0, 256, 500, np.uint8)
    host = np.zeros(len(values) * 200, np.uint8)
    places = np.array([at * 200 for at in which], np.uint64)
    spans = made.spans(np.array(which), places, made.tokens[which])
    columns = (spans.device, spans.host, spans.nbytes)
    assert {column.dtype.name for column in columns} == {"uint64"}
    for source, to, n in zip(*(column.tolist() for column in columns), strict=True):
        host[to : to + n] = device[source : source + n]
    for at in range(len(values)):
        want = [device[start : start + n] for start, n in values[at]] if at in which else []
        joined = np.concatenate(want) if want else np.zeros(0, np.uint8)
        assert host[at * 200 : at * 200 + joined.size].tolist() == joined.tolist()
        assert not host[at * 200 + joined.size : (at + 1) * 200].any()


@untimed
@given(rows)
def test_the_places_of_a_part_hold_every_byte_it_touches(values):
    far = [[KB(start << 19, n << 17) for start, n in pairs] for pairs in values]
    made = part([str(at) for at in range(len(values))], far)
    touched = {
        at >> 20
        for pairs in far
        for start, n in pairs
        for at in (*range(start, start + n, 1 << 20), start + n - 1)
    }
    assert made.places == sorted(touched)


def test_a_buffer_is_called_by_its_key_and_its_place_in_it():
    made = part(["a", "b", "c"], [[KB(1, 1)], [KB(2, 1), KB(3, 1)], [KB(4, 1)]])
    assert [name_of_buffer(made, row) for row in range(4)] == [
        "value_list[0][0]",
        "value_list[1][0]",
        "value_list[1][1]",
        "value_list[2][0]",
    ]
