"""The benchmark on the simulated NPU, in this process: what it counts, and what it finds."""

import ctypes
import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from ems.common.exception import DeviceFailed
from ems.common.result import CcResult
from ems.pool.memory import MemoryPool
from ems.simulator import control
from ems.transfer.loading import Loading
from ems_cli.app import app
from ems_cli.diagnostics import bench_pool, bench_rig, bench_run, bench_trip
from ems_cli.diagnostics.bench import Run
from ems_cli.diagnostics.bench_figures import figures_of

SMALL = ["--layers", "2", "--heads", "2", "--head-size", "64", "--block-size", "16"]
BLOCK = 2 * 2 * 16 * 2 * 64 * 2  # layers, planes, tokens, heads, head size, bytes


def bench(*arguments):
    runner = CliRunner()
    command = ["bench", *SMALL, "--runs", "2", *arguments]
    return runner.invoke(app, command, prog_name="ems-cli", env={"COLUMNS": "80"})


def measured(*arguments, exit_code=0):
    result = bench("--json", *arguments)
    assert result.exit_code == exit_code, result.stderr
    return json.loads(result.stdout)


def operations(report):
    return report["devices"][0]["operations"]


def test_a_run_is_verified_and_labelled():
    report = measured("--blocks", "16")
    assert report["verified"] is True
    assert report["simulated"] is True
    assert {"SIMULATED", "TOO FEW SAMPLES"} <= set(report["labels"])
    assert "UNVERIFIED" not in report["labels"]
    for name in ("save", "load", "async_save", "async_load"):
        figures = operations(report)[name]["figures"]
        assert (figures["requested_blocks"], figures["moved_blocks"]) == (32, 32)
        assert figures["nbytes"] == 32 * BLOCK
        assert figures["ceiling_share"] > 0
        assert sum(figures["phase_shares"].values()) == pytest.approx(1)
    assert operations(report)["save_and_load"]["figures"]["moved_blocks"] == 2 * 16
    # twice all of them by waiting and asynchronous calls, and half of them in both directions
    assert report["devices"][0]["verification"]["verified_blocks"] == 2 * (16 + 16 + 8)
    assert report["devices"][0]["shape"]["num_blocks"] == 2 * 16


def both_ways(found):
    names = ("raw_copy_both_ways", "save_and_load")
    return sum(run["nbytes"] for name in names for run in found[name]["cold"] + found[name]["runs"])


@pytest.mark.parametrize(
    "how", [[], ["--order", "sequential"], ["--in-flight", "2", "--blocks-per-call", "3"]]
)
def test_the_bytes_are_those_that_the_npu_has_moved(how):
    before = [control.counter(name) for name in ("bytes_d2h", "bytes_h2d")]
    found = operations(measured("--blocks", "16", "--no-verify", *how))
    before[1] += 32 * BLOCK  # each block is touched once beforehand
    moved = [
        sum(run["nbytes"] for name in names for run in found[name]["cold"] + found[name]["runs"])
        + both_ways(found) // 2
        for names in (
            ("raw_copy_out", "raw_copy_out_two_streams", "save", "async_save"),
            ("raw_copy_in", "raw_copy_in_two_streams", "load", "async_load"),
        )
    ]
    after = [control.counter(name) for name in ("bytes_d2h", "bytes_h2d")]
    assert moved == [now - then for now, then in zip(after, before, strict=True)]


def test_with_half_of_the_blocks_missing_half_of_the_bytes_move():
    all_there = operations(measured("--blocks", "16"))
    half = operations(measured("--blocks", "16", "--miss-ratio", "0.5"))
    for name in ("save", "load", "async_save", "async_load"):
        assert half[name]["figures"]["nbytes"] * 2 == all_there[name]["figures"]["nbytes"]
    assert half["load"]["figures"]["missed_blocks"] == 2 * 8
    assert half["load"]["figures"]["failed_blocks"] == 0


