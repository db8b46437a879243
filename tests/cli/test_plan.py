import json
from dataclasses import replace

import pytest
from cli_text import golden, printed
from typer.testing import CliRunner

from ems.pool import memory
from ems_cli.app import app
from ems_cli.diagnostics.break_even import Bandwidth, break_even, load_time
from ems_cli.diagnostics.plan import SEGMENT_NBYTES, Deployment, plan_of
from ems_cli.diagnostics.shape_request import ShapeRequest
from ems_cli.render.plan import plan_text

GIB = 1 << 30

# fields and figures as published with the models: 16 bit, all layers, one rank, no MTP layers
GROUPED = {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 128}
LATENT = {"num_attention_heads": 64, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
MODELS = {
    "Llama-3.1-8B": (
        {"num_hidden_layers": 32, **GROUPED, "num_attention_heads": 32, "hidden_size": 4096}
        | {"head_dim": None},
        131072,
    ),
    "Llama-3.2-3B": ({"num_hidden_layers": 28, **GROUPED, "num_attention_heads": 24}, 114688),
    "Qwen2.5-7B": (
        {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4}
        | {"hidden_size": 3584, "sliding_window": 131072, "use_sliding_window": False},
        57344,
    ),
    "Qwen2.5-3B": (
        {"num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2}
        | {"hidden_size": 2048, "sliding_window": 32768, "use_sliding_window": False},
        36864,
    ),
    "Qwen3-4B": ({"num_hidden_layers": 36, **GROUPED, "hidden_size": 2560}, 147456),
    "Qwen3-8B": ({"num_hidden_layers": 36, **GROUPED, "hidden_size": 4096}, 147456),
    "Qwen3-14B": ({"num_hidden_layers": 40, **GROUPED, "num_attention_heads": 40}, 163840),
    "Qwen3-32B": ({"num_hidden_layers": 64, **GROUPED, "hidden_size": 5120}, 262144),
    "Qwen3-30B-A3B": ({"num_hidden_layers": 48, **GROUPED, "num_key_value_heads": 4}, 98304),
    "Qwen3-235B-A22B": ({"num_hidden_layers": 94, **GROUPED, "num_key_value_heads": 4}, 192512),
    "GLM-4.5-Air": (
        {"num_hidden_layers": 46, **GROUPED, "num_nextn_predict_layers": 1},
        188416,
    ),
    "GLM-4.5": ({"num_hidden_layers": 92, **GROUPED, "num_nextn_predict_layers": 1}, 376832),
    "DeepSeek-V3": (
        {"num_hidden_layers": 61, **LATENT, "num_key_value_heads": 128, "q_lora_rank": 1536}
        | {"num_nextn_predict_layers": 1},
        70272,
    ),
    "DeepSeek-V2-Lite": ({"num_hidden_layers": 27, **LATENT, "q_lora_rank": None}, 31104),
    "DeepSeek-V3.2 and its indexer": (
        {"num_hidden_layers": 61, **LATENT, "index_head_dim": 128, "index_n_heads": 64},
        85888,
    ),
    "Kimi-K2": ({"num_hidden_layers": 61, **LATENT}, 70272),
    "GLM-5": ({"num_hidden_layers": 78, **LATENT, "q_lora_rank": 2048}, 89856),
    "GLM-4.7-Flash": ({"num_hidden_layers": 47, **LATENT, "q_lora_rank": 768}, 54144),
    "gpt-oss-20b": (
        {"num_hidden_layers": 24, **GROUPED, "head_dim": 64, "sliding_window": 128}
        | {"layer_types": ["sliding_attention", "full_attention"] * 12},
        49152,
    ),
    "gpt-oss-120b": (
        {"num_hidden_layers": 36, **GROUPED, "head_dim": 64, "sliding_window": 128}
        | {"layer_types": ["sliding_attention", "full_attention"] * 18},
        73728,
    ),
    "Qwen3-Next-80B-A3B": (
        {"num_hidden_layers": 48, "num_attention_heads": 16, "num_key_value_heads": 2}
        | {"head_dim": 256, "full_attention_interval": 4, "linear_num_key_heads": 16},
        24576,
    ),
    "MiniMax-M2": ({"num_hidden_layers": 62, **GROUPED, "num_attention_heads": 48}, 253952),
    "Qwen3.5-35B-A3B, by its dimensions": (
        {"text_config": {"num_hidden_layers": 40, "num_attention_heads": 16}}
        | {"num_key_value_heads": 2, "head_dim": 256, "full_attention_interval": 4}
        | {"linear_num_key_heads": 16},
        20480,
    ),
    "two sizes of heads, as gemma-4 has": (
        {"num_hidden_layers": 6, "num_attention_heads": 16, "num_key_value_heads": 8}
        | {"head_dim": 256, "global_head_dim": 512, "sliding_window": 1024}
        | {"layer_types": ["sliding_attention"] * 5 + ["full_attention"]},
        5 * 8192 + 16384,
    ),
}


def planned(*, capacity=None, length=8192, per_node=8, **asked):
    return plan_of(ShapeRequest(**asked, blocks=1), Deployment(capacity, length, per_node))


def run(*arguments):
    return CliRunner().invoke(app, ["plan", *arguments], env={"COLUMNS": "80"})


@pytest.mark.parametrize("name", MODELS)
def test_bytes_per_token_are_those_published_with_the_model(name, tmp_path):
    config, token_nbytes = MODELS[name]
    if "text_config" in config:
        inner = {**config, **config["text_config"]}
        inner.pop("text_config")
        config = {"model_type": "outer", "text_config": inner}
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"model_type": "some", "torch_dtype": "bfloat16", **config}))
    result = run("--model", str(file), "--json")
    assert result.exit_code == 0, result.stdout
    report = json.loads(result.stdout)
    assert (report["schema"], report["model_token_nbytes"]) == (1, token_nbytes)


