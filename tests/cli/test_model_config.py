import pytest
from published_configs import (
    DEEPSEEK_V3,
    DEEPSEEK_V32,
    GLM_45,
    GLM_AIR,
    GPT_OSS_20B,
    GPT_OSS_120B,
    KIMI_K2,
    LLAMA_8B,
    QWEN3_8B,
    QWEN3_30B,
    QWEN3_32B,
    QWEN3_235B,
    QWEN3_NEXT,
    QWEN25_3B,
    QWEN25_7B,
    V2_LITE,
)

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.model_config import Wanted, shape_of_model
from ems_cli.diagnostics.parallel import Parallel


def shape_from(config, *, tp=1, pp=1, rank=0, **wanted):
    return shape_of_model(
        config, "config.json", parallel=Parallel(tp, pp, rank), wanted=Wanted(128, **wanted)
    )


def planes_of(shape):
    return [(plane.name, plane.heads, plane.head_size) for plane in shape.layers[0].planes]


def without(config, *names):
    return {name: value for name, value in config.items() if name not in names}


@pytest.mark.parametrize(
    ("config", "token_nbytes"),
    [
        pytest.param(LLAMA_8B, 131072, id="Llama-3.1-8B"),
        pytest.param(QWEN3_8B, 147456, id="Qwen3-8B"),
        pytest.param(QWEN3_32B, 262144, id="Qwen3-32B"),
        pytest.param(QWEN3_30B, 98304, id="Qwen3-30B-A3B"),
        pytest.param(QWEN3_235B, 192512, id="Qwen3-235B-A22B"),
        pytest.param(QWEN25_7B, 57344, id="Qwen2.5-7B"),
        pytest.param(GLM_AIR, 188416, id="GLM-4.5-Air"),
        pytest.param(GLM_45, 376832, id="GLM-4.5"),
        pytest.param(DEEPSEEK_V3, 70272, id="DeepSeek-V3"),
        pytest.param(DEEPSEEK_V32, 85888, id="DeepSeek-V3.2 with its indexer"),
        pytest.param(V2_LITE, 31104, id="DeepSeek-V2-Lite"),
        pytest.param(KIMI_K2, 70272, id="Kimi-K2"),
        pytest.param(GPT_OSS_20B, 49152, id="gpt-oss-20b"),
        pytest.param(GPT_OSS_120B, 73728, id="gpt-oss-120b"),
        pytest.param(QWEN3_NEXT, 24576, id="Qwen3-Next-80B-A3B"),
    ],
)
def test_bytes_per_token_are_the_published_ones(config, token_nbytes):
    assert shape_from(config).token_nbytes == token_nbytes


def test_tp_splits_the_kv_heads():
    assert shape_from(QWEN3_32B, tp=8).token_nbytes == 32768


def test_tp_beyond_the_kv_heads_replicates_them():
    shape = shape_from(QWEN25_3B, tp=8)
    assert planes_of(shape) == [("K", 1, 128), ("V", 1, 128)]
    assert shape.ranks_with_the_same_bytes == 4
    assert "2 KV heads are replicated on 8 ranks, one to a rank" in shape.notes


def test_tp_does_not_split_mla():
    shape = shape_from(DEEPSEEK_V3, tp=8)
    assert shape.token_nbytes == 70272
    assert shape.ranks_with_the_same_bytes == 8
    assert "every rank of a stage holds the same bytes: MLA is not split" in shape.notes


@pytest.mark.parametrize("config", [QWEN3_32B, DEEPSEEK_V3])
def test_tp_that_does_not_divide_the_attention_heads_is_refused(config):
    with pytest.raises(BadInput, match="3 does not divide the") as caught:
        shape_from(config, tp=3)
    assert caught.value.option == "--tp"


def test_mla_wins_over_the_number_of_kv_heads():
    shape = shape_from(DEEPSEEK_V3)
    assert shape.kvcache_type == "MLA"
    assert planes_of(shape) == [("latent", 1, 512), ("rope", 1, 64)]


def test_mla_is_there_although_q_lora_rank_is_null():
    assert shape_from(V2_LITE).kvcache_type == "MLA"


def test_an_indexer_is_a_third_plane():
    assert planes_of(shape_from(DEEPSEEK_V32))[2] == ("indexer", 1, 128)