@pytest.mark.parametrize(
    ("how", "blocks"),
    [
        (["--layout", "interleaved", "--blocks", "4"], 8),
        (["--layout", "padded", "--groups", "0:16;1:16@window=64", "--blocks", "4"], 8),
    ],
)
def test_other_arrangements_and_groups_come_back_as_well(how, blocks):
    report = measured(*how, "--runs", "1")
    assert report["verified"] is True
    assert report["devices"][0]["shape"]["num_blocks"] == blocks


def test_a_written_shape_is_benched():
    shape = "(1,12,16,1,64)+(1,12,16,1,16):int8:2;(2,12,16,2,64):float16:1"
    command = ["bench", "--shape", shape, "--runs", "1", "--json"]
    result = CliRunner().invoke(app, command, prog_name="ems-cli")
    assert result.exit_code == 0, result.stderr
    report = json.loads(result.stdout)
    assert report["verified"] is True
    assert report["settings"]["blocks_per_call"] == 6
    assert report["devices"][0]["span_facts"]["smallest_nbytes"] == 16 * 16


def test_a_list_makes_a_sweep_of_full_reports():
    command = ["--blocks", "4", "--block-size", "16,32", "--order", "random,sequential"]
    report = measured(*command, "--runs", "1")
    assert report["varied"] == ["block_size", "order"]
    assert [(one["point"]["block_size"], one["point"]["order"]) for one in report["points"]] == [
        (16, "random"),
        (16, "sequential"),
        (32, "random"),
        (32, "sequential"),
    ]
    found = [operations(one["report"])["load"]["figures"]["nbytes"] for one in report["points"]]
    assert found == [4 * BLOCK, 4 * BLOCK, 8 * BLOCK, 8 * BLOCK]


def test_the_points_before_a_pool_that_cannot_be_opened_are_kept():
    pools = ["--pool", "memory://?capacity=1MiB", "--pool", "memry://"]
    report = measured("--blocks", "4", *pools, exit_code=3)
    assert (report["ended"], len(report["points"])) == ("failed", 1)
    assert "the engine 'memry' is unknown" in report["failure"]


def test_npus_are_measured_together_when_asked_to():
    report = measured("--blocks", "4", "--devices", "0-1", "--together", "--runs", "2")
    together = report["together"]
    assert together["devices"] == ["npu:0", "npu:1"]
    assert together["nbytes_per_device"] == 2 * 4 * BLOCK
    assert [len(one) for one in together["alone_seconds"]] == [2, 2]
    assert len(together["together_seconds"]) == 2


def test_every_printed_figure_follows_from_the_raw_runs():
    for operation in operations(measured("--blocks", "4", "--runs", "8")).values():
        runs = [Run(**run) for run in operation["runs"]]
        figures = figures_of(runs, operation["figures"]["ceiling"])
        again = json.loads(json.dumps(asdict(figures)))
        assert again == operation["figures"]


def test_what_was_kept_is_no_regression_of_itself(tmp_path):
    file = str(tmp_path / "kept.json")
    measured("--blocks", "4", "--runs", "6", "--save-baseline", file)
    report = measured("--blocks", "4", "--runs", "5", "--baseline", file)
    assert {change["verdict"] for change in report["comparison"]["changes"]} == {"too few runs"}
    assert report["comparison"]["regressed"] is False
    other = bench("--blocks", "5", "--runs", "1", "--baseline", file, "--json")
    assert other.exit_code == 2
    message = json.loads(other.stdout)["error"]["message"]
    assert "settings.blocks_per_call was 4 and is 5" in message
    assert "the cache takes" not in other.stderr  # refused before anything is measured


def test_the_figures_are_shown_where_they_cannot_be_kept():
    result = bench("--blocks", "4", "--runs", "1", "--save-baseline", "/dev/full")
    assert (result.exit_code, "Verified: " in result.stdout) == (2, True)
    assert "/dev/full cannot be written: No space left on device" in result.stderr


