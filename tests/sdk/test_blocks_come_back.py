import numpy as np
import pytest
import torch
import torch_npu
from preamble import BS, DEV, OPT, block, boot, buf, cache, planes, poison, same, sl

from ems import CcResult, ContextCaching, Ems, EmsErrorCode, EmsException
from ems.simulator.control import knobs


def refusal(call, *arguments):
    with pytest.raises(EmsException) as refused:
        call(*arguments)
    assert refused.value.status_code() == EmsErrorCode.EMS_INVALID_ARGUMENT
    return str(refused.value)


def test_the_blocks_belong_to_the_caller_again_once_the_save_has_ended(cc, kv):
    # case 1
    want = block(kv, 3)
    with knobs(DELAY="copy_d2h=500000"):
        future = cc.async_save(sl(3), [11], [BS], OPT)
        assert not cc.is_ready(future)
        assert future.result() == CcResult(1, 1)
    poison(kv, 3)
    assert cc.load(sl(5), [11], [BS], OPT) == CcResult(1, 1)
    assert same(block(kv, 5), want)


def test_the_contract_says_when_saved_blocks_may_be_used_again():
    # case 1
    said = " ".join(ContextCaching.async_save.__doc__.split())
    assert "must not be overwritten before the future has ended" in said


def test_a_save_on_a_side_stream_sees_what_was_queued_on_it(cc, kv):
    # case 2; the races themselves are in test_stream_order
    with knobs(DELAY="*=50000"), torch.npu.stream(torch.npu.Stream()):
        kv[0][0][2].fill_(7)
        future = cc.async_save(sl(2), [21], [BS], OPT)
        assert future.result().success == 1
    cc.load(sl(5), [21], [BS], OPT)
    assert (kv[0][0][5].cpu() == 7).all()


def test_strided_views_round_trip_and_nothing_beside_their_blocks_changes(cc):
    # case 4
    page, token = 2 * BS * 16 + 64, 16
    raw = torch.full((8 * page + 128,), 5.0, dtype=torch.float16, device=DEV)
    k = raw.as_strided((8, BS, 2, 8), (page, token, 8, 1), 128)
    v = raw.as_strided((8, BS, 2, 8), (page, token, 8, 1), 128 + BS * token)
    k.copy_(buf(8, seed=1))
    v.copy_(buf(8, seed=2))
    before = raw.clone()
    cc.register_kvcache([[k, v]])
    assert cc.save(sl(1), [41], [BS], OPT).success == 1
    assert cc.load(sl(6), [41], [BS], OPT).success == 1
    assert torch.equal(k[6].cpu(), k[1].cpu())
    assert torch.equal(v[6].cpu(), v[1].cpu())
    for view in (k, v):
        before.as_strided(view.shape, view.stride(), view.storage_offset())[6].copy_(view[1])
    assert torch.equal(raw.cpu(), before.cpu())


@pytest.mark.parametrize(
    "strides", [(64, 16, 1, 8), (0, 16, 8, 1), (32, 16, 8, 1), (128, 32, 8, 1)], ids=str
)
def test_strides_that_cannot_be_copied_are_refused_by_layer_plane_shape_and_stride(cc, strides):
    # case 4
    raw = torch.zeros(4096, dtype=torch.float16, device=DEV)
    bad = raw.as_strided((8, BS, 2, 8), strides)
    text = refusal(cc.register_kvcache, [[buf(8), bad]])
    for said in ("layer 0 plane 1", "[8, 4, 2, 8]", str(list(strides))):
        assert said in text


def test_the_second_dimension_is_the_block_size_whatever_the_numbers_suggest(cc):
    # case 5
    hnd = buf(8, shape=(2, 4, 8))
    cc.register_kvcache([[hnd, hnd.clone()]])
    assert cc.registration.groups[0].block_size == 2
    assert cc.registration.planes[0][0].heads == 4
    text = refusal(cc.save, sl(0), [51], [3], OPT)
    assert "4 slots" in text
    assert cc.save(sl(1, bs=2), [51], [2], OPT).success == 1


