"""What the SDK's documentation leaves open, decided: each decision and the tests that hold it."""

import ast
from pathlib import Path

import pytest
import torch
from preamble import BS, DEV, OPT, POOL, block, boot, buf, cache, planes, poison, same, sl

from ems import (
    CcConfig,
    CcConfig_v1,
    CcResult,
    Ems,
    EmsConfig,
    EmsErrorCode,
    EmsException,
    KvBufferWrapper,
    KVCacheType,
)

DECISIONS = {
    "timeout=0": [
        "test_no_limit_means_that_a_slow_request_ends_well",
        "test_a_time_out_that_is_no_count_of_milliseconds_is_refused",
    ],
    "a second Ems.init": [
        "test_an_equal_second_init_changes_nothing",
        "test_a_different_second_init_is_refused_and_the_first_stays",
        "test_after_a_refused_init_another_one_works",
    ],
    "both cc_config and cc_config_v1": [
        "test_both_configurations_are_refused",
        "test_a_v1_configuration_in_the_other_place_is_taken_for_what_it_is",
    ],
    "neither": ["test_without_a_cc_config_init_succeeds_and_there_is_no_object"],
    "pool not up at Ems.init": [
        "test_the_client_comes_back_once_the_pool_is_up",
        "test_a_status_code_is_compared_and_has_a_name",
    ],
    "shut-down": [
        "test_shutdown_can_be_repeated_and_init_works_afterwards",
        "test_every_call_after_shutdown_is_refused_with_what_to_do",
    ],
    "V0 and V1 on one object": ["test_both_kinds_of_calls_work_on_either_configuration"],
    "V0 keys": ["test_keys_of_the_callers_own_are_kept_apart_by_tenant_and_model_alone"],
    "V1 IO before registration": [
        "test_every_request_before_a_registration_says_what_is_missing",
        "test_keys_and_buffers_need_no_registered_cache_and_every_other_form_says_that_it_does",
    ],
    "re-registration": [
        "test_registering_again_waits_for_running_saves_and_keeps_their_bytes",
        "test_an_equal_registration_neither_waits_nor_changes_anything",
        "test_registered_tensors_stay_though_the_caller_has_let_them_go",
    ],
    "wrong argument type or value": [
        "test_random_calls_end_in_results_or_failures_of_the_sdk",
        "test_a_wrong_field_of_a_configuration_is_refused_by_name_and_value",
    ],
    "unknown kwargs, or two semantics mixed": [
        "test_a_name_that_no_form_knows_is_refused_also_where_it_is_none",
        "test_of_all_combinations_of_arguments_only_the_four_forms_are_taken",
    ],
    "hashes": [
        "test_hashes_keep_every_bit_and_meet_no_other",
        "test_what_is_no_hash_is_refused_by_index",
    ],
    "offsets[i] != Block_size": [
        "test_a_hash_may_own_several_blocks_and_fewer_tokens_than_stored_may_be_loaded",
        "test_a_partial_block_keeps_its_token_count_until_a_fuller_version_replaces_it",
    ],
    "a fuller version of a stored partial block": [
        "test_a_partial_block_keeps_its_token_count_until_a_fuller_version_replaces_it",
        "test_a_shorter_or_equal_version_of_what_is_stored_counts_and_changes_nothing",
    ],
    "repeats in one batch": [
        "test_a_repeat_in_one_save_shares_the_fate_of_the_first",
        "test_loading_into_one_slot_twice_is_refused",
    ],
    "slots < 0 or beyond the cache": [
        "test_slots_outside_the_cache_are_refused_by_position_and_value",
    ],
    "unequal GPU_blocks inside a group": ["test_the_smallest_plane_is_the_limit_and_warned_about"],
    "inner list": ["test_layers_of_three_two_and_one_planes_keep_their_shapes_and_bytes"],
    "3-D tensor": ["test_tensors_of_three_dimensions_as_the_connectors_pass_them"],
    "tensors with a padded block stride or a storage offset": [
        "test_strided_views_round_trip_and_nothing_beside_their_blocks_changes",
        "test_strides_that_cannot_be_copied_are_refused_by_layer_plane_shape_and_stride",
    ],
    "private NPU format": ["test_a_private_format_is_refused_by_layer_and_name"],
    "tensors not on an NPU, or on two NPUs": [
        "test_a_vendor_sample_with_tensors_on_the_cpu_is_refused_by_layer_plane_and_device",
        "test_planes_on_two_devices_are_refused_with_both",
        "test_a_rank_beyond_the_local_devices_is_fine_and_another_device_is_only_warned_about",
    ],
    "the same tensor registered twice": [
        "test_planes_that_cover_the_same_bytes_are_refused_by_name_or_moved_once",
    ],
    "exists on an IO fault": [
        "test_exists_answers_0_when_the_pool_fails_and_the_counters_say_why",
        "test_a_pool_that_stays_away_is_warned_about_once_until_it_has_answered_again",
    ],
    "key": [
        "test_ranks_tenants_models_engines_and_world_sizes_have_keys_of_their_own",
        "test_all_tensor_parallel_ranks_of_an_mla_model_have_the_same_keys_and_no_others_do",
        "test_bytes_of_another_layout_are_misses_and_come_back_with_their_own",
    ],
    "PrimaryKey, ChunkDesc": [
        "test_a_primary_key_stands_for_its_text_and_so_does_any_object_that_has_one",
        "test_a_chunk_is_an_object_a_pair_or_a_dict_with_start_and_length",
    ],
    "token semantics": [
        "test_a_hash_is_the_one_that_is_documented",
        "test_the_hashes_of_the_vendors_sample_never_change",
        "test_processes_agree_whatever_their_hash_seed",
        "test_token_ids_find_what_token_ids_saved_and_the_mask_leaves_out_its_prefix",
    ],
}


