"""The report of `ems-cli bench --submit` as text."""

from rich.console import Group, RenderableType
from rich.text import Text

from ems_cli.diagnostics.submission import SubmitReport
from ems_cli.render.figures import heading, milliseconds, plain_table


def submission_text(report: SubmitReport) -> RenderableType:
    """Return the report."""
    table = plain_table(
        *("", "runs", "p50 ms", "max ms", "goal ms", ""),
        right=("runs", "p50 ms", "max ms", "goal ms"),
    )
    for held in report.times:
        met = Text("met", style="green") if held.meets_goal else Text("MISSED", style="bold yellow")
        table.add_row(
            held.name,
            str(len(held.seconds)),
            milliseconds(held.seconds_p50),
            milliseconds(held.seconds_max),
            f"< {held.goal_seconds * 1e3:g}",
            met,
        )
    parts: list[RenderableType] = [
        heading(f"How long the caller's thread is held, {report.device}", report.labels),
        table,
        *(Text(f"{held.name}: {held.what}", style="dim") for held in report.times),
    ]
    if report.others_cpu_share is not None:
        parts.append(
            Text(f"other processes used {report.others_cpu_share:.0%} of the processors meanwhile")
        )
    if report.simulated:
        parts.append(Text("SIMULATED: these figures say nothing about hardware", style="yellow"))
    return Group(*parts)
