import hashlib
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from layout_examples import untimed

from ems.common.exception import InvalidArgument
from ems.layout.key import Namespace, digest, key_prefix, make_keys, parse_hashes

NAMESPACE = Namespace("tenant", "model", "vllm", 2, 1, 1, 0)

edges = st.sampled_from([1 << n for n in (0, 8, 63, 64, 252, 255, 256, 257, 5000)])
ints = st.one_of(
    st.integers(),
    st.builds(
        lambda edge, sign, off: sign * (edge + off),
        edges,
        st.sampled_from([1, -1]),
        st.integers(-2, 2),
    ),
)
texts = st.one_of(st.text(min_size=1), st.from_regex(r"-?[0-9a-f]{1,70}", fullmatch=True))
hashes_of_all_kinds = st.one_of(
    ints,
    ints.map(str),
    ints.map(lambda n: f"{n:x}"),
    texts,
    texts.map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.binary(min_size=1),
)


@untimed
@given(st.lists(hashes_of_all_kinds, min_size=2, max_size=8))
def test_different_hashes_have_different_keys_and_equal_ones_the_same(hashes):
    keys = make_keys("p-", parse_hashes(hashes))
    told_apart = {(type(value), value) for value in hashes}
    assert len(set(keys)) == len(told_apart)


@untimed
@given(st.lists(hashes_of_all_kinds, min_size=1, max_size=8))
def test_a_key_does_not_depend_on_the_other_hashes_of_the_batch(hashes):
    assert make_keys("p-", hashes) == [make_keys("p-", [value])[0] for value in hashes]


@pytest.mark.parametrize("value", [16**63, 16**64 - 1, 16**64, -(16**63), 1 - 16**64, -(16**64)])
def test_a_wide_int_has_one_key_among_ints_and_among_digests(value):
    assert make_keys("p-", [value, 1])[0] == make_keys("p-", [value, "digest"])[0]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (-1, 2**64 - 1),
        (2**63, -(2**63)),
        (0, 2**64),
        (1, "1"),
        (1, b"1"),
        ("1", b"1"),
        ("ab", b"\xab"),
        (0xAB, "ab"),
        (0xAB, b"\xab"),
        (255, "255"),
        (2**5000, -(2**5000)),
        (2**5000, 2**5000 + 1),
        (b"\0", b"\0\0"),
        ("a" * 1000, "a" * 1001),
        ("a" * 1000, b"a" * 1000),
        ("é", "e\u0301"),
    ],
    ids=range(16),
)
def test_hashes_that_could_be_taken_for_each_other_are_not(one, other):
    assert make_keys("p-", [one]) != make_keys("p-", [other])
    assert len(set(make_keys("p-", [one, other]))) == 2


def test_a_digest_cannot_be_made_to_meet_the_key_of_a_long_hash():
    long = b"x" * 100
    same_digits = hashlib.sha256(long.hex().encode()).digest()
    assert make_keys("p-", [long])[0].endswith(same_digits.hex())
    assert make_keys("p-", [long]) != make_keys("p-", [same_digits])


@untimed
@given(hashes_of_all_kinds, st.integers(0, 10**6))
def test_a_key_is_short_printable_ascii(value, group):
    (key,) = make_keys(key_prefix(NAMESPACE, group, digest("layout")), [value])
    assert len(key) < 256
    assert key.isascii()
    assert key.isprintable()
    assert " " not in key


def test_a_key_is_the_same_in_every_process():
    # written down: another version of this library must find what this one stored
    prefix = key_prefix(NAMESPACE, 0, digest(["layout"]))
    program = (
        "from ems.layout.key import *\n"
        "prefix = key_prefix(Namespace('tenant', 'model', 'vllm', 2, 1, 1, 0), 0,"
        " digest(['layout']))\n"
        "print(*make_keys(prefix, [5, -5, 'd', b'd', 2**5000, 'd' * 100]), sep='\\n')"
    )
    command = [sys.executable, "-c", program]
    import_path = ":".join(filter(None, sys.path))
    printed = [
        subprocess.run(
            command,
            capture_output=True,
            check=True,
            text=True,
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": import_path},
        ).stdout.splitlines()
        for seed in ("1", "2")
    ]
    assert printed[0] == printed[1]
    assert printed[0] == make_keys(prefix, [5, -5, "d", b"d", 2**5000, "d" * 100])


def test_keys_are_written_like_this():
    assert make_keys("p-", [255]) == ["p-iff"]
    assert make_keys("p-", [255, -255, "d", b"\xff"]) == ["p-iff", "p-i-ff", "p-s64", "p-bff"]


