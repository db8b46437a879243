"""The text for Prometheus, read back by a parser of its format."""

import re

from hypothesis import given, settings
from hypothesis import strategies as st

from ems.common.exception import EmsErrorCode
from ems.telemetry.counters import Counters
from ems.telemetry.prometheus import prometheus_text
from ems.telemetry.tally import CallRecord

SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)\{(?P<labels>.*)\} (?P<value>\S+)")
LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\\n]|\\.)*)"(?:,|$)')
UNESCAPED = {r"\\": "\\", r"\"": '"', r"\n": "\n"}


def parse(text):
    """Return samples by name and labels; refuses what the format does not allow."""
    assert text == "" or text.endswith("\n")
    samples, types, helped = {}, {}, set()
    for line in text.removesuffix("\n").split("\n") if text else []:
        if line.startswith("# HELP "):
            helped.add(line.split(" ", 3)[2])
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, "the samples of a name stand together"
            types[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert match["name"] == list(types)[-1]
            pairs = LABEL.findall(match["labels"])
            rebuilt = ",".join(f'{name}="{value}"' for name, value in pairs)
            assert rebuilt == match["labels"]
            labels = frozenset((name, unescaped(value)) for name, value in pairs)
            assert (match["name"], labels) not in samples
            samples[match["name"], labels] = float(match["value"])
    assert set(types) == helped
    assert set(types.values()) <= {"counter"}
    return samples


def unescaped(value):
    return re.sub(r"\\.", lambda found: UNESCAPED[found[0]], value)


def counted(*calls):
    counters = Counters()
    for call in calls:
        counters.add(call)
    return counters.snapshot()


LOAD = CallRecord("load", 3, 1, {"done": 1, "absent": 2}, 4096, {"copy": 1e-5}, 0.25)
FAILED = CallRecord("save", 2, 0, {"failed": 2}, 0, {}, 5.0, EmsErrorCode.EMS_IO_TIMEOUT)


def test_all_counters_are_there_under_their_labels():
    samples = parse(prometheus_text([({"pid": "7"}, counted(LOAD, LOAD, FAILED))]))

    def sample(name, **labels):
        return samples.pop((name, frozenset({"pid": "7", **labels}.items())))

    assert sample("ems_calls_total", operation="load") == 2
    assert sample("ems_calls_total", operation="save") == 1
    assert sample("ems_bytes_total", operation="load") == 8192
    assert sample("ems_bytes_total", operation="save") == 0
    assert sample("ems_seconds_total", operation="load") == 0.5
    assert sample("ems_seconds_total", operation="save") == 5
    assert sample("ems_hashes_total", operation="load", fate="done") == 2
    assert sample("ems_hashes_total", operation="load", fate="absent") == 4
    assert sample("ems_hashes_total", operation="save", fate="failed") == 2
    assert sample("ems_failures_total", operation="save", code="EMS_IO_TIMEOUT") == 1
    assert sample("ems_phase_seconds_total", operation="load", phase="copy") == 2e-5
    assert not samples


def test_processes_are_told_apart_by_their_labels():
    text = prometheus_text([({"pid": "7"}, counted(LOAD)), ({"pid": "8"}, counted(LOAD))])
    pids = {dict(labels)["pid"] for _, labels in parse(text)}
    assert pids == {"7", "8"}


def test_without_processes_or_calls_there_is_nothing():
    assert prometheus_text([]) == ""
    assert prometheus_text([({"pid": "7"}, {})]) == ""


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_a_label_arrives_as_it_was_whatever_it_holds(model):
    samples = parse(prometheus_text([({"model": model}, counted(LOAD))]))
    assert {dict(labels)["model"] for _, labels in samples} == {model}


def test_quotes_backslashes_and_line_ends_are_escaped():
    text = prometheus_text([({"model": 'a"b\\n\n'}, counted(LOAD))])
    assert r'model="a\"b\\n\n"' in text
