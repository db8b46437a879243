import json
from copy import deepcopy

import pytest
from cli_text import printed

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.bench_compare import change_of, comparison_of, read_baseline
from ems_cli.diagnostics.statistic import rank_p_value, ratio_interval
from ems_cli.render.bench_compare import comparison_text

STEADY = [0.0100, 0.0101, 0.0099, 0.0102, 0.0100, 0.0098, 0.0101, 0.0100, 0.0099, 0.0103] * 2
NBYTES = 100_000_000


def runs(seconds, raw=None):
    raw = raw or [0.009] * len(seconds)
    return [
        {"seconds": each, "nbytes": NBYTES, "ceiling_bytes_per_second": NBYTES / beside}
        for each, beside in zip(seconds, raw, strict=True)
    ]


def slowed(seconds, factor):
    return [each * factor for each in seconds]


def change(before, now, **raw):
    found = change_of("npu:0", "save", runs(before), runs(now, raw.get("raw")))
    return found.verdict, round(found.ratio, 3)


def test_a_planted_regression_is_found():
    assert change(STEADY, slowed(STEADY, 1.1)) == ("SLOWER", 0.909)


def test_a_gain_is_no_regression():
    assert change(STEADY, slowed(STEADY, 0.8)) == ("faster", 1.25)


def test_the_same_times_are_no_change():
    assert change(STEADY, STEADY[::-1]) == ("no change", 1.0)


def test_a_difference_inside_the_noise_is_no_change():
    noisy = [0.008 + 0.0005 * at for at in range(20)]
    assert change(noisy, slowed(noisy, 1.05))[0] == "no change"


def test_a_certain_but_tiny_difference_is_no_change():
    assert change(STEADY, slowed(STEADY, 1.02))[0] == "no change"


def test_a_host_that_is_slower_altogether_is_told_apart():
    assert change(STEADY, slowed(STEADY, 1.5), raw=[0.009 * 1.5] * 20)[0] == "slower, as the host"


def test_a_handful_of_runs_says_nothing():
    assert change(STEADY[:5], slowed(STEADY, 2.0))[0] == "too few runs"


@pytest.mark.parametrize(
    ("values", "others", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 7, 8], 1.0),
        ([1, 2, 3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14, 15, 16], 0.000939),  # z = 31.5 / 9.522
        ([1, 1, 2, 2, 3], [2, 3, 3, 4, 4], 0.052412),  # z = 9 / 4.640, ties of 2, 3, 3, 2
        ([1.0], [], 1.0),
        ([5, 5], [5, 5], 1.0),
    ],
)
def test_the_rank_test_gives_the_known_probabilities(values, others, expected):
    assert rank_p_value(values, others) == pytest.approx(expected, abs=1e-5)


def test_the_interval_of_a_ratio_holds_it_and_is_the_same_each_time():
    low, high = ratio_interval(slowed(STEADY, 2.0), STEADY)
    assert low < 2.0 < high
    assert high - low < 0.1
    assert (low, high) == ratio_interval(slowed(STEADY, 2.0), STEADY)


REPORT = {
    "simulated": True,
    "machine": {"processor": "one", "processors": 2, "system": "Linux"},
    "settings": {"blocks_per_call": 4, "runs": 5, "seconds": 10.0},
    "devices": [
        {
            "device": "npu:0",
            "device_name": "Ascend910B2",
            "shape": {"block_size": 128, "num_blocks": 8, "notes": ["a note"]},
            "operations": {"save": {"runs": runs(STEADY)}, "memcpy": {"runs": runs(STEADY)}},
        }
    ],
}


def changed(*path, to):
    report = deepcopy(REPORT)
    place = report
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = to
    return report


@pytest.mark.parametrize(
    ("path", "to", "named"),
    [
        (("machine", "processor"), "two", "machine.processor was"),
        (("settings", "blocks_per_call"), 8, "settings.blocks_per_call was 4 and is 8"),
        (("devices", 0, "device_name"), "other", "devices[0].device_name was"),
        (("devices", 0, "shape", "block_size"), 64, "devices[0].shape.block_size was 128"),
        (("simulated",), False, "simulated was true and is false"),
        (("devices",), [], "devices[0].device was"),
        (("devices",), REPORT["devices"] * 2, "devices was 1 and is 2"),
    ],
)
def test_unlike_reports_are_refused_with_the_field_that_differs(tmp_path, path, to, named):
    with pytest.raises(BadInput) as caught:
        comparison_of(tmp_path, REPORT, changed(*path, to=to))
    assert str(caught.value).startswith(named)


@pytest.mark.parametrize(
    ("path", "to"),
    [
        (("settings", "runs"), None),
        (("settings", "seconds"), 60.0),
        (("devices", 0, "shape", "notes"), []),
    ],
)
def test_what_does_not_matter_may_differ(tmp_path, path, to):
    found = comparison_of(tmp_path, REPORT, changed(*path, to=to))
    assert [(one.operation, one.verdict) for one in found.changes] == [("save", "no change")]
    assert not found.regressed


def test_a_slower_operation_is_a_regression(tmp_path):
    path = ("devices", 0, "operations", "save", "runs")
    found = comparison_of(tmp_path, REPORT, changed(*path, to=runs(slowed(STEADY, 1.2))))
    assert found.regressed


@pytest.mark.parametrize("operations", [{}, {"save": {"runs": []}}])
def test_a_baseline_without_runs_of_what_is_measured_is_no_pass(tmp_path, operations):
    before = changed("devices", 0, "operations", to=operations)
    with pytest.raises(BadInput, match="npu:0: it has no runs of save"):
        comparison_of(tmp_path, before, REPORT)


def test_a_handful_of_runs_is_not_called_no_regression(tmp_path):
    path = ("devices", 0, "operations", "save", "runs")
    few = changed(*path, to=runs(slowed(STEADY[:2], 1.6)))
    text = "".join(map(printed, comparison_text(comparison_of(tmp_path, REPORT, few))))
    assert "Not known: too few runs in 1 of 1" in text
    assert "No regression" not in text


@pytest.mark.parametrize("content", ["[]", "{}", "no", '{"points": []}', '{"points": [3]}'])
def test_a_file_that_is_no_benchmark_is_refused(tmp_path, content):
    file = tmp_path / "file.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(BadInput):
        read_baseline(file)


def test_the_points_of_a_sweep_are_read_one_by_one(tmp_path):
    file = tmp_path / "file.json"
    file.write_text(json.dumps({"points": [{"report": REPORT}, {"report": REPORT}]}))
    assert len(read_baseline(file)) == 2