def test_a_permuted_view_is_refused_and_five_dimensions_are_told_to_pass_k_and_v_apart(cc):
    # case 5
    permuted = buf(8, shape=(2, 4, 8)).permute(0, 2, 1, 3)
    assert "layer 0 plane 0" in refusal(cc.register_kvcache, [[permuted, permuted]])
    fused = torch.zeros(2, 8, 4, 2, 8, dtype=torch.float16, device=DEV)
    assert "pass K and V as two tensors" in refusal(cc.register_kvcache, [[fused]])


def test_a_load_counts_the_leading_run_and_touches_nothing_behind_it(cc, kv):
    # case 6
    cc.save(sl(0, 1, 3), [51, 52, 54], [BS] * 3, OPT)
    poison(kv, 4, 5, 6, 7)
    untouched = block(kv, 6)
    assert cc.load(sl(4, 5, 6, 7), [51, 52, 53, 54], [BS] * 4, OPT) == CcResult(2, 4)
    assert same(block(kv, 4), block(kv, 0))
    assert same(block(kv, 5), block(kv, 1))
    assert same(block(kv, 6), untouched)
    assert same(block(kv, 7), untouched)
    assert cc.load(sl(4, 5), [53, 51], [BS] * 2, OPT) == CcResult(0, 2)


def test_what_exists_promised_may_be_gone_when_it_is_loaded(cc, kv):
    # case 7
    cc.save(sl(0, 1, 2), [61, 62, 63], [BS] * 3, OPT)
    assert cc.exists([61, 62, 63], OPT) == CcResult(3, 3)
    [gone] = [key for key in cc._pool.keys() if key.endswith(f"-i{62:x}")]  # noqa: SIM118
    cc._pool.remove([gone])
    assert cc.load(sl(4, 5, 6), [61, 62, 63], [BS] * 3, OPT) == CcResult(1, 3)
    assert "holds nothing" in ContextCaching.exists.__doc__


@pytest.mark.parametrize(
    "other",
    [
        {"dtype": torch.bfloat16},
        {"shape": (BS, 4, 4)},
        {"shape": (BS, 1, 16)},
        {"shape": (2 * BS, 1, 8)},
        {"layers": 1},
    ],
    ids=["bfloat16", "4 heads of 4", "1 head of 16", "blocks of 8", "one layer"],
)
def test_bytes_of_another_layout_are_misses_and_come_back_with_their_own(cc, kv, other):
    # case 9
    cc.save(sl(0), [81], [BS], OPT)
    cc.register_kvcache(cache(**other))
    assert cc.exists([81], OPT) == CcResult(0, 1)
    tokens = min(BS, other.get("shape", (BS,))[0])
    assert cc.load(sl(0)[:tokens], [81], [tokens], OPT) == CcResult(0, 1)
    cc.register_kvcache(cache())
    assert cc.exists([81], OPT) == CcResult(1, 1)


@pytest.mark.parametrize(
    ("slots", "hashes", "offsets"),
    [
        (sl(4, 5, 6, 7), [143, 144], [BS] * 2),
        (sl(6, 7)[:-1], [143, 144], [BS] * 2),
        (sl(6, 7), [143, 144], [BS]),
        (sl(6, 7)[:6], [143, 144], [BS] * 2),
        ([], [], []),
        (sl(6), [143], [0]),
        (sl(6), [143, 144], [-4, 8]),
        (sl(6), [143], [4.0]),
        (sl(6), None, [4]),
        (sl(6), [143], None),
        (None, [143], [4]),
    ],
)
def test_lists_that_do_not_fit_each_other_are_refused_before_a_byte_moves(
    cc, kv, slots, hashes, offsets
):
    # case 16
    cc.save(sl(0, 1), [143, 144], [BS] * 2, OPT)
    before = [block(kv, number) for number in range(4, 8)]
    assert refusal(cc.load, slots, hashes, offsets, OPT)
    assert refusal(cc.async_save, slots, hashes, offsets, OPT)
    assert all(same(block(kv, 4 + at), old) for at, old in enumerate(before))


