"""Token ids in place of hashes: the documented hash, the mask, and the slots that remain."""

import hashlib
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from layout_examples import k_and_v, layers, untimed

from ems.common.exception import InvalidArgument
from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.registration import register
from ems.layout.token_hash import token_hashes
from ems.layout.token_request import request_of_tokens

CACHE = register(k_and_v())  # 8 blocks of 4 tokens


def request(slots, tokens, mask=None, *, cache=CACHE, writes=True):
    return request_of_tokens(cache, slots, tokens, mask, writes=writes)


def refusal(*arguments, **options):
    with pytest.raises(InvalidArgument) as refused:
        request(*arguments, **options)
    return str(refused.value)


def documented(token_ids, block_size):
    """Return what the documentation of `token_hash` says, word by word."""
    digest = hashlib.sha256(b"ems token hash 1").digest()
    digests = []
    for start in range(0, len(token_ids), block_size):
        text = digest
        for token in token_ids[start : start + block_size]:
            text += int(token).to_bytes(8, "little", signed=True)
        digest = hashlib.sha256(text).digest()
        digests.append(digest)
    return digests


GOLDEN = [
    "53448ab6cf931f7389020fa4d0e61997f8bfcd75b2ba61c1f7d821595e79086e",
    "5f806946d1a8e9b5501aed808bb8f40c017ce066dda0459feb744a7bdee5d766",
]


def test_the_hashes_of_the_vendors_sample_never_change():
    made = token_hashes(np.array([101, 102, 103, 104, 105, 106]), 4)
    assert [digest.hex() for digest in made] == GOLDEN


@untimed
@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=40),
    st.integers(1, 9),
)
def test_a_hash_is_the_one_that_is_documented(tokens, block_size):
    assert token_hashes(np.array(tokens, np.int64), block_size) == documented(tokens, block_size)


@untimed
@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.lists(st.integers(0, 9), min_size=1, max_size=30),
    st.integers(1, 5),
)
def test_two_prompts_share_as_many_hashes_as_they_have_equal_blocks_in_front(one, other, size):
    shared = 0
    while shared < 30 and one[: (shared + 1) * size] == other[: (shared + 1) * size]:
        if shared * size >= len(one):
            break
        shared += 1
    mine, yours = (token_hashes(np.array(each), size) for each in (one, other))
    equal = [a == b for a, b in zip(mine, yours, strict=False)]
    assert equal.count(True) == min(shared, len(equal))
    assert all(equal[:shared])


def test_a_longer_partial_block_has_another_hash():
    digests = {token_hashes(np.arange(n), 4)[-1] for n in range(1, 12)}
    assert len(digests) == 11


def test_the_kind_of_integers_does_not_matter():
    tokens = [1, 2, 300, 4, 5]
    want = documented(tokens, 4)
    for kind in (np.int64, np.int32, np.uint16):
        made = request([0, 1, 2, 3, 4], np.array(tokens, kind))
        assert list(made.hashes) == want
    assert list(request([0, 1, 2, 3, 4], torch.tensor(tokens)).hashes) == want


def test_processes_agree_whatever_their_hash_seed():
    source = (
        "import numpy as np\n"
        "from ems.layout.token_hash import token_hashes\n"
        "print([each.hex() for each in token_hashes(np.array([101,102,103,104,105,106]), 4)])"
    )
    printed = [
        subprocess.run(
            [sys.executable, "-c", source],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        ).stdout.strip()
        for seed in ("0", "1", "random")
    ]
    assert set(printed) == {str(GOLDEN)}


def test_the_vendors_sample_saves_its_partial_last_block_alone():
    made = request([0, 1, 2, 3, 4, 5], [101, 102, 103, 104, 105, 106], [0, 0, 0, 0, 1, 1])
    [chunks] = made.chunks
    assert chunks.slots.tolist() == [4, 5]
    assert chunks.tokens.tolist() == [2]
    assert [each.hex() for each in made.hashes] == GOLDEN[1:]


def test_without_a_mask_all_tokens_are_meant():
    made = request([0, 1, 2, 3, 4, 5], [101, 102, 103, 104, 105, 106])
    assert made.chunks[0].tokens.tolist() == [4, 2]
    assert [each.hex() for each in made.hashes] == GOLDEN


