"""The suite: its goals from facts, its text, and a small one on the simulated NPU."""

import json
from dataclasses import replace

import pytest
from printing import golden, printed
from test_bench_figures import device, library, run
from typer.testing import CliRunner

from ems.simulator import control
from ems_cli.app import app
from ems_cli.diagnostics import bench_suite
from ems_cli.diagnostics.bench import SpanFacts
from ems_cli.diagnostics.bench_figures import operation_of
from ems_cli.diagnostics.bench_suite import Extent, SuiteCase, SuiteReport
from ems_cli.diagnostics.host_noise import noise_of
from ems_cli.diagnostics.machine import Machine
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of
from ems_cli.diagnostics.submission import held_time
from ems_cli.diagnostics.suite_goals import (
    both_ways_goals,
    copying_goals,
    goal,
    held_goals,
    latency_goals,
    share_goals,
    small_goals,
)
from ems_cli.diagnostics.suite_models import SuiteModel, cache_for, needed_nbytes, suite_models
from ems_cli.diagnostics.suite_small import SmallFigures
from ems_cli.render.bench_suite import suite_text

MIB = 1 << 20
SMALL = SmallFigures((0.004, 0.003, 0.012), 0.004, 100 * MIB, 101 * MIB, 500, 64 * MIB, 74 * MIB)
HELD = (held_time("async_save, lists", "some slots", 6e-3, (0.002, 0.003, 0.001)),)
OPERATIONS = device().operations


def case(**changes):
    made = SuiteCase(
        "Llama-3.1-8B",
        64,
        "random",
        SpanFacts(4096, 262144, 262144, 262144),
        OPERATIONS,
        1.11,
        160,
        0,
    )
    return replace(made, **changes)


def report(*cases, **changes):
    goals = (
        *share_goals("Llama-3.1-8B", OPERATIONS, 0.9),
        *copying_goals("Qwen3-32B, tp 8", OPERATIONS),
        *both_ways_goals("Llama-3.1-8B", OPERATIONS),
        *latency_goals("Llama-3.1-8B", OPERATIONS),
        *held_goals(HELD),
        *small_goals(SMALL),
    )
    made = SuiteReport(
        True,
        ("SIMULATED", "HOST BUSY"),
        "complete",
        None,
        {"ems": "1"},
        Machine("a processor", 2, "Linux x86_64"),
        noise_of([0.001], 0.5, 2),
        0.4,
        "npu:0",
        None,
        quick=True,
        memory_nbytes=2 << 30,
        cases=cases,
        held=HELD,
        small=SMALL,
        goals=goals,
        skipped=("Llama-3.1-8B, 256 blocks per call: takes 5.50 GiB",),
    )
    return replace(made, **changes)


def test_a_goal_is_met_from_its_own_side_and_at_its_limit():
    assert goal("a", 0.9, "share", 0.9, at_least=True).met
    assert not goal("a", 0.89, "share", 0.9, at_least=True).met
    assert goal("a", 1.0, "seconds", 1.0, at_least=False).met
    assert not goal("a", 1.1, "seconds", 1.0, at_least=False).met
    assert goal("a", 1.1, "seconds", None, at_least=False).met is None


def test_the_share_is_that_of_the_raw_copy_in_one_call():
    raw = {"ceiling_bytes_per_second": 1e9, "two_streams_bytes_per_second": 9e9}
    fast = operation_of([], [run(24 * 4 * MIB / 0.95e9, **raw)])
    found = list(share_goals("a", {"save": fast, "load": fast}, 0.9))
    assert [(round(one.value, 3), one.met) for one in found] == [(0.95, True)] * 2


def test_a_block_alone_is_shown_beside_its_raw_copy():
    operations = {
        "save": operation_of([], [run(0.003)]),
        "load": operation_of([], [run(0.002)]),
        "raw_copy_out": operation_of([], [run(0.001)]),
        "raw_copy_in": operation_of([], [run(0.001)]),
    }
    found = list(latency_goals("a", operations))
    assert [(one.value, one.raw, one.met) for one in found] == [
        (0.002, 0.001, False),
        (0.001, 0.001, False),
    ]


def test_time_in_which_nothing_moves_is_judged_as_the_caller_sees_it():
    noted = [run(0.1, phases={"copy": copy, "plan": 0.001}) for copy in (0.096, 0.097, 0.08)]
    operations = {"save": operation_of([], noted), "load": operation_of([], [run(0.1)])}
    [found] = copying_goals("a", operations)
    assert (found.name, round(found.value, 6), found.met) == ("save not copying, a", 0.04, True)


