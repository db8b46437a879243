"""How figures and labels are written in every report."""

from collections.abc import Iterable
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes

VERDICT_STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red"}
_MILLI, _MICRO = 1e-3, 1e-6


def duration(seconds: float) -> str:
    """Return a time in the unit that keeps it readable: "1.25 s", "12.5 ms", "8.0 µs"."""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    if seconds >= _MILLI:
        return f"{seconds / _MILLI:.{1 if seconds >= 10 * _MILLI else 2}f} ms"
    return f"{seconds / _MICRO:.1f} µs"


def milliseconds(seconds: float | None) -> str:
    """Return a time in milliseconds without the unit, for a column; a dash for None."""
    return "–" if seconds is None else f"{seconds / _MILLI:.2f}"


def gigabytes(bytes_per_second: float | None) -> str:
    """Return a rate in 10^9 bytes per second without the unit, for a column."""
    return "–" if bytes_per_second is None else f"{bytes_per_second / 1e9:.2f}"


def percent(share: float | None) -> str:
    """Return a share as a percentage; a dash for None."""
    return "–" if share is None else f"{share * 100:.0f} %"


def exact(nbytes: int) -> str:
    """Return a size in a readable unit and in bytes."""
    readable = format_nbytes(nbytes)
    return readable if readable == f"{nbytes} B" else f"{readable} ({nbytes} B)"


def heading(title: str, labels: Iterable[str] = ()) -> Text:
    """Return a section's title with its labels behind it."""
    line = Text(title, style="bold")
    for label in labels:
        line.append("  ")
        line.append(label, style="bold yellow" if label != "UNVERIFIED" else "bold red")
    return line


def plain_table(*columns: str, right: Iterable[str] = ()) -> Table:
    """Return a table without lines but the one below its header; `right` are aligned so."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    numbers = set(right)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", no_wrap=True)
    return table


def grid(*, ratio_of_last: bool = False) -> Table:
    """Return rows of a name and a text that may wrap in its own column."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold", ratio=1 if ratio_of_last else None)
    return table


def bullets(lines: Iterable[str]) -> Any:
    """Return sentences as a list whose long lines stay indented."""
    table = Table.grid(padding=(0, 1))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in lines:
        table.add_row("-", Text(line))
    return table
