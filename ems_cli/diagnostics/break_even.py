"""How long a load takes, and from when on it beats computing the prefix again."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.typed import UNREADABLE, check_types

_OPTION = "--from-bench"


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """How fast one rank loads."""

    bytes_per_second: float
    source: str
    """Either "given" or the file of a benchmark."""
    labels: tuple[str, ...] = ()
    span_nbytes: int | None = None
    """Median size of the spans that were measured."""


@dataclass(frozen=True, slots=True)
class LoadTime:
    """Loading a prefix, all ranks at once."""

    bandwidth: Bandwidth
    prefix_tokens: int
    nbytes: int
    """Of the rank that loads the most."""
    fixed_seconds: float
    """What a load takes whatever its size."""
    seconds: float


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Loading against computing; a prefill is taken to be linear in its tokens."""

    prefill_tokens_per_second: float
    prefill_seconds: float
    """Computing the prefix of the load."""
    speedup: float
    """Of that prefix: seconds of computing by seconds of loading."""
    needed_bytes_per_second: float
    """Below this rate of one rank, loading never pays."""
    from_tokens: int | None
    """Prefixes of at least so many tokens load faster than they compute; None: none do."""
    from_hit_share: float | None
    """Share of a sequence that must be found for looking it up to pay; None: more than all."""


def load_time(
    bandwidth: Bandwidth, *, token_nbytes: int, prefix_tokens: int, fixed_seconds: float
) -> LoadTime:
    """Return the time of one load; `token_nbytes` is of the rank that loads the most."""
    nbytes = prefix_tokens * token_nbytes
    seconds = fixed_seconds + nbytes / bandwidth.bytes_per_second
    return LoadTime(bandwidth, prefix_tokens, nbytes, fixed_seconds, seconds)


def break_even(
    load: LoadTime, *, token_nbytes: int, prefill_tokens_per_second: float, sequence_length: int
) -> BreakEven:
    """Return from when on `load` beats computing."""
    saved = 1 / prefill_tokens_per_second - token_nbytes / load.bandwidth.bytes_per_second
    from_tokens = from_share = None
    if saved > 0:
        from_tokens = max(1, -int(-load.fixed_seconds // saved))
        share = load.fixed_seconds / (saved * sequence_length)
        from_share = share if share <= 1 else None
    prefill_seconds = load.prefix_tokens / prefill_tokens_per_second
    return BreakEven(
        prefill_tokens_per_second,
        prefill_seconds,
        prefill_seconds / load.seconds,
        prefill_tokens_per_second * token_nbytes,
        from_tokens,
        from_share,
    )


def bandwidth_from_bench(path: Path) -> Bandwidth:
    """Return what the slowest NPU of a saved `bench --json` loaded per second.

    Raises:
        BadInput: it cannot be read, or is no report of a benchmark with loads.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", option=_OPTION) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no JSON: {error}", option=_OPTION) from error
    try:
        measured = [_measured(device) for device in report["devices"]]
        labels = tuple({label: None for device in report["devices"] for label in device["labels"]})
        rate, span = min(measured)
        found = Bandwidth(rate, str(path), labels, span)
        check_types(found)
    except UNREADABLE as error:
        raise BadInput(
            f"{path} is no report of ems-cli bench --json with loads", option=_OPTION
        ) from error
    if found.bytes_per_second <= 0:
        raise BadInput(f"{path}: nothing was loaded in it", option=_OPTION)
    return found


def other_spans(bandwidth: Bandwidth, span_nbytes: int) -> str | None:
    """Return a doubt where the benchmark's spans were of quite another size than the plan's."""
    measured = bandwidth.span_nbytes
    if measured is None or max(measured, span_nbytes) < _UNLIKE * min(measured, span_nbytes):
        return None
    return (
        f"the benchmark moved spans of {format_nbytes(measured)}, this cache has spans of "
        f"{format_nbytes(span_nbytes)}: its rate may not be this cache's"
    )


def _measured(device: dict[str, Any]) -> tuple[float, int]:
    figures = device["operations"]["load"]["figures"]
    return float(figures["bytes_per_second"]), int(device["span_facts"]["median_nbytes"])


_UNLIKE = 2
