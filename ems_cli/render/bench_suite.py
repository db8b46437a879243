"""The report of `ems-cli bench --suite` as text: the goals first."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench_suite import SuiteCase, SuiteReport
from ems_cli.diagnostics.suite_goals import Goal
from ems_cli.render.figures import (
    bullets,
    duration,
    gigabytes,
    heading,
    percent,
    plain_table,
)


def suite_text(report: SuiteReport) -> RenderableType:
    """Return the report."""
    return Group(*_parts(report))


def _parts(report: SuiteReport) -> Iterator[RenderableType]:
    yield heading(f"{report.device}, the {'quick ' if report.quick else ''}suite", report.labels)
    yield from _verdict(report)
    if report.goals:
        yield Text()
        yield heading("Goals")
        yield _goals(report.goals)
    previous = None
    for case in report.cases:
        if case.model != previous:
            yield Text()
            yield heading(f"{case.model}: spans of {_spans(case)}")
            yield _cases([one for one in report.cases if one.model == case.model])
        previous = case.model
    yield Text()
    yield Text(
        "GB/s of waiting and of asynchronous calls. of raw: by that of one raw copy in one call. "
        "both: a save and a load at once, by the rate of one alone. ordered: blocks that follow "
        "each other in memory.",
        style="dim",
    )
    if report.quick:
        yield Text("quick: a quarter of the layers, so spans of the same sizes", style="dim")
    if report.skipped:
        yield Text()
        yield Text(f"Skipped, --memory allows {format_nbytes(report.memory_nbytes)}:")
        yield bullets(report.skipped)
    yield Text()
    yield from _end(report)


def _verdict(report: SuiteReport) -> Iterator[Text]:
    wrong = sum(case.wrong_blocks for case in report.cases)
    verified = sum(case.verified_blocks for case in report.cases)
    if wrong:
        yield Text(f"WRONG: {wrong} of {verified} loaded blocks differ", style="bold red")
    else:
        yield Text(f"Verified: {verified} loaded blocks, byte by byte", style="green")
    judged = [goal for goal in report.goals if goal.met is not None]
    missed = sum(not goal.met for goal in judged)
    met = f"{len(judged) - missed} of {len(judged)} goals met"
    busy = "; the host was busy" if missed and "HOST BUSY" in report.labels else ""
    yield Text(f"{met}{busy}", style="bold yellow" if missed else "green")


def _goals(goals: tuple[Goal, ...]) -> Table:
    table = plain_table("", "found", "goal", " ", right=("found", "goal"))
    for goal in goals:
        limit = ""
        if goal.limit is not None:
            limit = f"{'≥' if goal.at_least else '≤'} {_value(goal, goal.limit)}"
        verdict = Text("")
        if goal.met is not None:
            verdict = (
                Text("met", style="green") if goal.met else Text("MISSED", style="bold yellow")
            )
        table.add_row(Text(goal.name), _value(goal, goal.value), limit, verdict)
    return table


def _value(goal: Goal, value: float) -> str:
    if goal.unit == "share":
        return percent(value)
    if goal.unit == "seconds":
        return f"-{duration(-value)}" if value < 0 else duration(value)
    if goal.unit == "nbytes":
        return f"-{format_nbytes(-int(value))}" if value < 0 else format_nbytes(int(value))
    return f"{value:.3f}"


def _spans(case: SuiteCase) -> str:
    spans = case.span_facts
    if spans.smallest_nbytes == spans.largest_nbytes:
        return format_nbytes(spans.smallest_nbytes)
    return f"{format_nbytes(spans.smallest_nbytes)} to {format_nbytes(spans.largest_nbytes)}"


def _cases(cases: list[SuiteCase]) -> Table:
    columns = ("blocks", "save", "of raw", "load", "of raw", "async save", "async load", "both")
    table = plain_table(*columns, right=columns)
    for case in cases:
        figures = {name: one.figures for name, one in case.operations.items()}
        rates = {name: gigabytes(one.bytes_per_second) for name, one in figures.items()}
        ordered = " ordered" if case.order == "sequential" else ""
        gain = "–" if case.both_ways_gain is None else f"{case.both_ways_gain:.2f} ×"
        table.add_row(
            f"{case.blocks_per_call}{ordered}",
            rates["save"],
            percent(figures["save"].one_stream_share),
            rates["load"],
            percent(figures["load"].one_stream_share),
            rates["async_save"],
            rates["async_load"],
            gain,
        )
    return table


def _end(report: SuiteReport) -> Iterator[Text]:
    if report.ended == "interrupted":
        yield Text("Interrupted: these are the cases until then", style="bold yellow")
    if report.failure is not None:
        yield Text(f"Failed after these cases: {report.failure}", style="bold red")
    if report.simulated:
        yield Text("SIMULATED: these figures say nothing about hardware", style="yellow")
