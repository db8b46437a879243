"""An earlier benchmark beside this one: what has become slower, and what is only noise."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Final, Literal

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.machine import machine
from ems_cli.diagnostics.statistic import rank_p_value, ratio_interval
from ems_cli.diagnostics.typed import check_types, of_this_version

_OPTION: Final = "--baseline"
_CERTAIN: Final = 0.01
"""A difference that chance brings more often is none."""
_LEAST: Final = 0.03
"""A smaller change of the median is none."""
_FEWEST: Final = 6
_NAME: Final = 100
"""Characters of a field's name that are told; it comes from a file."""
_MOST_NBYTES: Final = 256 << 20
_LIBRARY: Final = ("save", "load", "async_save", "async_load", "save_and_load")
_IGNORED_SETTINGS: Final = ("runs", "seconds")

Change_ = Literal["no change", "faster", "SLOWER", "slower, as the host", "too few runs"]


@dataclass(frozen=True, slots=True)
class Change:
    """One operation on one NPU, then and now."""

    device: str
    operation: str
    before_bytes_per_second: float
    now_bytes_per_second: float
    ratio: float
    """Now by before, of the medians; below 1 is slower."""
    ratio_low: float
    """The true ratio lies between these in 95 of 100 cases."""
    ratio_high: float
    p_value: float
    """How often chance alone makes such a difference."""
    share_ratio: float | None
    """The same of the shares of the raw copy: what is left when the host itself has changed."""
    verdict: Change_


@dataclass(frozen=True, slots=True)
class Comparison:
    """This benchmark against an earlier one."""

    file: str
    changes: tuple[Change, ...]
    regressed: bool
    """Whether an operation is slower, by itself and not as its host."""


def read_baseline(file: Path) -> list[Mapping[str, Any]]:
    """Return the points of a saved benchmark: one, or those of a sweep.

    Raises:
        BadInput: it is none.
    """
    try:
        if file.stat().st_size > _MOST_NBYTES:
            raise BadInput(f"{file} is too large for a benchmark", option=_OPTION)
        content = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {file}: {error.strerror}", option=_OPTION) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{file} is no JSON: {error}", option=_OPTION) from error
    points = content.get("points", [content]) if isinstance(content, dict) else []
    points = points if isinstance(points, list) else []
    reports = [one.get("report", one) for one in points if isinstance(one, dict)]
    if not reports or not all(_is_report(one) for one in reports):
        raise BadInput(f"{file} is no report of ems-cli bench", option=_OPTION)
    return reports


def refuse_unlike(file: Path, before: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Return if a saved benchmark is of this computer and of `settings`, as JSON has them.

    So much is known before anything is measured; `comparison_of` looks at the rest.

    Raises:
        BadInput: it is not; the first field that differs is named.
    """
    here: dict[str, Any] = {
        "simulated": before.get("simulated"),
        "machine": asdict(machine()),
        "devices": [],
    }
    with of_this_version(str(file), option=_OPTION):
        check_alike({**before, "devices": []}, {**here, "settings": settings})


def _is_report(one: Any) -> bool:
    return isinstance(one, dict) and {"devices", "settings", "machine"} <= one.keys()


def comparison_of(
    file: Path, before: Mapping[str, Any], now: Mapping[str, Any], *, where: str = ""
) -> Comparison:
    """Return the comparison of two reports, both as JSON has them.

    Raises:
        BadInput: they are not alike; the first field that differs is named.
    """
    with of_this_version(str(file), option=_OPTION):
        check_alike(before, now, where=where)
        changes = tuple(_changes(before, now))
        for change in changes:
            check_types(change)
    return Comparison(str(file), changes, any(one.verdict == "SLOWER" for one in changes))


def check_alike(before: Mapping[str, Any], now: Mapping[str, Any], *, where: str = "") -> None:
    """Return if the two can be compared.

    Raises:
        BadInput: naming the first field that differs, and both values.
    """
    for name, then in _conditions(before).items():
        current = _conditions(now).get(name)
        if then != current:
            raise BadInput(
                f"{where}{name[:_NAME]} was {_told(then)} and is {_told(current)}: the two cannot "
                "be compared",
                option=_OPTION,
            )


def _told(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}…"  # noqa: PLR2004 - a line


def _conditions(report: Mapping[str, Any]) -> dict[str, Any]:
    """Return by name what must be the same in two reports."""
    found = {"simulated": report.get("simulated")}
    machine, settings = report["machine"], report["settings"]
    found |= {f"machine.{name}": machine[name] for name in ("processor", "processors", "system")}
    found |= {
        f"settings.{name}": value
        for name, value in settings.items()
        if name not in _IGNORED_SETTINGS
    }
    for at, device in enumerate(report["devices"]):
        found[f"devices[{at}].device"] = device["device"]
        found[f"devices[{at}].device_name"] = device["device_name"]
        shape = {name: value for name, value in device["shape"].items() if name != "notes"}
        found |= {f"devices[{at}].shape.{name}": value for name, value in shape.items()}
    found["devices"] = len(report["devices"])
    return found


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[Change]:
    for then, current in zip(before["devices"], now["devices"], strict=True):
        for name in _LIBRARY:
            before_runs, runs = (_runs(one["operations"], name) for one in (then, current))
            if _rates(runs) and not _rates(before_runs):
                raise BadInput(
                    f"{current['device']}: it has no runs of {name}, so nothing tells whether that"
                    " is slower",
                    option=_OPTION,
                )
            if _rates(runs):
                yield change_of(current["device"], name, before_runs, runs)


def _runs(operations: Mapping[str, Any], name: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = operations[name]["runs"] if name in operations else ()
    return found


def change_of(
    device: str,
    operation: str,
    before: Sequence[Mapping[str, Any]],
    now: Sequence[Mapping[str, Any]],
) -> Change:
    """Return the change between the raw runs of an operation."""
    then, current = _rates(before), _rates(now)
    low, high = ratio_interval(current, then)
    p_value = rank_p_value(current, then)
    shares = _shares(before), _shares(now)
    share_ratio = median(shares[1]) / median(shares[0]) if all(shares) else None
    ratio = median(current) / median(then)
    verdict: Change_ = _verdict(ratio, (low, high), p_value)
    if min(len(then), len(current)) < _FEWEST:
        verdict = "too few runs"
    elif verdict == "SLOWER" and all(shares):
        bounds = ratio_interval(shares[1], shares[0])
        chance = rank_p_value(shares[1], shares[0])
        if _verdict(share_ratio or 1.0, bounds, chance) != "SLOWER":
            verdict = "slower, as the host"
    return Change(
        *(device, operation, median(then), median(current), ratio, low, high, p_value),
        share_ratio,
        verdict,
    )


def _verdict(ratio: float, bounds: tuple[float, float], p_value: float) -> Change_:
    low, high = bounds
    if p_value >= _CERTAIN or abs(ratio - 1) < _LEAST or low <= 1 <= high:
        return "no change"
    return "faster" if ratio > 1 else "SLOWER"


def _rates(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    return [run["nbytes"] / run["seconds"] for run in runs if run["nbytes"] and run["seconds"] > 0]


def _shares(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the shares of the raw copy on one stream, which every run has beside it, or none."""
    return [
        run["nbytes"] / run["seconds"] / run["ceiling_bytes_per_second"]
        for run in runs
        if run["nbytes"] and run["seconds"] > 0 and run["ceiling_bytes_per_second"]
    ]