def test_hashes_keep_every_bit_and_meet_no_other(cc):
    # case 17
    ints = [0, -1, 1, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 2**256 - 1, 2**400]
    hashes = [*ints, b"\x01" * 32, b"0", "0", "ab" * 32]
    for number, each in enumerate(hashes):
        assert cc.exists([each], OPT) == CcResult(0, 1), "meets another hash"
        assert cc.save(sl(number % 16), [each], [BS], OPT) == CcResult(1, 1)
    assert cc.exists(hashes, OPT) == CcResult(len(hashes), len(hashes))
    assert cc.exists([np.int64(-1), np.uint64(2**64 - 1)], OPT) == CcResult(2, 2)


@pytest.mark.parametrize("value", [None, True, 1.0, [1], {}, b"", ""], ids=repr)
def test_what_is_no_hash_is_refused_by_index(cc, value):
    # case 17
    for call in (
        lambda: cc.save(sl(0, 1), [5, value], [BS] * 2, OPT),
        lambda: cc.exists([5, value], OPT),
    ):
        assert "hashes[1]" in refusal(call)
    assert cc.exists([1], OPT) == CcResult(0, 1)


@pytest.mark.parametrize(
    ("slots", "bad"),
    [
        ([0, 1, 2, -1], (3, -1)),
        ([-1] * 4, (0, -1)),
        ([60, 61, 62, 64], (3, 64)),
        ([0, 1, 2, 2**40], (3, 2**40)),
        ([0, 1, 2, 2**70], (3, 2**70)),
    ],
)
def test_slots_outside_the_cache_are_refused_by_position_and_value(cc, slots, bad):
    # case 18
    position, value = bad
    for call in (cc.save, cc.load):
        text = refusal(call, slots, [151], [BS], OPT)
        assert f"slot_mapping[{position}]" in text
        assert str(value) in text
    assert cc.exists([151], OPT) == CcResult(0, 1)
    assert cc.save(sl(0), [152], [BS], OPT) == CcResult(1, 1)


def test_a_partial_block_keeps_its_token_count_until_a_fuller_version_replaces_it(cc, kv):
    # case 19
    cc.save(sl(0)[:3], [161], [3], OPT)
    poison(kv, 5, 6, 7)
    assert cc.load(sl(5)[:3], [161], [3], OPT) == CcResult(1, 1)
    for plane in planes(kv):
        assert torch.equal(plane[5, :3].cpu(), plane[0, :3].cpu())
        assert (plane[5, 3].cpu() == -9).all()
    untouched = block(kv, 6)
    assert cc.load(sl(6), [161], [BS], OPT) == CcResult(0, 1)
    assert same(block(kv, 6), untouched)
    assert cc.save(sl(0), [161], [BS], OPT) == CcResult(1, 1)
    assert cc.load(sl(7), [161], [BS], OPT) == CcResult(1, 1)
    assert same(block(kv, 7), block(kv, 0))


@pytest.mark.parametrize("slots", [[0, 2, 1, 3], [2, 3, 8, 9], [3, 2, 1, 0]], ids=str)
def test_tokens_are_copied_in_the_order_that_was_given(cc, kv, slots):
    # case 19
    assert cc.save(slots, [162], [BS], OPT).success == 1
    assert cc.load(sl(7), [162], [BS], OPT).success == 1
    for plane in planes(kv):
        tokens = plane.reshape(-1, 2, 8).cpu()
        assert torch.equal(tokens[28:32], tokens[slots])


def test_registering_again_waits_for_running_saves_and_keeps_their_bytes(cc, kv):
    # case 30
    want = block(kv, 0)
    grown = cache(blocks=32)
    with knobs(DELAY="copy_d2h=200000"):
        future = cc.async_save(sl(0), [211], [BS], OPT)
        cc.register_kvcache(grown)
        assert cc.is_ready(future)
    assert future.result() == CcResult(1, 1)
    assert cc.load(sl(28), [211], [BS], OPT) == CcResult(1, 1)
    assert same(block(grown, 28), want)


