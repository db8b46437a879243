"""The report of `ems-cli bench --suite` as text: the goals first."""

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import LOAD, RAW_IN, RAW_OUT, SAVE
from ems_cli.diagnostics.bench_suite import SuiteCase, SuiteReport
from ems_cli.diagnostics.suite_goals import Goal, Unit
from ems_cli.diagnostics.suite_models import ORDERED_AT
from ems_cli.diagnostics.suite_pools import LOAD_BY_HAND, SAVE_BY_HAND, PoolCase
from ems_cli.render.bench import PHASES, phase_row
from ems_cli.render.figures import (
    bullets,
    duration,
    gigabytes,
    heading,
    percent,
    plain_table,
)

_MIB: Final = 1 << 20
_TIMED: Final = (ORDERED_AT, "random")
_LEGEND: Final = (
    "Goals are of 64 blocks in one call where they do not say otherwise; raw: what copies of the "
    "same bytes without the library came to in this run. GB/s of waiting and of asynchronous "
    "calls. of raw: by that of one raw copy in one call. both: a save and a load at once, by the "
    "rate of one alone. ordered: blocks that follow each other in memory."
)
_POOLS_LEGEND: Final = (
    "Pools: GB/s of waiting calls, with a quarter of the layers. by hand: the engine's own calls "
    "with the same values, and the same copies between NPU and host meanwhile, but no checksums "
    "and no eviction; raw in the goals of lmdb and mooncake."
)


def suite_text(report: SuiteReport) -> RenderableType:
    """Return the report."""
    return Group(*_parts(report))


def _parts(report: SuiteReport) -> Iterator[RenderableType]:
    yield heading(f"{report.device}, the {'quick ' if report.quick else ''}suite", report.labels)
    if report.pool is not None:
        yield Text(f"pool: {report.pool}")
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
    timed = [one for one in report.cases if (one.blocks_per_call, one.order) == _TIMED]
    if timed:
        yield Text()
        yield _phases(timed)
    yield from _pools(report.pools)
    yield Text()
    yield Text(_LEGEND, style="dim")
    if report.pools:
        yield Text(_POOLS_LEGEND, style="dim")
    if report.quick:
        yield Text("quick: a quarter of the layers, so spans of the same sizes", style="dim")
    if report.skipped:
        yield Text()
        yield Text(f"Skipped; a case may take {format_nbytes(report.memory_nbytes)} (--memory):")
        yield bullets(report.skipped)
    yield Text()
    yield from _end(report)


def _verdict(report: SuiteReport) -> Iterator[Text]:
    wrong = sum(case.wrong_blocks for case in report.all_cases)
    verified = sum(case.verified_blocks for case in report.all_cases)
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
    table = plain_table("", "found", "raw", "goal", " ", right=("found", "raw", "goal"))
    for goal in goals:
        limit = ""
        if goal.limit is not None:
            limit = f"{'≥' if goal.at_least else '≤'} {_value(goal.unit, goal.limit)}"
        verdict = Text("")
        if goal.met is not None:
            verdict = (
                Text("met", style="green") if goal.met else Text("MISSED", style="bold yellow")
            )
        raw = "" if goal.raw is None else _value(goal.raw_unit, goal.raw)
        table.add_row(Text(goal.name), _value(goal.unit, goal.value), raw, limit, verdict)
    return table


def _value(unit: Unit, value: float) -> str:
    if unit == "share":
        return f"{value:.1%}".replace("%", " %")
    if unit == "seconds":
        return f"-{duration(-value)}" if value < 0 else duration(value)
    if unit == "nbytes":
        return f"{value / _MIB:.1f} MiB"
    if unit == "rate":
        return f"{gigabytes(value)} GB/s"
    return f"{value:.3f}"


def _phases(cases: Sequence[SuiteCase]) -> Table:
    table = plain_table("Where the time goes", *PHASES, right=tuple(PHASES))
    for case in cases:
        for name in (SAVE, LOAD):
            table.add_row(f"{name}, {case.model}", *phase_row(case.operations[name].figures))
    return table


def _pools(cases: Sequence[PoolCase]) -> Iterator[RenderableType]:
    """Yield a table for each cache."""
    for model in dict.fromkeys(case.model for case in cases):
        mine = [case for case in cases if case.model == model]
        yield Text()
        yield heading(f"Pools, {model}: entries of {format_nbytes(mine[0].entry_nbytes)}")
        columns = ("blocks", "save", "raw copy", "by hand", "load", "raw copy", "by hand")
        table = plain_table("", *columns, right=columns)
        for case in mine:
            names = (SAVE, RAW_OUT, SAVE_BY_HAND, LOAD, RAW_IN, LOAD_BY_HAND)
            found = [case.operations.get(name) for name in names]
            rates = [None if one is None else one.figures.bytes_per_second for one in found]
            table.add_row(case.pool, str(case.blocks_per_call), *map(gigabytes, rates))
        yield table


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
