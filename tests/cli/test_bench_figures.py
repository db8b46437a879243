from dataclasses import replace

import numpy as np
import pytest
from printing import golden, printed

from ems_cli.diagnostics.bench import (
    ASYNC_SAVE,
    MEMCPY,
    RAW_OUT,
    SAVE,
    BenchReport,
    DeviceBench,
    Run,
    SpanFacts,
    Verification,
)
from ems_cli.diagnostics.bench_compare import Change, Comparison
from ems_cli.diagnostics.bench_figures import (
    figures_of,
    labels_of,
    operation_of,
    operations_of,
    phase_shares,
    together_of,
)
from ems_cli.diagnostics.bench_reasons import reasons_of
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.bench_sweep import SweepPoint, points_of, sweep_of, varied_in
from ems_cli.diagnostics.content import block_rows, number_of, wrong_rows
from ems_cli.diagnostics.host_noise import host_noise, noise_of
from ems_cli.diagnostics.machine import Machine, machine
from ems_cli.diagnostics.measure import (
    HostTimes,
    host_times,
    looseness,
    median_interval,
    percentile,
    seconds_of,
    share_of_others,
)
from ems_cli.diagnostics.shape import summary_of
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of
from ems_cli.diagnostics.submission import SubmitReport, held_time
from ems_cli.render.bench import bench_text
from ems_cli.render.bench_sweep import sweep_text
from ems_cli.render.submission import submission_text

MIB = 1 << 20
SETTINGS = Settings(
    blocks_per_call=32,
    in_flight=1,
    miss_ratio=0.25,
    order="random",
    verify=True,
    runs=20,
    pool=None,
)


def run(seconds, *, submit=None, moved=24, missed=0, failed=0, **more):
    return Run(
        seconds, submit, moved + missed + failed, moved, missed, failed, moved * 4 * MIB, **more
    )


def test_the_clock_is_read_before_and_after():
    ticks = iter([10.0, 12.5])
    assert seconds_of(lambda: None, lambda: next(ticks)) == 2.5


@pytest.mark.parametrize(
    ("percent", "value"), [(50, 5), (90, 9), (91, 10), (99, 10), (100, 10), (1, 1)]
)
def test_a_percentile_is_one_of_the_values(percent, value):
    assert percentile([10, 9, 8, 7, 6, 5, 4, 3, 2, 1], percent) == value


def test_others_are_what_this_process_did_not_use():
    before, after = HostTimes(0.0, 100.0, 5.0), HostTimes(10.0, 118.0, 9.0)
    assert share_of_others(before, after, 2) == pytest.approx((18 - 4) / 20)
    assert share_of_others(HostTimes(0, None, 0), after, 2) is None


def test_this_host_tells_its_times():
    assert host_times().ours >= 0


def test_figures_count_what_arrived_and_nothing_else():
    figures = figures_of([run(0.010, moved=24, missed=8), run(0.020, moved=12, missed=20)])
    assert figures.nbytes == 36 * 4 * MIB
    assert (figures.requested_blocks, figures.moved_blocks) == (64, 36)
    assert (figures.missed_blocks, figures.failed_blocks) == (28, 0)
    assert figures.bytes_per_second == (24 * 4 * MIB / 0.010 + 12 * 4 * MIB / 0.020) / 2


def test_submit_and_transfer_add_up_to_the_total_of_a_run():
    figures = figures_of([run(0.5, submit=0.125)])
    assert (figures.submit_seconds_p50, figures.transfer_seconds_p50) == (0.125, 0.375)
    assert figures_of([run(0.5)]).submit_seconds_p50 is None


def test_the_share_of_the_ceiling_is_the_median_of_the_runs_own():
    rate = 24 * 4 * MIB
    runs = [
        run(1.0, ceiling_bytes_per_second=rate * 2),
        run(1.0, ceiling_bytes_per_second=rate),
        run(1.0, ceiling_bytes_per_second=rate * 4),
    ]
    assert figures_of(runs).ceiling_share == 0.5


def test_the_ceiling_is_the_raw_copy_with_the_higher_median():
    rate = 24 * 4 * MIB
    one, two = [1.0, 1.0, 9.0], [2.0, 2.0, 2.0]
    runs = [
        run(1.0, ceiling_bytes_per_second=rate * x, two_streams_bytes_per_second=rate * y)
        for x, y in zip(one, two, strict=True)
    ]
    figures = figures_of(runs)
    assert (figures.ceiling, figures.ceiling_share) == ("two streams", 0.5)
    assert (figures.one_stream_share, figures.two_streams_share) == (1.0, 0.5)
    assert figures_of([run(1.0)]).ceiling is None