def test_what_is_not_verified_is_called_so():
    report = measured("--blocks", "16", "--no-verify")
    assert report["verified"] is False
    assert "UNVERIFIED" in report["labels"]


def test_the_model_that_is_benched_may_have_planes_of_two_sizes(tmp_path):
    config = {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "hidden_size": 64,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "torch_dtype": "bfloat16",
        "model_type": "deepseek_v3",
    }
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config), encoding="utf-8")
    command = ["bench", "--model", str(path), "--block-size", "3", "--blocks", "8", "--json"]
    result = CliRunner().invoke(app, [*command, "--runs", "1"], prog_name="ems-cli")
    report = json.loads(result.stdout)
    assert report["verified"] is True
    assert operations(report)["load"]["figures"]["nbytes"] == 8 * 3 * 2 * (32 + 8) * 2


def spoiled_by(spoil):
    """An engine whose entries are changed by `spoil` when they are committed."""

    class SpoiltPool(MemoryPool):
        def commit(self, places):
            spoil(places)
            super().commit(places)

    def open_spoilt(_url, memory):
        return SpoiltPool(memory, capacity_nbytes=16 << 20, segment_nbytes=16 << 20)

    return open_spoilt


def test_a_wrong_byte_ends_with_exit_code_1(monkeypatch):
    def flip(places):
        ctypes.c_ubyte.from_address(places[0].address + 5).value ^= 1

    monkeypatch.setattr(bench_pool, "open_pool", spoiled_by(flip))
    result = bench("--blocks", "16")
    assert result.exit_code == 1
    assert "WRONG: 4 of 80 loaded blocks differ; layer 0 K block" in result.stdout


def test_a_block_that_holds_another_is_told_by_name(monkeypatch):
    def repeat_the_first(places):
        ctypes.memmove(places[1].address, places[0].address, places[0].nbytes)

    monkeypatch.setattr(bench_pool, "open_pool", spoiled_by(repeat_the_first))
    report = measured("--blocks", "8", "--order", "sequential", exit_code=1)
    assert report["verified"] is False
    assert report["devices"][0]["verification"]["first_wrong"] == (
        "layer 0 K block 9, loaded from what block 1 was saved as, differs from byte 0 on: "
        "it holds what block 0 was saved as"
    )


def test_a_load_that_reports_what_was_never_saved_is_found_out(monkeypatch):
    def boast(load):
        return CcResult(load.total, load.total)

    honest = Loading.run
    monkeypatch.setattr(Loading, "run", lambda self: boast(honest(self)))
    result = bench("--blocks", "8", "--miss-ratio", "0.5")
    assert result.exit_code == 1
    words = " ".join(result.stdout.split())
    assert "loads reported 8 blocks, of which 4 were ever saved" in words


def test_what_moves_nothing_is_not_called_verified(monkeypatch):
    honest = Loading.run
    monkeypatch.setattr(Loading, "run", lambda self: CcResult(0, honest(self).total))
    result = bench("--blocks", "8")
    assert result.exit_code == 1
    assert "UNVERIFIED: no run loaded all that was saved" in result.stdout


def test_blocks_that_find_no_room_are_failed_and_end_with_exit_code_1(monkeypatch):
    def open_small(_url, memory):
        return MemoryPool(memory, capacity_nbytes=3 * BLOCK, segment_nbytes=3 * BLOCK)

    monkeypatch.setattr(bench_pool, "open_pool", open_small)
    monkeypatch.setattr(bench_rig, "pool_nbytes", lambda *_: 1)
    report = measured("--blocks", "16", exit_code=1)
    found = operations(report)
    assert found["save"]["figures"]["failed_blocks"] > 0
    assert found["load"]["figures"]["missed_blocks"] == 0  # none was planned to be missed


def after_two_runs(monkeypatch, failure):
    def enough(done, *_):
        if done == 2:
            raise failure
        return False

    monkeypatch.setattr(bench_run, "_enough", enough)


