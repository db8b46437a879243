"""The suite: its goals from facts, its text, and a small one on the simulated NPU."""

import json
import shutil
from dataclasses import replace

import pytest
from contracts.mooncake_cluster import needs_mooncake
from printing import golden, printed
from test_bench_figures import device, library, run
from typer.testing import CliRunner

from ems.pool.mooncake import trial
from ems.simulator import control
from ems_cli.app import app
from ems_cli.diagnostics import bench_suite, suite_by_hand, suite_kinds, suite_pools
from ems_cli.diagnostics.bench import SpanFacts
from ems_cli.diagnostics.bench_figures import operation_of
from ems_cli.diagnostics.bench_suite import Extent, SuiteCase, SuiteReport
from ems_cli.diagnostics.host_noise import noise_of
from ems_cli.diagnostics.machine import Machine
from ems_cli.diagnostics.shape_grammar import parse_groups, parse_shape
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of
from ems_cli.diagnostics.submission import held_time
from ems_cli.diagnostics.suite_goals import (
    both_ways_goals,
    by_hand_goals,
    copying_goals,
    goal,
    held_goals,
    latency_goals,
    share_goals,
    small_goals,
)
from ems_cli.diagnostics.suite_models import SuiteModel, cache_for, needed_nbytes, suite_models
from ems_cli.diagnostics.suite_pools import PoolCase
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


def pool_case(pool, **changes):
    made = PoolCase(pool, "Qwen3-32B, tp 8", 64, MIB, OPERATIONS, None, None, 64, 0)
    if pool in {"lmdb", "mooncake"}:
        own = operation_of([], library([0.020, 0.019, 0.021]))
        by_hand = {"save_by_hand": own, "load_by_hand": own}
        shares = {"save_by_hand_share": 0.85, "load_by_hand_share": 0.89}
        made = replace(made, operations={**OPERATIONS, **by_hand}, **shares)
    return replace(made, **changes)


POOL_CASES = (
    pool_case("memory", blocks_per_call=16),
    pool_case("memory"),
    pool_case("lmdb"),
    pool_case("tiered"),
    pool_case("mooncake"),
)


def report(*cases, **changes):
    goals = (
        *share_goals("Llama-3.1-8B", OPERATIONS, 0.9),
        *copying_goals("Qwen3-32B, tp 8", OPERATIONS),
        *both_ways_goals("Llama-3.1-8B", OPERATIONS),
        *latency_goals("Llama-3.1-8B", OPERATIONS),
        *held_goals(HELD),
        *small_goals(SMALL),
        *(one for each in changes.get("pools", ()) for one in by_hand_goals(each)),
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
        pools=(),
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


def test_the_calls_of_an_engine_itself_are_the_limit_where_there_are_such():
    found = [one for each in POOL_CASES for one in by_hand_goals(each)]
    assert [(one.name, one.value, one.limit, one.met) for one in found] == [
        ("lmdb save, Qwen3-32B, tp 8", 0.85, 0.85, True),
        ("lmdb load, Qwen3-32B, tp 8", 0.89, 0.85, True),
        ("mooncake save, Qwen3-32B, tp 8", 0.85, 0.9, False),
        ("mooncake load, Qwen3-32B, tp 8", 0.89, 0.9, False),
    ]
    rate = POOL_CASES[2].operations["save_by_hand"].figures.bytes_per_second
    assert (found[0].raw, found[0].raw_unit) == (rate, "rate")
    assert not list(by_hand_goals(pool_case("lmdb", blocks_per_call=16)))


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
                plane.token_nbytes * shape.block_size_of(layer) // 1024
                for shape in [shape_of(model.request)]
                for layer in shape.layers
                for plane in layer.planes
            }
        )
        for model in suite_models(quick=quick)
    ]
    assert spans == [[256], [32], [16, 128], [32, 64, 256]]


@pytest.mark.parametrize("quick", [False, True])
def test_the_groups_of_the_hybrid_have_blocks_of_different_sizes(quick):
    shape = shape_of(suite_models(quick=quick)[3].request)
    found = [{shape.layers[at].block_size for at in group.layers} for group in shape.store_groups]
    assert found == [{128}, {256}, {64}]


def test_what_a_case_takes_grows_with_its_blocks():
    llama = suite_models(quick=False)[0]
    assert needed_nbytes(llama, 64) == 5.5 * 64 * 16 * MIB
    assert cache_for(llama, 64).nbytes == 2 * 64 * 16 * MIB


def test_only_wrong_bytes_and_failed_blocks_are_problems():
    assert not report(case()).has_problem
    assert report(case(wrong_blocks=1)).has_problem
    failed = {"save": operation_of([], library([0.02], failed=1))}
    assert report(case(operations=failed)).has_problem
    assert not report(case(), pools=POOL_CASES).has_problem
    assert report(case(), pools=(pool_case("lmdb", wrong_blocks=1),)).has_problem