def test_operations_of_one_direction_have_the_same_ceiling():
    rates = {"ceiling_bytes_per_second": 1.0, "two_streams_bytes_per_second": 2.0}
    runs = {
        "raw_copy_out": [run(0.1)],
        "raw_copy_out_two_streams": [run(0.2)],
        "save": [run(1.0, **rates)],
        "async_save": [run(1.0, **rates)],
        "save_and_load": [run(1.0, ceiling_bytes_per_second=1.0)],
    }
    found = operations_of({}, runs)
    assert [found[name].figures.ceiling for name in runs] == [None, None, *["one stream"] * 3]
    reason = reasons_of(found, SpanFacts(1, 1 << 20, 1 << 20, 1 << 20), 0.0)[-1]
    assert reason == (
        "the raw copy is the faster of two: out in one call; the library, too, has two slices "
        "under way"
    )


def test_the_interval_of_a_median_is_made_of_the_values():
    assert median_interval([1.0] * 5) is None
    assert median_interval([6, 5, 4, 3, 2, 1]) == (1, 6)
    assert median_interval(range(1, 21)) == (6, 15)  # as tables of order statistics have it
    low, high = median_interval(range(1, 401))
    assert (low, high) == (180, 221)


def test_looseness_is_half_of_the_interval_by_the_median():
    assert looseness([1.0] * 5) is None
    assert looseness([10.0] * 5 + [11.0]) == 0.05
    assert figures_of([run(1.0)] * 6).tight
    assert not figures_of([run(1.0)] * 5).tight


def test_phases_are_shares_of_the_librarys_own_time():
    runs = [
        run(9.0, call_seconds=2.0, phases={"copy": 1.0, "pool": 0.5}),
        run(9.0, call_seconds=2.0, phases={"copy": 2.0}),
    ]
    assert phase_shares(runs) == {"copy": 0.75, "pool": 0.125, "other": 0.125}
    assert phase_shares([run(1.0)]) == {}


def test_npus_that_halve_each_other_scale_to_one_half():
    found = together_of(["npu:0", "npu:1"], 100, [[1.0, 1.0], [1.0, 1.0]], [2.0, 2.0])
    assert found.alone_bytes_per_second == (100.0, 100.0)
    assert (found.together_bytes_per_second, found.scaling) == (100.0, 0.5)


def test_a_host_is_busy_by_its_processors_or_by_late_spins():
    assert not noise_of([0.0] * 99 + [1.0], 0.1, 2).busy
    assert noise_of([0.0] * 97 + [1e-3] * 3, 0.1, 2).busy
    assert noise_of([0.0], 0.2, 2).busy
    assert not noise_of([0.0], None, 2).busy
    assert host_noise(spins=1).overrun_max >= 0
    assert machine().processors >= 1


def test_the_warm_up_is_in_no_figure():
    operation = operation_of([run(9.0)], [run(1.0)])
    assert operation.figures.seconds_max == 1.0
    assert operation.cold[0].seconds == 9.0


def test_the_blocks_of_a_miss_ratio_are_those_of_each_call():
    assert [replace(SETTINGS, miss_ratio=x).hits_per_call for x in (0, 0.25, 0.5, 1)] == [
        32,
        24,
        16,
        0,
    ]


def test_labels_name_what_makes_a_figure_doubtful():
    assert labels_of(simulated=False, verified=True, runs=20, others_cpu_share=0.1) == ()
    assert labels_of(simulated=True, verified=False, runs=9, others_cpu_share=0.2) == (
        "SIMULATED",
        "UNVERIFIED",
        "TOO FEW SAMPLES",
        "HOST BUSY",
    )


@pytest.mark.parametrize(
    ("given", "told"), [(True, "more --runs tell more"), (False, "--seconds N allows more")]
)
def test_more_time_is_no_advice_where_the_runs_are_given(given, told):
    loose = operation_of([], [run(0.02 + at / 100) for at in range(10)])
    found = reasons_of({SAVE: loose}, SpanFacts(1, MIB, MIB, MIB), 0.0, given_runs=given)
    assert any(one.endswith(f"only after 10 runs; {told}") for one in found)


def reasons(*, span=32 << 10, others=0.0, **operations):
    made = {name: operation_of([], runs) for name, runs in operations.items()}
    return reasons_of(made, SpanFacts(10, span, span, span), others)