def test_layers_that_share_an_indexer_have_no_plane_for_it():
    types = ["full", "shared"] * 30 + ["full"]
    shape = shape_from({**DEEPSEEK_V32, "indexer_types": types})
    assert [len(layer.planes) for layer in shape.layers[:3]] == [3, 2, 3]
    assert len(shape.groups) == 2


@pytest.mark.parametrize(("kv_heads", "kind"), [(8, "GQA"), (32, "MHA"), (None, "MHA"), (1, "MQA")])
def test_the_kind_of_attention_follows_from_the_heads(kv_heads, kind):
    assert shape_from({**LLAMA_8B, "num_key_value_heads": kv_heads}).kvcache_type == kind


def test_head_dim_beats_the_quotient():
    assert planes_of(shape_from({**QWEN3_32B, "head_dim": 128}))[0] == ("K", 8, 128)
    assert planes_of(shape_from({**QWEN3_32B, "head_dim": None}))[0] == ("K", 8, 80)


def test_mtp_layers_count_only_when_asked_for():
    plain, counted = shape_from(DEEPSEEK_V3), shape_from(DEEPSEEK_V3, mtp=True)
    assert (plain.token_nbytes, counted.token_nbytes) == (70272, 71424)
    assert "MTP layers (1) are not counted; --mtp counts them" in plain.notes
    assert counted.layers[-1].index == 61


def test_mtp_layers_are_in_the_last_stage():
    held = [len(shape_from(DEEPSEEK_V3, pp=2, rank=rank, mtp=True).layers) for rank in (0, 1)]
    assert held == [31, 31]


def test_mtp_of_a_model_without_is_refused():
    with pytest.raises(BadInput, match="has no MTP layers"):
        shape_from(LLAMA_8B, mtp=True)


def test_a_window_that_is_switched_off_is_no_window():
    assert {layer.window for layer in shape_from(QWEN25_7B).layers} == {None}


def test_a_window_that_is_switched_on_begins_after_the_full_layers():
    on = {**QWEN25_7B, "use_sliding_window": True, "max_window_layers": 21}
    windows = [layer.window for layer in shape_from(on).layers]
    assert windows == [None] * 21 + [131072] * 7


def test_a_window_without_more_words_is_on_every_layer():
    mistral = {**LLAMA_8B, "sliding_window": 4096}
    assert {layer.window for layer in shape_from(mistral).layers} == {4096}


@pytest.mark.parametrize("config", [GPT_OSS_20B, without(GPT_OSS_20B, "layer_types")])
def test_every_other_layer_of_gpt_oss_has_a_window(config):
    assert [layer.window for layer in shape_from(config).layers[:4]] == [128, None, 128, None]


def test_a_pattern_says_how_often_a_layer_sees_everything():
    gemma = {**LLAMA_8B, "sliding_window": 512, "sliding_window_pattern": 6}
    windows = [layer.window for layer in shape_from(gemma).layers[:6]]
    assert windows == [512, 512, 512, 512, 512, None]


def test_full_layers_may_have_heads_of_their_own_size():
    gemma = {**GPT_OSS_20B, "head_dim": 256, "global_head_dim": 512}
    assert [layer.planes[0].head_size for layer in shape_from(gemma).layers[:2]] == [256, 512]


def test_layers_that_read_the_cache_of_others_have_none():
    assert len(shape_from({**LLAMA_8B, "num_kv_shared_layers": 10}).layers) == 22


def test_linear_layers_are_left_out_and_named():
    shape = shape_from(QWEN3_NEXT, pp=12, rank=1)
    assert [layer.index for layer in shape.layers] == [7]
    assert "layers 4-6 keep no bytes per token and are left out" in shape.notes


def test_layer_types_may_say_which_layers_are_linear():
    types = ["linear_attention", "linear_attention", "full_attention"] * 16
    shape = shape_from({**without(QWEN3_NEXT, "full_attention_interval"), "layer_types": types})
    assert len(shape.layers) == 16


def test_linear_layers_at_unknown_places_are_refused():
    with pytest.raises(BadInput, match="the field full_attention_interval is missing"):
        shape_from(without(QWEN3_NEXT, "full_attention_interval"))


def test_a_stage_without_any_cache_is_refused():
    with pytest.raises(BadInput, match=r"rank 0 holds layers 0-1 .* none of which has a KV cache"):
        shape_from(QWEN3_NEXT, pp=24)