def test_each_decision_is_held_by_tests_that_exist():
    names = {
        node.name
        for path in Path(__file__).parent.parent.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    missing = {name for held in DECISIONS.values() for name in held} - names
    assert not missing
    assert all(DECISIONS.values())


def refusal(call, *arguments, **named):
    with pytest.raises(EmsException) as refused:
        call(*arguments, **named)
    assert refused.value.status_code() == EmsErrorCode.EMS_INVALID_ARGUMENT
    return str(refused.value)


@pytest.mark.parametrize("timeout", [-1, 1.5, "5000", None, True], ids=repr)
def test_a_time_out_that_is_no_count_of_milliseconds_is_refused(cc, timeout):
    option = type(OPT)(timeout=timeout)
    for call in (
        lambda: cc.save(sl(0), [1], [BS], option),
        lambda: cc.async_load(sl(0), [1], [BS], option),
        lambda: cc.exists([1], option),
        lambda: cc.save(option, ["k"], [[KvBufferWrapper(1, 1)]]),
    ):
        assert f"not {timeout!r}" in refusal(call)


def test_a_v1_configuration_in_the_other_place_is_taken_for_what_it_is():
    config = CcConfig_v1(rank_id=0, device_id=0, model_id="m-a", kvcache_type="MLA")
    Ems.init(EmsConfig(cc_config=config, pool=POOL))
    assert boot(kvcache_type=KVCacheType.MLA) is Ems.get_cc(), "the same configuration"


@pytest.mark.parametrize(
    "config",
    [
        {"cc_config": CcConfig(rank_id=8, device_id=0, model_id="m")},
        {"cc_config_v1": CcConfig_v1(rank_id=8, device_id=0, model_id="m")},
    ],
    ids=["V0", "V1"],
)
def test_both_kinds_of_calls_work_on_either_configuration(config):
    Ems.init(EmsConfig(**config, pool=POOL))
    cc, kv = Ems.get_cc(), cache()
    buffers = [
        [KvBufferWrapper(plane[at].data_ptr(), plane[at].nbytes) for plane in planes(kv)]
        for at in range(16)
    ]
    want = block(kv, 1)
    assert cc.save(OPT, ["one"], [buffers[1]]) == CcResult(1, 1)
    assert cc.load(OPT, ["one", "two"], [buffers[5], buffers[6]]) == CcResult(1, 2)
    assert same(block(kv, 5), want)
    cc.register_kvcache(kv)
    assert cc.save(sl(1), [1], [BS], OPT) == CcResult(1, 1)
    assert cc.load(sl(7), [1], [BS], OPT) == CcResult(1, 1)
    assert same(block(kv, 7), want)
    future = cc.async_load(option=OPT, key_list=["one"], value_list=[buffers[8]])
    assert cc.get_result(future) == CcResult(1, 1)
    assert same(block(kv, 8), want)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rank_id", -1),
        ("rank_id", "0"),
        ("rank_id", True),
        ("device_id", -1),
        ("model_id", ""),
        ("model_id", None),
        ("model_id", "m" * 513),
        ("model_id", "a\nb"),
        ("tp_world_size", 0),
        ("pp_world_size", 1.0),
        ("rank_in_tp_group", -1),
        ("rank_in_pp_group", None),
        ("llm_engine", 7),
        ("kvcache_type", "GMA"),
        ("kvcache_type", None),
        ("kvcache_type", []),
        ("access_id", 7),
        ("access_id", ""),
        ("pool", 7),
    ],
    ids=str,
)
def test_a_wrong_field_of_a_configuration_is_refused_by_name_and_value(field, value):
    text = refusal(lambda: boot(**{field: value}))
    assert f".{field} " in text
    assert repr(value)[:40] in text
    assert Ems.get_cc() is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"tp_world_size": 2, "rank_in_tp_group": 2}, "rank_in_tp_group is 2, tp_world_size only"),
        ({"rank_in_pp_group": 1}, "rank_in_pp_group is 1, pp_world_size only 1"),
        ({"access_id": "store@_@ns"}, "access_id 'store@_@ns' has characters that the SDK does"),
    ],
    ids=str,
)
def test_what_is_legal_and_often_a_mistake_is_warned_about_once(fields, words, caplog):
    cc = boot(**fields)
    assert boot(**fields) is cc
    [warning] = [each for each in caplog.messages if each.startswith("Ems.init")]
    assert words in warning