def test_deepseek_v3_on_eight_ranks_is_kept_once():
    report = planned(model="deepseek-v3", tp=8, capacity=512 * GIB)
    assert report.shared_by_tp_ranks
    assert report.model_token_nbytes == report.pool_token_nbytes == 70272
    entry = 70272 * 128
    blocks = 512 * GIB // entry
    assert [room.blocks for room in report.rooms] == [blocks] * 3
    assert [room.memory_nbytes for room in report.rooms] == [4096 * GIB, 512 * GIB, 512 * GIB]
    assert report.rooms[2].tokens == blocks * 128


def test_split_heads_fill_a_shared_pool_with_all_ranks():
    report = planned(model="qwen3-32b", tp=8, capacity=64 * GIB)
    assert report.pool_token_nbytes == report.model_token_nbytes == 262144
    rank, node, pool = report.rooms
    assert rank.blocks == 64 * GIB // (262144 // 8 * 128)
    assert node.blocks == pool.blocks == 64 * GIB // (262144 * 128)


def test_heads_that_are_replicated_are_kept_as_often():
    report = planned(heads=2, head_size=128, layers=36, tp=8)
    assert report.pool_token_nbytes == 4 * report.model_token_nbytes
    assert "every byte 4 times" in " ".join(report.warnings)


def test_the_fullest_stage_limits_what_every_rank_holds():
    report = planned(layers=61, pp=4, capacity=GIB)
    assert [stage.num_layers for stage in report.stages] == [15, 15, 16, 15]
    assert report.rooms[0].block_nbytes == report.stages[2].entry_nbytes
    assert report.rooms[2].block_nbytes == sum(stage.entry_nbytes for stage in report.stages)


def test_two_nodes_of_one_stage_each_share_one_entry_per_node():
    report = planned(model="deepseek-v3", tp=16, per_node=8, capacity=GIB)
    assert (report.nodes, report.rooms[1].pools) == (2, 2)
    assert report.rooms[1].block_nbytes == 70272 * 128


def test_every_part_of_an_entry_starts_on_64_bytes():
    report = planned(layers=2, heads=1, head_size=3, dtype="int8", block_size=5)
    assert (report.stages[0].block_nbytes, report.stages[0].entry_nbytes) == (60, 4 * 64)


def test_the_last_block_of_a_sequence_takes_only_its_tokens():
    whole, more = (planned(layers=1, length=length) for length in (256, 257))
    assert whole.sequence_pool_nbytes == 256 * 4096
    assert more.sequence_pool_nbytes == 256 * 4096 + 4096


@pytest.mark.parametrize(
    ("block_size", "small", "enough"), [(16, True, "32 tokens"), (32, False, "")]
)
def test_small_spans_are_told_with_the_block_size_that_mends_them(block_size, small, enough):
    report = planned(layers=1, block_size=block_size)
    assert [span.small for span in report.spans] == [small, small]
    assert enough in " ".join(report.warnings)