def test_the_report_looks_like_this_at_80_columns():
    other = case(blocks_per_call=256, order="sequential")
    cases = (case(), other, case(model="Qwen3-32B, tp 8"))
    text = printed(suite_text(report(*cases, pools=POOL_CASES)))
    assert text == golden("bench_suite.txt")


def test_no_line_is_too_long_for_80_columns():
    grown = replace(SMALL, resident_after_nbytes=SMALL.resident_before_nbytes + (692 << 10))
    goals = (*latency_goals("Llama-3.1-8B", OPERATIONS), *small_goals(grown))
    low = goal("save not copying, Qwen3-32B, tp 8", 0.5, "share", 0.05, at_least=False)
    rate = goal("a", 1.0, "share", 0.5, at_least=True, raw=17.68e9, raw_unit="rate")
    assert "…" not in printed(suite_text(report(case(), goals=(*goals, low, rate))))


def test_a_report_on_a_pool_of_the_callers_choice_speaks_of_no_others():
    text = printed(suite_text(report(case(), pool="lmdb:///dev/shm/pool")))
    assert "by hand" not in text


TINY = SuiteModel("tiny", ShapeRequest(layers=2, heads=2, head_size=16, block_size=16), 0.5)


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    """A suite of one small cache."""
    monkeypatch.setattr(bench_suite, "suite_models", lambda **_: (TINY,))
    monkeypatch.setattr(suite_pools, "suite_models", lambda **_: (TINY,))
    monkeypatch.setattr(suite_pools, "_QUICK_MODELS", ("tiny",))


def test_a_suite_is_verified_counts_its_bytes_and_says_what_it_skips(monkeypatch):
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
    assert [one.split(": takes ") for one in found["skipped"]] == [
        ["tiny, 256 blocks per call", "5.50 MiB"],
        ["memory", "48.00 MiB"],
        ["lmdb", "323.00 MiB"],
        ["tiered", "324.00 MiB"],
        ["mooncake", "304.00 MiB"],
    ]
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
    monkeypatch.setattr(bench_suite, "CALLS", (64,))
    pool = "memory://?capacity=64MiB&segment=64MiB"
    command = ["bench", "--suite", "--quick", "--runs", "1", "--pool", pool, "--json"]
    result = CliRunner().invoke(app, command, prog_name="ems-cli")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["pool"], found["pools"]) == (pool, [])
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


def test_groups_with_blocks_of_different_sizes_are_saved_and_loaded_whole(monkeypatch):
    uniform = ShapeRequest(
        written=parse_shape("(2,8,16,2,16):float16:2;(1,8,16,1,32):float16:1"),
        block_size=16,
        groups=parse_groups("0-1:16;2:64"),
    )
    *first, last = uniform.written.layers
    layers = (*first, replace(last, block_size=64))
    mixed = replace(uniform, written=replace(uniform.written, layers=layers))
    model = SuiteModel("mixed", mixed, None)
    nbytes = 2 * 2 * 16 * 2 * 16 * 2 + 64 * 32 * 2
    assert needed_nbytes(model, 1) == int(5.5 * nbytes)
    monkeypatch.setattr(bench_suite, "suite_models", lambda **_: (model,))
    monkeypatch.setattr(bench_suite, "CALLS", (64,))
    monkeypatch.setattr(suite_pools, "POOLS", ())
    command = ["bench", "--suite", "--quick", "--runs", "1", "--json"]
    result = CliRunner().invoke(app, command, prog_name="ems-cli")
    assert result.exit_code == 0, result.stderr
    for one in json.loads(result.stdout)["cases"]:
        assert (one["verified_blocks"], one["wrong_blocks"]) == (160, 0)
        assert one["span_facts"]["largest_nbytes"] == 64 * 32 * 2
        moved = {
            name: one["operations"][name]["figures"]["nbytes"]
            for name in ("save", "load", "raw_copy_out", "raw_copy_in")
        }
        # each in the waiting and in the asynchronous trip, but for the save and the load
        assert moved == {
            "save": 64 * nbytes,
            "load": 64 * nbytes,
            "raw_copy_out": 2 * 64 * nbytes,
            "raw_copy_in": 2 * 64 * nbytes,
        }


def suite_in(*pools, monkeypatch):
    """What came of a suite with so many kinds of pool, and no large calls into memory."""
    monkeypatch.setattr(bench_suite, "CALLS", (1,))
    monkeypatch.setattr(suite_pools, "POOLS", pools)
    command = ["bench", "--suite", "--quick", "--runs", "1", "--json"]
    return CliRunner().invoke(app, command, prog_name="ems-cli")


@pytest.fixture
def shm(monkeypatch, tmp_path):
    """A folder where pools of files lie, for one test alone."""
    monkeypatch.setattr(suite_kinds, "_SHM", tmp_path)
    return tmp_path


