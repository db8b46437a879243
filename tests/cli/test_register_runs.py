"""`register` on the simulated NPU, and both commands as processes of their own."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from ems.device import synthetic
from ems_cli.app import app

COMMAND = [sys.executable, "-m", "ems_cli"]
CACHE = ["--layers", "2", "--heads", "2", "--head-size", "64", "--block-size", "16"]


def register(*arguments):
    command = ["register", *CACHE, "--blocks", "8", *arguments]
    return CliRunner().invoke(app, command, prog_name="ems-cli", env={"COLUMNS": "80"})


def process(*arguments, **environment):
    variables = {**os.environ, "EMS_SIM_ACCOUNT": f"cli-{os.getpid()}", **environment}
    return subprocess.run(
        [*COMMAND, *arguments],
        env=variables,
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_a_cache_is_registered_and_told():
    result = register("--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["simulated"], report["labels"]) == (True, ["SIMULATED"])
    (device,) = report["devices"]
    assert device["refusal"] is None
    assert device["shape"]["token_nbytes"] == 2 * 2 * 2 * 64 * 2
    assert len(device["block_map"]["places"]) == 4
    assert device["register_seconds"] > 0


def test_each_device_gets_a_cache_on_itself():
    report = json.loads(register("--json", "--devices", "npu:0,npu:3").stdout)
    assert [device["device"] for device in report["devices"]] == ["npu:0", "npu:3"]
    assert {check["verdict"] for check in report["devices"][1]["checks"]} <= {"PASS", "WARN"}


def test_a_slot_is_shown_in_every_plane():
    report = json.loads(register("--json", "--slot", "19").stdout)
    assert report["zoom"] == {"block": 1, "offset": 3, "slot": 19, "whole_block": False}


@pytest.mark.parametrize("layout", ["separate", "interleaved", "padded"])
def test_every_arrangement_is_registered(layout):
    (device,) = json.loads(register("--json", "--layout", layout).stdout)["devices"]
    strides = {place["block_stride_nbytes"] for place in device["block_map"]["places"]}
    block = 16 * 2 * 64 * 2
    assert strides == {block * {"interleaved": 2}.get(layout, 1) + 4096 * (layout == "padded")}
    assert device["block_map"]["padding_nbytes"] == (layout == "padded") * 4 * 7 * 4096
    assert device["shape"]["arrangement"] == layout


def test_an_unknown_arrangement_is_wrong_usage():
    assert register("--layout", "fused").exit_code == 2


def test_groups_are_registered_and_checked():
    (device,) = json.loads(register("--json", "--groups", "0:16;1:8@window=64").stdout)["devices"]
    assert [size["tokens"] for size in device["block_sizes"] if size["name"] == "store"] == [
        "16",
        "8",
    ]
    left_out = register("--groups", "0:16")
    assert left_out.exit_code == 1
    assert "FAIL  groups" in left_out.stdout


def test_a_saved_registration_can_be_inspected(tmp_path):
    file = tmp_path / "saved.json"
    assert register("-q", "--save", str(file)).exit_code == 0
    result = CliRunner().invoke(app, ["inspect", str(file)], prog_name="ems-cli")
    assert result.exit_code == 0
    assert "npu:0" in result.stdout
    assert register("--save", str(tmp_path)).exit_code == 2


@pytest.mark.parametrize(
    "arguments", [["--slot", "128"], ["--block", "8"], ["--slot", "1", "--block", "1"]]
)
def test_a_block_or_slot_that_is_not_there_is_wrong_usage(arguments):
    assert register(*arguments).exit_code == 2


def test_a_cache_that_the_library_refuses_is_a_report_with_exit_code_1(monkeypatch):
    def overlapping(cache):
        tensors = cache._tensors
        return [[layer[0], layer[0][1:]] for layer in tensors]

    monkeypatch.setattr(synthetic.SyntheticCache, "kvcache", property(overlapping))
    result = register()
    assert result.exit_code == 1
    assert "FAIL  overlap" in result.stdout
    assert "Refused: kvcache[0][1] overlaps kvcache[0][0]" in " ".join(result.stdout.split())
    assert "Verdict: FAIL" in result.stdout


def test_a_process_says_simulated_on_stderr_and_reports_on_stdout():
    result = process("register", *CACHE, "--blocks", "8")
    assert result.returncode == 0
    assert result.stdout.startswith("npu:0  Ascend910B2  SIMULATED\n")
    assert result.stderr.splitlines() == [
        "SIMULATED: no NPU here; the simulated one's figures say nothing about hardware",
        "npu:0: the cache takes 128.00 KiB (131072 bytes) of 64.00 GiB free",
    ]


def test_a_cache_that_does_not_fit_is_one_line_and_exit_code_3():
    result = process("register", "--layers", "32", "-q", EMS_SIM_MEMORY="64M")
    assert (result.returncode, result.stdout) == (3, "")
    assert result.stderr == (
        "Error: npu:0 has 64.00 MiB free (67108864 bytes), the cache takes 1.00 GiB "
        "(1073741824 bytes) (EMS_INTERNAL_ERROR)\n"
    )


@pytest.mark.parametrize(
    "nth",
    [
        "every:1",  # of torch, writing the cache
        "9",  # of the library, saving
        "10",  # the raw copy beside it
        "12",  # the raw copy on two streams: the other one must have ended, too
        "13",  # of the library, loading
    ],
)
def test_a_failing_copy_is_one_line_and_exit_code_3(nth):
    command = ["bench", "--layers", "2", "--blocks", "16", "--no-verify", "-q"]
    result = process(*command, EMS_SIM_FAIL_COPY=nth)
    assert (result.returncode, result.stdout) == (3, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    assert "507052" in line


def test_cann_that_does_not_load_is_one_line_and_exit_code_3(tmp_path):
    variables = {"ASCEND_HOME_PATH": str(tmp_path), "LD_LIBRARY_PATH": ""}
    result = process("bench", *CACHE, **variables)
    assert (result.returncode, result.stdout) == (3, "")
    (line,) = result.stderr.splitlines()
    assert "ASCEND_HOME_PATH is set" in line
    assert "set_env.sh" in line


def test_torch_npu_that_does_not_load_is_one_line_and_exit_code_3(tmp_path):
    (tmp_path / "torch_npu.py").write_text(
        "raise ImportError('libhccl.so: cannot open shared object file')", encoding="utf-8"
    )
    result = process(
        "bench", *CACHE, "-q", PYTHONPATH=str(tmp_path), TORCH_DEVICE_BACKEND_AUTOLOAD="0"
    )
    assert result.returncode == 3
    assert "libhccl.so: cannot open shared object file" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_interrupted_process_leaves_one_document_and_exit_code_130():
    command = [*COMMAND, "bench", *CACHE, "--blocks", "16", "--runs", "1000000", "--json"]
    variables = {**os.environ, "EMS_SIM_ACCOUNT": f"cli-{os.getpid()}"}
    with subprocess.Popen(
        command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        while "the cache takes" not in running.stderr.readline():
            pass
        time.sleep(2)  # long enough for some runs, as a rule; the outcome is the same without
        running.send_signal(signal.SIGINT)
        stdout, stderr = running.communicate(timeout=60)
    assert running.returncode == 130
    report = json.loads(stdout)
    assert report.get("ended", "interrupted") == "interrupted"
    assert "Traceback" not in stderr