def test_small_spans_are_a_reason_for_a_low_share():
    low = [run(0.02, ceiling_bytes_per_second=24 * 4 * MIB / 0.01)] * 10
    (reason,) = reasons(**{SAVE: low})
    assert reason == (
        "save reaches 50% of the ceiling: spans of 32.00 KiB are small, and each has a fixed "
        "cost; larger blocks make larger spans"
    )


def test_a_low_share_without_a_known_reason_says_so():
    low = [run(0.02, ceiling_bytes_per_second=24 * 4 * MIB / 0.01)] * 10
    assert reasons(span=1 << 20, **{SAVE: low}) == (
        "save reaches 50% of the ceiling; no reason found",
    )


def test_a_good_share_needs_no_reason():
    good = [run(0.02, ceiling_bytes_per_second=24 * 4 * MIB / 0.0195)] * 10
    assert reasons(**{SAVE: good}) == ()


def test_few_runs_a_busy_host_and_a_wide_spread_are_doubts():
    found = reasons(others=0.5, **{SAVE: [run(0.01), run(0.01), run(0.05)]})
    assert [text.partition(";")[0] for text in found] == [
        "other processes used 50% of the processors meanwhile",
        "3 runs say little of p90 and p99",
        "times vary much: p90 is over 1.25 × p50 in save",
    ]


def test_a_ceiling_near_the_hosts_memcpy_is_the_hosts_memory():
    found = reasons(**{RAW_OUT: [run(0.010)] * 10, MEMCPY: [run(0.009)] * 10})
    assert found == ("the ceiling is the host's memory: raw copies reach 90% of its memcpy",)


def test_time_on_the_callers_thread_is_named():
    low = [run(0.02, submit=0.005, ceiling_bytes_per_second=24 * 4 * MIB / 0.01)] * 10
    found = reasons(span=1 << 20, **{ASYNC_SAVE: low})
    assert "async save: up to 25% of the time passes on the caller's thread" in found[0]


def test_blocks_of_different_numbers_layers_and_planes_differ_in_every_eight_bytes():
    places = [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (7, 1, 12)]
    rows = [block_rows(layer, plane, [number], 4096)[0] for layer, plane, number in places]
    words = np.array(rows).view(np.uint64)
    assert all(len(set(column)) == len(places) for column in words.T.tolist())
    assert all(len(set(row)) == row.size for row in words)


def test_content_has_the_length_of_a_block_that_is_no_multiple_of_eight():
    assert block_rows(0, 0, [1, 2], 13).shape == (2, 13)


def test_a_single_wrong_byte_is_found_and_another_block_recognised():
    expected = block_rows(3, 1, [5, 6, 7], 64)
    found = expected.copy()
    assert wrong_rows(found, expected) == []
    found[1, 63] ^= 1
    found[2] = expected[0]
    assert wrong_rows(found, expected) == [1, 2]
    assert number_of(found[2], 3, 1, [5, 6, 7]) == 5
    assert number_of(found[1], 3, 1, [5, 6, 7]) is None


NOTED = {
    "wait": 0.001,
    "plan": 0.001,
    "pool": 0.0005,
    "start": 0.001,
    "copy": 0.014,
    "commit": 0.001,
    "result": 0.0005,
}


def library(times, **more):
    rates = {
        "ceiling_bytes_per_second": 24 * 4 * MIB / 0.018,
        "two_streams_bytes_per_second": 24 * 4 * MIB / 0.017,
    }
    noted = {"call_seconds": 0.02, "phases": NOTED}
    return [run(each, **rates, **noted, **more) for each in times]


def device(**changes):
    times = [0.020 + 0.001 * (at % 5) for at in range(20)]
    raw, two = [run(0.018)] * 20, [run(0.017)] * 20
    operations = {
        "memcpy": operation_of([run(0.1)], [run(0.015)] * 20),
        "raw_copy_out": operation_of([run(0.3)], raw),
        "raw_copy_out_two_streams": operation_of([run(0.3)], two),
        "raw_copy_in": operation_of([run(0.1)], raw),
        "raw_copy_in_two_streams": operation_of([run(0.3)], two),
        "raw_copy_both_ways": operation_of([run(0.3)], [run(0.016)] * 20),
        "save": operation_of([run(0.5)], library(times)),
        "load": operation_of([run(1.25, missed=8)], library(times, missed=8)),
        "async_save": operation_of([], library([0.02] * 20, submit=0.0005)),
        "async_load": operation_of([], library([0.02] * 20, submit=0.0005)),
        "save_and_load": operation_of([], library([0.018] * 20, submit=0.001)),
    }
    made = DeviceBench(
        "npu:0",
        "Ascend910B2",
        summary_of(shape_of(ShapeRequest(layers=32, heads=4, blocks=64))),
        0.0123,
        0.0045,
        128 * MIB,
        0.25,
        192 * MIB,
        SpanFacts(1536, 131072, 131072, 131072),
        operations,
        1.11,
        Verification(960, 0, None),
        0.02,
        ("SIMULATED",),
        ("a reason that is so long that it does not fit on one line of a terminal of 80 columns",),
    )
    return replace(made, **changes)