def test_both_ways_stand_beside_what_raw_copies_gain():
    [found] = both_ways_goals("a", OPERATIONS)
    assert found.met is (found.value >= 1.6)
    raw = [OPERATIONS[name].figures.bytes_per_second for name in ("raw_copy_out", "raw_copy_in")]
    both = OPERATIONS["raw_copy_both_ways"].figures.bytes_per_second
    assert found.raw == both / (sum(raw) / 2)


def test_what_is_small_is_judged_by_time_room_and_growth():
    found = {one.name: (one.value, one.met) for one in small_goals(SMALL)}
    assert found == {
        "exists of 10,000 hashes": (0.004, True),
        "room per byte stored": (1.01, True),
        "growth over 500 cycles": (10 * MIB, False),
    }


@pytest.mark.parametrize("quick", [False, True])
def test_the_spans_are_those_of_the_models_also_in_a_quick_suite(quick):
    spans = [
        sorted(
            {
                plane.token_nbytes * 128 // 1024
                for layer in shape_of(model.request).layers
                for plane in layer.planes
            }
        )
        for model in suite_models(quick=quick)
    ]
    assert spans == [[256], [32], [16, 128], [16, 128, 256]]
    assert len(shape_of(suite_models(quick=quick)[3].request).store_groups) == 3


def test_what_a_case_takes_grows_with_its_blocks():
    llama = suite_models(quick=False)[0]
    assert needed_nbytes(llama, 64) == 5.5 * 64 * 16 * MIB
    assert cache_for(llama, 64).nbytes == 2 * 64 * 16 * MIB


def test_only_wrong_bytes_and_failed_blocks_are_problems():
    assert not report(case()).has_problem
    assert report(case(wrong_blocks=1)).has_problem
    failed = {"save": operation_of([], library([0.02], failed=1))}
    assert report(case(operations=failed)).has_problem


def test_the_report_looks_like_this_at_80_columns():
    other = case(blocks_per_call=256, order="sequential")
    text = printed(suite_text(report(case(), other, case(model="Qwen3-32B, tp 8"))))
    assert text == golden("bench_suite.txt")


TINY = SuiteModel("tiny", ShapeRequest(layers=2, heads=2, head_size=16, block_size=16), 0.5)


def test_a_suite_is_verified_counts_its_bytes_and_says_what_it_skips(monkeypatch):
    monkeypatch.setattr(bench_suite, "suite_models", lambda **_: (TINY,))
    monkeypatch.setattr(bench_suite, "CALLS", (1, 64, 256))
    limit = needed_nbytes(TINY, 64)
    before = control.counter("bytes_d2h")
    command = ["bench", "--suite", "--quick", "--runs", "1", "--memory", str(limit), "--json"]
    result = CliRunner().invoke(app, command, prog_name="ems-cli")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(one["blocks_per_call"], one["order"]) for one in found["cases"]] == [
        (1, "random"),
        (64, "random"),
        (64, "sequential"),
    ]
    # waiting and asynchronous calls, and half of the blocks once more in both directions
    assert [one["verified_blocks"] for one in found["cases"]] == [2, 160, 160]
    assert found["skipped"] == ["tiny, 256 blocks per call: takes 5.50 MiB"]
    assert {one["name"].split(",")[0] for one in found["goals"]} >= {
        "save of raw",
        "async_save",
        "exists of 10",
    }
    assert control.counter("bytes_d2h") > before


def test_a_quick_suite_takes_two_gibibytes_at_most():
    assert Extent(6 << 30, quick=True, runs=None).memory_nbytes == 2 << 30
    assert Extent(6 << 30, quick=False, runs=None).memory_nbytes == 6 << 30


def test_a_suite_in_a_pool_of_the_callers_choice_has_no_goals_of_the_memory_engine(monkeypatch):
    monkeypatch.setattr(bench_suite, "suite_models", lambda **_: (TINY,))
    monkeypatch.setattr(bench_suite, "CALLS", (64,))
    pool = "memory://?capacity=64MiB&segment=64MiB"
    command = ["bench", "--suite", "--quick", "--runs", "1", "--pool", pool, "--json"]
    result = CliRunner().invoke(app, command, prog_name="ems-cli")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["pool"] == pool
    shares = [one for one in found["goals"] if "of raw, tiny" in one["name"]]
    assert [one["met"] for one in shares] == [None, None]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--pool", "memory://", "--pool", "memory://"],
        ["--blocks", "4"],
        ["--heads", "2"],
        ["--baseline", "x"],
        ["--memory", "lots"],
    ],
)
def test_a_suite_has_caches_and_goals_of_its_own(arguments):
    command = ["bench", "--suite", *arguments]
    assert CliRunner().invoke(app, command, prog_name="ems-cli").exit_code == 2
