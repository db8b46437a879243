"""The report of `ems-cli doctor` as text."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems_cli.diagnostics.doctor import DoctorReport
from ems_cli.diagnostics.finding import Finding, Outcome
from ems_cli.render.figures import heading
from ems_cli.render.text import visible

_STYLES = {"PASS": "green", "WARN": "yellow", "FAIL": "bold red", "SKIP": "dim"}


def doctor_text(report: DoctorReport) -> RenderableType:
    """Return the report."""
    return Group(*_parts(report))


def _parts(report: DoctorReport) -> Iterator[RenderableType]:
    yield heading("Is this computer ready?", ("SIMULATED",) if report.simulated else ())
    yield _table(report.findings)
    yield Text()
    yield _end(report)


def _table(findings: tuple[Finding, ...]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for one in findings:
        name = one.outcome.value
        style = "dim" if one.outcome is Outcome.SKIP else ""
        table.add_row(
            Text(name, style=_STYLES[name]), one.name, Text(visible(one.found), style=style)
        )
        if one.fix:
            table.add_row("", "", Text(visible(f"wanted: {one.wanted}"), style="dim"))
            table.add_row("", "", Text(visible(f"fix: {one.fix}")))
    return table


def _end(report: DoctorReport) -> Text:
    parts = ", ".join(f"{count} {name}" for name, count in report.counts.items() if count)
    if report.ended == "interrupted":
        return Text(f"Interrupted after {parts}", style="bold yellow")
    if report.outcome is Outcome.PASS:
        return Text(f"Ready: {parts}", style="green")
    if report.outcome is Outcome.WARN:
        return Text(f"Ready, with warnings: {parts}", style="yellow")
    strict = ", and --strict takes a warning for a failure" if not report.counts["FAIL"] else ""
    return Text(f"Not ready: {parts}{strict}", style="bold red")
