"""Counters in Prometheus' text exposition format, version 0.0.4."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_TOTALS = {
    "calls": ("ems_calls_total", "Calls that have ended."),
    "nbytes": ("ems_bytes_total", "Bytes that arrived."),
    "seconds": ("ems_seconds_total", "Seconds from submission to the end, over all calls."),
}
_PARTS = {
    "hashes_by_fate": ("ems_hashes_total", "fate", "Hashes of requests, by what became of them."),
    "failures_by_code": ("ems_failures_total", "code", "Calls that failed, by status code."),
    "seconds_by_phase": ("ems_phase_seconds_total", "phase", "Seconds by phase of a call."),
}


def prometheus_text(processes: Iterable[tuple[Mapping[str, str], Mapping[str, Any]]]) -> str:
    """Return the counters of processes: for each its labels and `Counters.snapshot()`."""
    known = list(processes)
    lines: list[str] = []
    for field, (name, text) in _TOTALS.items():
        lines += _family(name, text, _totals(known, field))
    for field, (name, label, text) in _PARTS.items():
        lines += _family(name, text, _parts(known, field, label))
    return "".join(f"{line}\n" for line in lines)


_Sample = tuple[dict[str, str], float]
_Processes = list[tuple[Mapping[str, str], Mapping[str, Any]]]


def _totals(processes: _Processes, field: str) -> Iterator[_Sample]:
    for labels, counters in processes:
        for operation, values in counters.items():
            yield {**labels, "operation": operation}, values[field]


def _parts(processes: _Processes, field: str, label: str) -> Iterator[_Sample]:
    for labels, counters in processes:
        for operation, values in counters.items():
            for part, value in values[field].items():
                yield {**labels, "operation": operation, label: part}, value


def _family(name: str, text: str, samples: Iterable[_Sample]) -> list[str]:
    lines = [f"{name}{_labels(labels)} {value}" for labels, value in samples]
    return [f"# HELP {name} {text}", f"# TYPE {name} counter", *lines] if lines else []


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
