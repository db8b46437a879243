"""`verify` on shapes of every kind, with ranks, devices, engines, processes and faults."""

import json

import pytest
from typer.testing import CliRunner

from ems.simulator import control
from ems_cli.app import app
from ems_cli.diagnostics.npu import start_runtime
from ems_cli.diagnostics.parallel import Parallel
from ems_cli.diagnostics.shape import CacheShape, LayerShape, PlaneShape
from ems_cli.diagnostics.verify import VerifySettings
from ems_cli.diagnostics.verify_run import verify_on

SMALL = ["--layers", "2", "--heads", "2", "--head-size", "16", "--block-size", "8"]
SETTINGS = VerifySettings(rounds=2, seed=11, pool=None, processes=1, faults=False)


def verify(*arguments):
    return CliRunner().invoke(app, ["verify", *SMALL, *arguments], env={"COLUMNS": "80"})


def report_of(*arguments):
    result = verify("--json", "--quiet", *arguments)
    report = json.loads(result.stdout)
    faults = [step["fault"]["text"] for step in report["steps"] if step["fault"]]
    assert (result.exit_code, faults) == (0, [])
    return report


def shape(*planes, blocks=6, kind="GQA"):
    layers = tuple(LayerShape(index, planes) for index in range(2))
    return CacheShape("flags", kind, 8, blocks, layers, 2, 1, Parallel())


LATENT = (PlaneShape("latent", 1, 64, "bfloat16"), PlaneShape("rope", 1, 16, "bfloat16"))
WITH_SCALES = (
    PlaneShape("K", 2, 16, "int8"),
    PlaneShape("V", 2, 16, "int8"),
    PlaneShape("scale", 2, 1, "float32"),
    PlaneShape("zero", 1, 1, "int8"),
)
ODD = (PlaneShape("K", 3, 5, "int8"), PlaneShape("V", 1, 7, "float16"))


@pytest.mark.parametrize(
    "made",
    [
        shape(*LATENT, kind="MLA"),
        shape(*WITH_SCALES),
        shape(*ODD),
        shape(PlaneShape("K", 1, 16, "float8_e4m3fn")),
        shape(PlaneShape("K", 1, 4, "float32"), blocks=4),
    ],
    ids=["MLA", "int8 and scales", "odd sizes", "one plane of float8", "four blocks"],
)
def test_a_layout_of_any_planes_passes(made):
    report = verify_on(start_runtime(), [(0, made)], SETTINGS, tell=str)
    assert [step.fault for step in report.steps if step.fault] == []
    assert report.passed_steps == 18


def test_every_byte_of_every_check_is_counted():
    made = shape(*ODD)
    report = verify_on(start_runtime(), [(0, made)], SETTINGS, tell=str)
    entries_and_cache = report.compared_nbytes
    assert entries_and_cache > 2 * len(report.steps) / 2 * made.nbytes
    assert report.compared_elements == sum(step.compared_elements for step in report.steps)


def test_a_seed_repeats_a_run():
    first, second = report_of("--seed", "5"), report_of("--seed", "5")
    assert first["settings"]["seed"] == 5
    counts = [[step["compared_elements"] for step in each["steps"]] for each in (first, second)]
    # a call with too little time may end in time once, and not the next time
    assert counts[0][:7] == counts[1][:7]


def test_a_run_tells_the_seed_that_repeats_it():
    result = verify()
    assert result.exit_code == 0
    assert f"--seed {result.stderr.split()[1]}" in result.stdout.replace("\n", " ")


def test_ranks_of_a_tensor_parallel_group_stay_apart():
    report = report_of("--tp", "2")
    assert [rank["device"] for rank in report["ranks"]] == ["npu:0", "npu:0"]
    assert "ranks stay apart" in {step["name"] for step in report["steps"]}


def test_ranks_of_a_pipeline_stay_apart():
    assert "ranks stay apart" in {step["name"] for step in report_of("--pp", "2")["steps"]}


def test_devices_that_hold_the_same_share_entries():
    report = report_of("--devices", "npu:0,npu:2")
    names = {step["name"] for step in report["steps"]}
    assert {"ranks share their entries", "all ranks at once"} <= names


def test_ranks_of_an_mla_model_share_entries(tmp_path):
    config = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "torch_dtype": "bfloat16",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    arguments = ["verify", "--json", "-q", "--model", str(path), "--block-size", "8", "--tp", "2"]
    result = CliRunner().invoke(app, arguments)
    report = json.loads(result.stdout)
    assert result.exit_code == 0
    assert "ranks share their entries" in {step["name"] for step in report["steps"]}


@pytest.mark.parametrize("engine", ["lmdb", "tiered"])
def test_every_engine_is_verified(engine, tmp_path):
    url = f"lmdb://{tmp_path}/pool?capacity=16MiB&staging=4MiB"
    report_of("--pool", url if engine == "lmdb" else f"tiered+{url}&local=2MiB")


def test_with_faults_and_other_processes_nothing_wrong_is_a_success():
    """Three other processes; what they find is told as this one's."""
    report = report_of("--processes", "2", "--faults", "--blocks", "6")
    names = [step["name"] for step in report["steps"]]
    assert "across processes" in names
    assert len([name for name in names if "fail" in name]) == 5
    assert control.setting("DELAY") == ""


def test_a_fault_ends_with_1_and_is_told(monkeypatch):
    from ems.layout import part  # noqa: PLC0415 - as it is seen by the library
    from ems.layout.copy_plan import Spans, plan_spans  # noqa: PLC0415

    def first_half(*arguments):
        spans = plan_spans(*arguments)
        return Spans(spans.device, spans.host, spans.nbytes // 2)

    monkeypatch.setattr(part, "plan_spans", first_half)
    result = verify("--quiet", "--seed", "1")
    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert "layer 0 K" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--blocks", "3"], "--blocks"),
        (["--processes", "2", "--pool", "memory://?capacity=1GiB"], "--pool"),
        (["--pool", "memory://?capacity=4KiB"], "--pool"),
        (["--pool", "nowhere://"], "--pool"),
        (["--rounds", "0"], "--rounds"),
    ],
)
def test_what_cannot_be_verified_is_refused(arguments, told):
    result = verify(*arguments)
    assert (result.exit_code, told in result.stderr) == (2, True)