@pytest.mark.parametrize(
    "mask",
    [
        [False, False, False, False, True, True],
        (0, 0, 0, 0, 1, 1),
        [0, False, 0, False, True, 1],
        np.array([0, 0, 0, 0, 1, 1]),
        np.array([0, 0, 0, 0, 1, 1], np.uint8),
        np.array([False] * 4 + [True] * 2),
        torch.tensor([0, 0, 0, 0, 1, 1]),
        torch.tensor([False] * 4 + [True] * 2),
    ],
    ids=repr,
)
def test_a_mask_is_of_ints_or_bools_in_any_container(mask):
    made = request([0, 1, 2, 3, 4, 5], [101, 102, 103, 104, 105, 106], mask)
    assert made.chunks[0].slots.tolist() == [4, 5]


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([0, 0, 0, 0, 1], "mask has 5 elements for 6 token_ids"),
        ([0, 0, 0, 0, 1, 0], "mask[5] is 0 after a 1; it must be zeros first, then ones"),
        ([1, 1, 1, 1, 0, 1], "mask[4] is 0 after a 1; it must be zeros first, then ones"),
        ([0, 0, 0, 0, 1, 2], "mask[5] is 2, neither 0 nor 1"),
        ([0, 0, -1, 0, 1, 1], "mask[2] is -1, neither 0 nor 1"),
        ([0, 0, 0, 1, 1, 1], "mask leaves out 3 tokens, which is no multiple of Block_size 4"),
        ([0, 0, 0, 0, 0, 1], "mask leaves out 5 tokens, which is no multiple of Block_size 4"),
        ([0, 0, 0, 0, 1, 1.0], "mask[5] is 1.0, not a 64-bit int"),
        ([0, 0, 0, 0, 1, None], "mask[5] is None, not a 64-bit int"),
        ([], "mask is empty"),
        ("000011", "mask must be a list of ints, not '000011'"),
        (1, "mask must be a list of ints, not 1"),
        (np.zeros(6), "mask must hold integers, not float64"),
        (np.zeros((1, 6), np.bool_), "mask must be a non-empty list of ints"),
        (torch.zeros(6), "mask must hold integers, not float32"),
    ],
)
def test_a_mask_that_is_no_prefix_of_whole_blocks_is_refused_by_position_and_value(mask, words):
    assert words in refusal([0, 1, 2, 3, 4, 5], [101, 102, 103, 104, 105, 106], mask)


def test_a_mask_of_zeros_leaves_nothing_to_do():
    assert request([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6], [0] * 6) is None


def test_slots_and_tokens_go_together_one_by_one():
    assert "there are 5 token_ids and 6 slots" in refusal([0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5])


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ([1, 2, 3, 4, "5", 6], "token_ids[4] is '5', not a 64-bit int"),
        ([1, 2, 3, 4, 5, 2**63], f"token_ids[5] is {2**63}, not a 64-bit int"),
        (np.ones(6), "token_ids must hold integers, not float64"),
        ("123456", "token_ids must be a list of ints"),
    ],
)
def test_a_token_that_is_no_integer_is_refused_by_position_and_value(tokens, words):
    assert words in refusal([0, 1, 2, 3, 4, 5], tokens)


def test_a_refused_slot_is_named_by_its_position_in_the_whole_list():
    tokens, mask = [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 1, 1]
    assert "slot_mapping[5] is slot 32" in refusal([0, 1, 2, 3, 4, 32], tokens, mask)
    assert "slot_mapping[4] is slot -1" in refusal([0, 1, 2, 3, -1, 5], tokens, mask)
    text = refusal([0, 1, 2, 3, 5, 5], tokens, mask)
    assert "slot_mapping[4] and slot_mapping[5] are both slot 5" in text


def test_slots_that_the_mask_leaves_out_are_not_looked_at():
    made = request([-1, -1, 99, 99, 4, 5], [1, 2, 3, 4, 5, 6], [0, 0, 0, 0, 1, 1])
    assert made.chunks[0].slots.tolist() == [4, 5]


@untimed
@given(st.integers(1, 30), st.data())
def test_what_a_mask_leaves_is_the_tail_of_the_whole_request(count, data):
    skipped = 4 * data.draw(st.integers(0, (count - 1) // 4))
    slots = data.draw(st.permutations(range(32)))[:count]
    tokens = data.draw(st.lists(st.integers(0, 99), min_size=count, max_size=count))
    made = request(slots, tokens, [0] * skipped + [1] * (count - skipped))
    whole = request(slots, tokens)
    assert list(made.hashes) == list(whole.hashes)[skipped // 4 :]
    assert made.chunks[0].slots.tolist() == slots[skipped:]
    assert made.chunks[0].tokens.tolist() == whole.chunks[0].tokens.tolist()[skipped // 4 :]


def test_groups_of_one_block_size_share_the_tokens_and_others_are_sent_to_chunk_descs():
    descs = [StoreLayerGroupDesc(4, [0]), StoreLayerGroupDesc(4, [1])]
    assert len(request([0, 1, 2, 3], [1, 2, 3, 4], cache=register(k_and_v(), descs)).chunks) == 2
    mixed = register(layers([(8, 4, 2, 8)], [(8, 2, 2, 8)]), descs)
    assert "pass chunk_descs" in refusal([0, 1, 2, 3], [1, 2, 3, 4], cache=mixed)