def report(*devices, **changes):
    made = BenchReport(
        simulated=True,
        labels=("SIMULATED",),
        ended="complete",
        failure=None,
        verified=True,
        versions={"ems": "1", "torch": "2", "torch_npu": "2"},
        machine=Machine("a processor", 2, "Linux x86_64"),
        noise=noise_of([0.0, 1e-6, 0.0002], 0.03, 2),
        settings=SETTINGS,
        devices=devices,
    )
    return replace(made, **changes)


WRONG = Verification(960, 3, "layer 7 K block 12, loaded from what block 3 was saved as, differs")


CHANGES = (
    Change("npu:0", "save", 5.0e9, 4.0e9, 0.8, 0.75, 0.85, 1e-6, 0.79, "SLOWER"),
    Change("npu:0", "load", 5.0e9, 5.1e9, 1.02, 0.97, 1.05, 0.4, 1.01, "no change"),
)
TOGETHER = together_of(["npu:0", "npu:1"], 100 * MIB, [[0.01], [0.01]], [0.025])


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("bench.txt", report(device())),
        (
            "bench_compared.txt",
            report(
                device(),
                together=TOGETHER,
                comparison=Comparison("before.json", CHANGES, regressed=True),
            ),
        ),
        (
            "bench_wrong.txt",
            report(device(verification=WRONG, reasons=()), ended="interrupted", simulated=False),
        ),
    ],
)
def test_the_report_looks_like_this_at_80_columns(name, made):
    assert printed(bench_text(made)) == golden(name)


URLS = (None, "lmdb:///var/pool?capacity=1GiB", "lmdb:///var/other?capacity=1GiB")


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("bench_sweep.txt", points_of([64, 128], [0], [1], ["random"], URLS)),
        ("bench_sweep_wide.txt", points_of([64, 128], [1, 8], [1, 4], ["random"], URLS[:2])),
    ],
)
def test_a_sweep_has_a_row_for_each_point(name, points):
    found = [SweepPoint(point, report(device())) for point in points]
    made = sweep_of(found, ended="complete", failure=None, varied=varied_in(points))
    assert printed(sweep_text(made)) == golden(name)


def test_what_is_wrong_at_a_point_is_told_of_the_sweep():
    points = points_of([64], [0], [1], ["random", "sequential"], [None])
    found = [SweepPoint(point, report(device(verification=WRONG))) for point in points]
    made = sweep_of(found, ended="interrupted", failure=None, varied=varied_in(points))
    assert made.has_problem
    text = printed(sweep_text(made))
    assert "WRONG bytes" in text
    assert "Interrupted" in text


def test_details_show_every_figure():
    text = printed(bench_text(report(device()), details=True))
    assert text == golden("bench_details.txt")


def test_without_verification_the_report_says_unverified():
    text = printed(bench_text(report(device(verification=None))))
    assert "UNVERIFIED: no loaded byte was compared (--no-verify)" in text


def test_wrong_bytes_and_failed_blocks_are_problems():
    assert not report(device()).has_problem
    assert report(device(verification=WRONG)).has_problem
    failed = {"save": operation_of([], [run(1.0, failed=1)])}
    assert report(device(operations=failed)).has_problem


SUBMITTED = SubmitReport(
    simulated=True,
    labels=("SIMULATED", "HOST BUSY"),
    versions={},
    processors=2,
    others_cpu_share=0.51,
    device="npu:0",
    times=(
        held_time("async_save, lists", "131072 slots and 1024 hashes", 6e-3, (0.002, 0.003, 0.001)),
        held_time("layout of a registration", "61 layers × 2 planes", 5e-3, (0.006,)),
    ),
)


@pytest.mark.parametrize(("name", "made"), [("bench_submit.txt", SUBMITTED)])
def test_the_report_of_held_callers_looks_like_this(name, made):
    assert printed(submission_text(made)) == golden(name)


def test_a_goal_is_met_by_the_median():
    assert [held.meets_goal for held in SUBMITTED.times] == [True, False]