def test_each_kind_of_pool_stands_beside_its_limits_and_is_gone_afterwards(monkeypatch, shm):
    result = suite_in("memory", "lmdb", "tiered", monkeypatch=monkeypatch)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [
        (one["pool"], one["blocks_per_call"], one["verified_blocks"], one["wrong_blocks"])
        for one in found["pools"]
    ] == [
        ("memory", 16, 16, 0),
        ("memory", 64, 64, 0),
        ("lmdb", 16, 16, 0),
        ("lmdb", 64, 64, 0),
        ("tiered", 16, 16, 0),
        ("tiered", 64, 64, 0),
    ]
    assert [one["pool"] for one in found["pools"] if "save_by_hand" in one["operations"]] == [
        "lmdb",
        "lmdb",
    ]
    assert all(
        one["operations"][name]["figures"]["nbytes"] == one["blocks_per_call"] * 4096
        for one in found["pools"]
        for name in one["operations"]
    )
    assert {"lmdb save, tiny", "lmdb load, tiny"} <= {one["name"] for one in found["goals"]}
    assert found["skipped"] == []
    assert not list(shm.iterdir())


def why_skipped(result):
    """Return why one kind of pool is left out; that in memory has been measured all the same."""
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [one["pool"] for one in found["pools"]] == ["memory", "memory"]
    [why] = found["skipped"]
    return why


def test_a_suite_says_what_to_install_for_mooncake_and_goes_on(monkeypatch):
    monkeypatch.setattr(trial, "find_spec", lambda _: None)
    result = suite_in("mooncake", "memory", monkeypatch=monkeypatch)
    why = why_skipped(result)
    assert why.startswith("mooncake: ")
    assert "pip install 'ems[mooncake]'" in why


def test_a_suite_says_that_mooncake_does_not_start_and_goes_on(monkeypatch, tmp_path):
    program = tmp_path / "mooncake_master"
    program.write_text("#!/bin/sh\nexit 3\n")
    monkeypatch.setattr(trial, "_installed", lambda: tmp_path)
    result = suite_in("mooncake", "memory", monkeypatch=monkeypatch)
    why = why_skipped(result)
    assert why.startswith("mooncake: ")
    assert why.endswith(" ended with 3")


def test_a_suite_says_that_there_is_no_room_for_files_and_goes_on(monkeypatch):
    usage = shutil.disk_usage("/")._replace(free=20 << 20)
    monkeypatch.setattr(suite_kinds.shutil, "disk_usage", lambda _: usage)
    result = suite_in("lmdb", "tiered", monkeypatch=monkeypatch)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert found["skipped"] == ["lmdb: takes 35.00 MiB in /dev/shm, which has 20.00 MiB free"]
    assert {one["pool"] for one in found["pools"]} == {"tiered"}


def test_a_limit_that_moves_other_bytes_is_none(monkeypatch, shm):
    monkeypatch.setattr(suite_by_hand._RawLmdb, "get", lambda *_: None)
    result = suite_in("memory", "lmdb", monkeypatch=monkeypatch)
    assert result.exit_code == 3
    found = json.loads(result.stdout)
    assert found["ended"] == "failed"
    assert found["failure"].startswith("lmdb, by hand: layer 0 K block ")
    assert {one["pool"] for one in found["pools"]} == {"memory"}
    assert not list(shm.iterdir())


def test_slices_by_hand_have_memory_of_their_own_and_all_the_blocks(monkeypatch):
    """With two blocks in a slice, 16 blocks are eight of them, and the last waits for the first."""
    monkeypatch.setattr(suite_by_hand, "_SLICE_NBYTES", 2 * 4096)
    monkeypatch.setattr(suite_pools, "POOL_CALLS", (15, 16))
    result = suite_in("lmdb", monkeypatch=monkeypatch)
    assert result.exit_code == 0, result.stderr
    assert [one["verified_blocks"] for one in json.loads(result.stdout)["pools"]] == [15, 16]


class TestMooncake:
    pytestmark = needs_mooncake

    def test_its_cluster_is_up_for_the_suite_alone(self, monkeypatch):
        started = []

        class Noted(trial.Trial):
            def start_node(self):
                started.extend([self.master, super().start_node()])

        monkeypatch.setattr(suite_kinds, "Trial", Noted)
        result = suite_in("mooncake", monkeypatch=monkeypatch)
        assert result.exit_code == 0, result.stderr
        found = json.loads(result.stdout)
        assert [
            (one["blocks_per_call"], one["verified_blocks"], one["wrong_blocks"])
            for one in found["pools"]
        ] == [(16, 16, 0), (64, 64, 0)]
        assert all(one["save_by_hand_share"] > 0 for one in found["pools"])
        assert {"mooncake save, tiny", "mooncake load, tiny"} <= {
            one["name"] for one in found["goals"]
        }
        assert len(started) == 2
        assert all(one.poll() is not None for one in started)