def test_an_equal_registration_neither_waits_nor_changes_anything(cc, kv):
    # case 30
    with knobs(DELAY="copy_d2h=800000"):
        future = cc.async_save(sl(0), [212], [BS], OPT)
        cc.register_kvcache(kv)
        assert not cc.is_ready(future)
        assert future.result() == CcResult(1, 1)
    assert cc.exists([212], OPT).success == 1


def test_a_registration_that_is_refused_leaves_the_earlier_one_in_force(cc, kv):
    # case 30
    refusal(cc.register_kvcache, [[kv[0][0].cpu()]])
    assert cc.save(sl(0), [213], [BS], OPT) == CcResult(1, 1)


def test_registered_tensors_stay_though_the_caller_has_let_them_go(cc):
    # case 30
    kv = cache(blocks=8)
    want = block(kv, 1)
    cc.register_kvcache(kv)
    del kv
    torch.npu.empty_cache()
    others = cache(layers=8)
    assert cc.save(sl(1), [214], [BS], OPT).success == 1
    cc.register_kvcache(cache(blocks=12))
    del others
    fresh = cache(blocks=9)
    cc.register_kvcache(fresh)
    cc.load(sl(8), [214], [BS], OPT)
    assert same(block(fresh, 8), want)


def test_a_private_format_is_refused_by_layer_and_name(cc):
    # case 32; the simulated NPU keeps the flag, not the order of the bytes
    plain = torch.zeros(4, 16, 2, 16, dtype=torch.float16, device=DEV)
    torch.npu.config.allow_internal_format = True
    try:
        private = torch_npu.npu_format_cast(plain, 29)
    finally:
        torch.npu.config.allow_internal_format = False
    assert torch_npu.get_npu_format(private) == 29
    text = refusal(cc.register_kvcache, [[plain, private]])
    assert "layer 0 plane 1" in text
    assert "FRACTAL_NZ" in text


def test_a_key_that_is_there_counts_and_is_not_rewritten(cc, kv):
    # case 41
    assert cc.save(sl(0), [271], [BS], OPT) == CcResult(1, 1)
    assert cc.save(sl(1), [271], [BS], OPT) == CcResult(1, 1)
    assert cc.save(sl(1, 2), [271, 272], [BS] * 2, OPT) == CcResult(2, 2)
    first, second = (cc.async_save(sl(at), [273], [BS], OPT) for at in (3, 4))
    assert (first.result(), second.result()) == (CcResult(1, 1), CcResult(1, 1))
    cc.load(sl(5, 6), [271, 273], [BS] * 2, OPT)
    assert same(block(kv, 5), block(kv, 0))
    assert same(block(kv, 6), block(kv, 3))


def test_a_full_hit_is_reported_in_full(cc):
    # case 54; it is the engine that leaves out the last token
    cc.save(sl(0, 1), [51, 52], [BS] * 2, OPT)
    assert cc.exists([51, 52], OPT) == CcResult(2, 2)
    assert cc.load(sl(4, 5), [51, 52], [BS] * 2, OPT) == CcResult(2, 2)


def test_loading_into_one_slot_twice_is_refused(cc):
    assert "slot_mapping" in refusal(cc.load, [0, 1, 2, 2], [1], [BS], OPT)
    assert "slot_mapping" in refusal(cc.load, sl(0, 0), [1, 2], [BS] * 2, OPT)


def test_a_save_followed_at_once_by_a_load_finds_it(cc, kv):
    for turn in range(30):
        saving = cc.async_save(sl(turn % 8), [500 + turn], [BS], OPT)
        loading = cc.async_load(sl(8 + turn % 8), [500 + turn], [BS], OPT)
        assert loading.result() == CcResult(1, 1)
        assert cc.is_ready(saving)
    assert same(block(kv, 8), block(kv, 0))


def test_ranks_and_tenants_have_keys_of_their_own():
    prefixes = set()
    for fields in ({}, {"model_id": "m-b"}, {"access_id": "t2"}, {"tp_world_size": 2}):
        Ems.shutdown()
        cc = boot(**fields)
        cc.register_kvcache(cache())
        cc.save(sl(0), [1], [BS], OPT)
        prefixes.update(cc._pool.keys())
    assert len(prefixes) == 4