def test_an_unknown_kind_of_layer_is_refused_by_name():
    types = ["full_attention"] * 31 + ["dreaming"]
    with pytest.raises(BadInput, match=r"layer_types\[31\] is 'dreaming'"):
        shape_from({**LLAMA_8B, "layer_types": types})


def test_a_mix_of_layers_that_is_not_understood_is_refused_by_name():
    with pytest.raises(BadInput, match="hybrid_override_pattern describes a mix"):
        shape_from({**LLAMA_8B, "hybrid_override_pattern": "M-M*"})


@pytest.mark.parametrize("key", ["text_config", "llm_config", "language_config"])
def test_the_language_model_may_be_nested(key):
    nested = {"model_type": "some_vl", "hidden_size": 7, key: without(QWEN3_8B, "torch_dtype")}
    shape = shape_from({**nested, "dtype": "float16"})
    assert shape.token_nbytes == 147456
    assert shape.layers[0].planes[0].dtype == "float16"


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [
        ("float16", "float16"),
        ("torch.bfloat16", "bfloat16"),
        ("float8_e4m3fn", "bfloat16"),
        ("float32", "bfloat16"),
        (None, "bfloat16"),
    ],
)
def test_the_type_of_the_weights_is_the_caches_only_if_it_has_16_bits(dtype, expected):
    shape = shape_from({**QWEN3_8B, "torch_dtype": dtype})
    assert shape.layers[0].planes[0].dtype == expected
    assert any("--dtype decides" in note for note in shape.notes) == (
        dtype is None or "16" not in dtype
    )


def test_quantized_weights_do_not_change_the_cache():
    shape = shape_from(DEEPSEEK_V3)
    assert shape.layers[0].planes[0].dtype == "bfloat16"
    assert "the weights are quantized, the cache stays bfloat16; --dtype decides" in shape.notes


def test_the_callers_type_wins():
    assert shape_from(QWEN3_8B, dtype="int8").token_nbytes == 147456 // 2


@pytest.mark.parametrize(
    ("absent", "config"),
    [
        ("num_hidden_layers", LLAMA_8B),
        ("num_attention_heads", without(LLAMA_8B, "num_key_value_heads")),
        ("hidden_size", LLAMA_8B),
        ("qk_rope_head_dim", DEEPSEEK_V3),
    ],
)
def test_a_missing_field_is_named(absent, config):
    with pytest.raises(BadInput, match=f"config.json: the field {absent} is missing"):
        shape_from(without(config, absent))


@pytest.mark.parametrize("value", ["8", 8.0, True, 0, -8, [8], 1 << 40])
def test_a_field_that_is_no_count_is_named_with_its_value(value):
    with pytest.raises(BadInput, match="num_key_value_heads is not a positive integer: "):
        shape_from({**LLAMA_8B, "num_key_value_heads": value})


def test_a_number_of_layers_that_no_model_has_is_refused_at_once():
    with pytest.raises(BadInput, match="num_hidden_layers is more than 4096"):
        shape_from({**LLAMA_8B, "num_hidden_layers": 1 << 30})


@pytest.mark.parametrize("types", ["full_attention", [1] * 32, ["full_attention"] * 31])
def test_a_list_of_layers_that_is_none_is_refused(types):
    with pytest.raises(BadInput, match=r"layer_types (is not a list|has 31 entries for 32 layers)"):
        shape_from({**LLAMA_8B, "layer_types": types})


def test_a_hidden_size_that_the_heads_do_not_divide_is_refused():
    with pytest.raises(BadInput, match="hidden_size is no multiple of num_attention_heads 32"):
        shape_from({**LLAMA_8B, "hidden_size": 4097})


def test_deepseeks_own_names_are_recognised():
    own = {"n_layers": 61, "n_heads": 128, "dim": 7168, "kv_lora_rank": 512, "dtype": "fp8"}
    with pytest.raises(
        BadInput, match=r"is not a Hugging Face config.json: n_layers, n_heads, dim"
    ):
        shape_from(own)


@pytest.mark.parametrize("field", ["num_nextn_predict_layers", "mtp_num_hidden_layers"])
def test_mtp_layers_that_no_model_has_are_refused_and_not_made(field):
    config = {**QWEN3_32B, field: 2**31 - 1}
    with pytest.raises(BadInput, match="MTP layers are more than 4096"):
        shape_of_model(config, "here", parallel=Parallel(), wanted=Wanted(128, mtp=True))