def test_the_prefix_of_a_known_namespace_stays_as_it_is():
    assert key_prefix(NAMESPACE, 3, "f") == ("ems1-a4be58533593cf5a5ab3e8116b47500a-3-f-")


@pytest.mark.parametrize(
    "change",
    [
        {"access_id": None},
        {"access_id": "None"},
        {"access_id": "tenant2"},
        {"model_id": "model@revision"},
        {"llm_engine": "vllm@service"},
        {"tp_world_size": 4},
        {"tp_world_size": None},
        {"rank_in_tp_group": 0},
        {"rank_in_tp_group": None},
        {"pp_world_size": 2},
        {"rank_in_pp_group": 1},
        {"access_id": "tenantmodel", "model_id": ""},
        {"access_id": "", "model_id": "tenantmodel"},
        {"access_id": "tenan", "model_id": "tmodel"},
        {"access_id": 'tenant","model_id":"model'},
        {"model_id": "model" * 200},
        {"model_id": "model" * 200 + "x"},
        {"tp_world_size": 1, "rank_in_tp_group": 2},
        {"tp_world_size": 12, "rank_in_tp_group": 1},
        {"tp_world_size": 1, "rank_in_tp_group": 21},
    ],
    ids=str,
)
def test_a_namespace_that_differs_in_one_place_has_other_keys(change):
    assert key_prefix(replace(NAMESPACE, **change), 0, "f") != key_prefix(NAMESPACE, 0, "f")


names = st.text(max_size=6)
numbers = st.integers(0, 300)
namespaces = st.builds(
    Namespace,
    names | st.none(),
    names,
    names,
    numbers | st.none(),
    numbers | st.none(),
    numbers,
    numbers,
)


@untimed
@given(st.lists(namespaces, min_size=2, max_size=6, unique=True))
def test_different_namespaces_have_different_prefixes(different):
    for one, other in combinations(different, 2):
        assert key_prefix(one, 0, "f") != key_prefix(other, 0, "f")


def test_group_and_fingerprint_are_told_apart():
    prefixes = {key_prefix(NAMESPACE, group, digest(n)) for group in (1, 2, 12) for n in (1, 2, 12)}
    assert len(prefixes) == 9


@pytest.mark.parametrize(
    "hashes", [[3, -1], (3, -1), np.array([3, -1]), [np.int64(3), np.int8(-1)], [np.int64(3), -1]]
)
def test_numpy_ints_are_ints(hashes):
    parsed = parse_hashes(hashes)
    assert parsed == [3, -1]
    assert {type(value) for value in parsed} == {int}


def test_unsigned_hashes_keep_their_top_bit():
    assert parse_hashes(np.array([2**64 - 1], np.uint64)) == [2**64 - 1]
    assert parse_hashes([np.uint64(2**63)]) == [2**63]


def test_digests_are_kept_with_their_type():
    assert parse_hashes([1, "1", b"1"]) == [1, "1", b"1"]


class NotAnIndex:
    def __index__(self):
        raise TypeError("only integer tensors of a single element can be converted to an index")

    def __repr__(self):
        return "tensor(1.5)"


@pytest.mark.parametrize(
    "bad",
    [
        None,
        True,
        False,
        np.True_,
        1.0,
        np.float64(1),
        float("nan"),
        1j,
        [1],
        (),
        "",
        b"",
        bytearray(b"ab"),
        NotAnIndex(),
        np.zeros(2),
        object,
    ],
    ids=str,
)
def test_what_is_no_hash_is_refused_with_its_index(bad):
    with pytest.raises(InvalidArgument, match=r"hashes\[1\] is .*; a hash is an int, or a digest"):
        parse_hashes([7, bad, 9])


def test_an_array_of_floats_or_of_rows_is_refused_with_the_index():
    for bad in (np.array([1.0]), np.array([[1, 2]]), np.array([True])):
        with pytest.raises(InvalidArgument, match=r"hashes\[0\] is "):
            parse_hashes(bad)


@pytest.mark.parametrize("bad", [None, 5, 1.5, "ab", b"ab", bytearray(b"ab"), {1}, np.int64(5)])
def test_what_is_no_list_of_hashes_is_refused(bad):
    with pytest.raises(InvalidArgument, match="hashes must be a list of ints, not "):
        parse_hashes(bad)


@pytest.mark.parametrize("bad", [[], (), np.array([], np.int64)])
def test_no_hashes_are_refused(bad):
    with pytest.raises(InvalidArgument, match="hashes is empty"):
        parse_hashes(bad)


def test_the_list_may_be_reused_by_the_caller():
    hashes = [1, 2]
    parsed = parse_hashes(hashes)
    hashes[0] = 99
    assert parsed == [1, 2]