def test_what_is_as_documented_is_not_warned_about(caplog):
    boot(access_id="tenant-1.a_b", rank_id=8, tp_world_size=4, rank_in_tp_group=3)
    assert not [each for each in caplog.messages if each.startswith("Ems.init")]


@pytest.mark.parametrize("model_id", ["m" * 512, "ü@_~ name", "m"])
def test_a_model_may_be_called_anything_that_can_be_printed(model_id):
    assert boot(model_id=model_id) is not None


def test_a_hash_may_own_several_blocks_and_fewer_tokens_than_stored_may_be_loaded(cc, kv):
    want = [block(kv, at) for at in (3, 9, 1)]
    assert cc.save(sl(3, 9, 1), [7], [3 * BS], OPT) == CcResult(1, 1)
    poison(kv, 4, 5, 6)
    assert cc.load(sl(4, 5), [7], [2 * BS], OPT) == CcResult(1, 1)
    assert same(block(kv, 4), want[0])
    assert same(block(kv, 5), want[1])
    assert all(bool((part == -9).all()) for part in block(kv, 6))
    assert cc.load(sl(4, 5, 6, 7), [7], [4 * BS], OPT) == CcResult(0, 1)
    assert cc.load(sl(6, 5, 4), [7], [3 * BS], OPT) == CcResult(1, 1)
    assert same(block(kv, 4), want[2])


@pytest.mark.parametrize("tokens", [1, 2, 3])
def test_a_shorter_or_equal_version_of_what_is_stored_counts_and_changes_nothing(cc, kv, tokens):
    assert cc.save(sl(0)[:3], [1], [3], OPT) == CcResult(1, 1)
    assert cc.save(sl(1)[:tokens], [1], [tokens], OPT) == CcResult(1, 1)
    assert cc.load(sl(5)[:3], [1], [3], OPT) == CcResult(1, 1)
    for plane in planes(kv):
        assert torch.equal(plane[5, :3].cpu(), plane[0, :3].cpu())


def test_the_smallest_plane_is_the_limit_and_warned_about(caplog):
    cc = boot()
    cc.register_kvcache([[buf(8), buf(6)]])
    [warning] = [each for each in caplog.messages if "register_kvcache" in each]
    assert "layer 0 plane 0 has 8 blocks" in warning
    assert "only the first 6 can be used" in warning
    assert cc.save(sl(5), [1], [BS], OPT) == CcResult(1, 1)
    assert "slots 0 to 23" in refusal(cc.save, sl(6), [1], [BS], OPT)


def test_a_value_may_grow_and_be_read_in_part_by_keys_of_the_callers_own(cc):
    raw = torch.arange(256, device=DEV).to(torch.uint8)
    at = raw.data_ptr()
    assert cc.save(OPT, ["k"], [[KvBufferWrapper(at, 8)]]) == CcResult(1, 1)
    assert cc.load(OPT, ["k"], [[KvBufferWrapper(at + 100, 9)]]) == CcResult(0, 1)
    assert cc.save(OPT, ["k"], [[KvBufferWrapper(at, 8), KvBufferWrapper(at + 8, 2)]]).success == 1
    assert cc.load(OPT, ["k"], [[KvBufferWrapper(at + 100, 9)]]) == CcResult(1, 1)
    assert raw[98:112].tolist() == [98, 99, *range(9), 109, 110, 111]


def test_buffers_that_are_no_memory_of_an_npu_are_refused_by_name(cc):
    raw = torch.zeros(64, dtype=torch.uint8, device=DEV)
    here = torch.zeros(64, dtype=torch.uint8)
    good = KvBufferWrapper(raw.data_ptr(), 64)
    for bad in (
        KvBufferWrapper(here.data_ptr(), 64),
        KvBufferWrapper(1, 1),
        KvBufferWrapper(raw.data_ptr(), 1 << 40),
        KvBufferWrapper(raw.data_ptr(), (1 << 63) - 1),
        KvBufferWrapper((1 << 63) - 1, 1),
    ):
        for call in (cc.save, cc.load):
            assert "value_list[0][1]" in refusal(call, OPT, ["k"], [[good, bad]])
