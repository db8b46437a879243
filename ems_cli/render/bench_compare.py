"""A benchmark beside an earlier one, as text."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.text import Text

from ems_cli.diagnostics.bench_compare import Comparison
from ems_cli.render.bench_names import name_of
from ems_cli.render.figures import gigabytes, heading, plain_table

_STYLES = {"SLOWER": "bold red", "faster": "green", "slower, as the host": "yellow"}


def comparison_text(comparison: Comparison) -> Iterator[RenderableType]:
    """Yield the changes and the verdict."""
    yield heading(f"Against {comparison.file}, GB/s")
    table = plain_table(
        *("", "before", "now", "change", "95 % within", "verdict"),
        right=("before", "now", "change", "95 % within"),
    )
    several = len({change.device for change in comparison.changes}) > 1
    for change in comparison.changes:
        name = name_of(change.operation)
        table.add_row(
            f"{change.device} {name}" if several else name,
            gigabytes(change.before_bytes_per_second),
            gigabytes(change.now_bytes_per_second),
            f"{(change.ratio - 1) * 100:+.0f} %",
            f"{(change.ratio_low - 1) * 100:+.0f} … {(change.ratio_high - 1) * 100:+.0f} %",
            Text(change.verdict, style=_STYLES.get(change.verdict, "")),
        )
    yield table
    slower = sum(change.verdict == "SLOWER" for change in comparison.changes)
    if comparison.regressed:
        yield Text(f"Regression: {slower} of {len(comparison.changes)} slower", style="bold red")
        return
    few = sum(change.verdict == "too few runs" for change in comparison.changes)
    if few:
        told = f"Not known: too few runs in {few} of {len(comparison.changes)}, then or now"
        yield Text(told, style="yellow")
    else:
        yield Text("No regression", style="green")