def test_an_interrupt_prints_what_was_measured(monkeypatch):
    after_two_runs(monkeypatch, KeyboardInterrupt())
    report = measured("--blocks", "16", exit_code=130)
    assert report["ended"] == "interrupted"
    assert operations(report)["save"]["figures"]["runs"] == 2


def test_a_failure_prints_what_was_measured_and_one_line(monkeypatch):
    after_two_runs(monkeypatch, DeviceFailed("npu:0 is gone"))
    result = bench("--blocks", "16", "-q")
    assert result.exit_code == 3
    assert "Failed after these runs: npu:0 is gone" in result.stdout
    assert result.stderr == "Error: npu:0 is gone\n"


def test_an_interrupt_before_the_first_run_has_no_report(monkeypatch):
    def interrupted(_trips, **_options):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench_trip.Trips, "trip", interrupted)
    result = bench("--blocks", "16", "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["error"]["code"] == "INTERRUPTED"


@pytest.mark.parametrize(
    ("arguments", "option", "said"),
    [
        (["--blocks", "16", "--pool", "memory://?capacity=1KiB"], "--pool", "one run needs"),
        (["--blocks", "16", "--pool", "memry://"], "--pool", "unknown"),
        (
            ["--blocks", "16", "--blocks-per-call", "17"],
            "--blocks-per-call",
            "larger than --blocks",
        ),
        (["--blocks", "16", "--miss-ratio", "1"], "--miss-ratio", "nothing moves"),
        (["--block-size", "16,x"], "--block-size", "'x' is no number from 1 to 16777215"),
        (["--order", "sorted"], "--order", "neither random nor sequential"),
        (["--together"], "--together", "more than one"),
        (["--block-size", "16777216"], "--block-size", "is no number from 1 to 16777215"),
        (["--quick"], "--quick", "--suite"),
        (["--memory", "1GiB"], "--memory", "--suite"),
        (["--seconds", "inf"], "--seconds", "86400"),
        (["--save-baseline", "/"], "--save-baseline", "/ cannot be written: it is a folder"),
        (["--save-baseline", "/no/f"], "--save-baseline", "its folder does not exist"),
        (["--baseline", "/nowhere"], "--baseline", "cannot read"),
        (["--groups", "0-1:8"], "--groups", "group 0 stores at most 8"),
        (["--blocks", "16", "--devices", "99"], "--devices", "npu:99 does not exist"),
    ],
)
def test_settings_that_do_not_fit_are_wrong_usage(arguments, option, said):
    result = bench(*arguments, "--json")
    assert result.exit_code == 2
    message = json.loads(result.stdout)["error"]["message"]
    assert option in message
    assert said in message


@pytest.mark.parametrize("command", ["bench", "verify"])
def test_a_shared_pool_that_is_too_small_is_refused_whatever_it_stages(command, tmp_path):
    url = f"lmdb://{tmp_path}/pool?capacity=64KiB&staging=8MiB"
    arguments = [command, *SMALL, "--blocks", "16", "--pool", url]
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "80"})
    assert result.exit_code == 2
    assert "the pool holds 64.00 KiB" in " ".join(result.stderr.split())


def test_every_device_is_measured_with_a_cache_of_its_own():
    report = measured("--blocks", "16", "--devices", "npu:1,npu:0", "--runs", "1")
    assert [device["device"] for device in report["devices"]] == ["npu:1", "npu:0"]


def test_the_time_that_callers_are_held_is_measured_apart():
    command = ["bench", "--submit", "--runs", "2", "--json"]
    result = CliRunner().invoke(app, command, prog_name="ems-cli")
    report = json.loads(result.stdout)
    assert [len(held["seconds"]) for held in report["times"]] == [2, 2, 2]
    assert report["simulated"] is True


def test_the_time_that_callers_are_held_has_a_cache_of_its_own():
    result = bench("--submit")
    assert result.exit_code == 2
    assert "it has a cache and calls of its own" in result.stderr