def test_the_segments_of_the_memory_pool_are_those_that_are_counted_with():
    assert memory._SEGMENT_NBYTES == SEGMENT_NBYTES


def load(*, gigabytes=1.0, fixed=0.0, tokens=1000):
    rate = Bandwidth(gigabytes * 1e9, "given")
    return load_time(rate, token_nbytes=100_000, prefix_tokens=tokens, fixed_seconds=fixed)


def even(loading, rate, length=1000):
    return break_even(
        loading, token_nbytes=100_000, prefill_tokens_per_second=rate, sequence_length=length
    )


def test_a_load_takes_its_bytes_and_what_is_fixed():
    assert load().seconds == pytest.approx(0.1)
    assert load(fixed=0.05).seconds == pytest.approx(0.15)


def test_loading_pays_at_any_length_where_nothing_is_fixed():
    found = even(load(), 5000)
    assert (found.from_tokens, found.from_hit_share) == (1, 0.0)
    assert found.speedup == pytest.approx(2.0)


def test_loading_never_pays_below_the_rate_of_computing():
    found = even(load(), 20_000)
    assert (found.from_tokens, found.from_hit_share) == (None, None)
    assert found.needed_bytes_per_second == pytest.approx(2e9)


def test_what_is_fixed_is_earned_by_so_many_tokens():
    found = even(load(fixed=0.05), 5000)  # a token saves 0.1 ms
    assert found.from_tokens == pytest.approx(500, abs=1)
    assert found.from_hit_share == pytest.approx(0.5)
    assert even(load(fixed=0.2), 5000).from_hit_share is None


def bench_report(rate=5e9, **others):
    device = {
        "labels": ["SIMULATED"],
        "operations": {"load": {"figures": {"bytes_per_second": rate}}},
        "span_facts": {"median_nbytes": 262144},
    }
    return {"schema": 1, "devices": [device, {**device, **others}]}


def test_the_rate_comes_from_a_benchmark_with_its_labels(tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(json.dumps(bench_report()))
    result = run("--layers", "2", "--block-size", "16", "--from-bench", str(file), "--json")
    report = json.loads(result.stdout)
    assert report["load"]["bandwidth"]["bytes_per_second"] == 5e9
    assert report["load"]["bandwidth"]["labels"] == ["SIMULATED"]
    assert "may not be this cache's" in report["warnings"][-1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is no JSON"),
        ('{"devices": []}', "is no report of ems-cli bench"),
        ('{"devices": [{"operations": {}}]}', "is no report of ems-cli bench"),
        ("[]", "is no report of ems-cli bench"),
    ],
)
def test_a_file_that_is_no_benchmark_is_refused(content, said, tmp_path):
    file = tmp_path / "bench.json"
    file.write_text(content)
    result = run("--from-bench", str(file))
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bandwidth", "20"], "is no rate"),
        (["--bandwidth", "20GB/h"], "is no rate"),
        (["--bandwidth", "fast/s"], "is not a size"),
        (["--capacity", "-1"], "is not a size"),
        (["--prefill-tokens-per-second", "5"], "needs --bandwidth"),
        (["--prefix-tokens", "5"], "needs --bandwidth"),
        (["--fixed-ms", "5"], "needs --bandwidth"),
        (["--fixed-ms", "inf", "--bandwidth", "1GB/s"], "--fixed-ms"),
        (["--bandwidth", "1GB/s", "--prefill-tokens-per-second", "inf"], "--prefill"),
        (["--bandwidth", "100Gb/s"], "'100Gb/s' is in bits"),
        (["--bandwidth", "100Gbit/s"], "'100Gbit/s' is in bits"),
        (["--heads", "9" * 20], "'--block-size': a block of 128 tokens takes"),
        (["--tp", "3"], "cannot share 8 KV heads"),
    ],
)
def test_wrong_usage_is_told(arguments, said):
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in " ".join(result.stderr.split())


def test_the_report_looks_like_this_at_80_columns():
    report = planned(model="deepseek-v3", tp=8, pp=2, capacity=512 * GIB)
    loading = load(gigabytes=20, fixed=0.002, tokens=8192)
    times = replace(loading, bandwidth=replace(loading.bandwidth, labels=("SIMULATED",)))
    report = replace(report, load=times, break_even=even(loading, 5000, length=8192))
    text = printed(plan_text(report))
    assert text == golden("plan.txt")
    assert max(map(len, text.splitlines())) <= 80
