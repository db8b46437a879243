"""The report of `ems-cli replay` as text."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.replay import CapacityRun, ReplayReport
from ems_cli.render.figures import bullets, exact, grid, heading, plain_table

_CHART_CELLS = 40
_EIGHTHS = " ▏▎▍▌▋▊▉"
_MISSES = {
    "absent": "never stored, or forgotten",
    "evicted": "evicted",
    "too_short": "stored with fewer tokens",
    "save_failed": "found no room when saved",
    "damaged": "damaged",
    "behind_a_miss": "behind a miss in their request",
}


def replay_text(report: ReplayReport) -> RenderableType:
    """Return the report."""
    return Group(*_parts(report))


def _parts(report: ReplayReport) -> Iterator[RenderableType]:
    yield heading(f"Trace {report.file}")
    yield _facts(report)
    if report.problem_count:
        yield Text()
        yield from _problems(report)
        return
    if report.ended == "interrupted":
        yield Text("Interrupted: these are the capacities until then", style="bold yellow")
    yield Text()
    yield heading("Hit rate by capacity: leading blocks found, of all")
    yield _rates(report)
    yield Text(
        "LRU is the pool of EMS. FIFO and foresight (what is needed last goes first) are counted "
        "beside it; the endless cache forgets nothing.",
        style="dim",
    )
    yield Text()
    yield heading("Chart")
    yield _chart(report)
    yield Text()
    yield heading("Evictions and misses, in blocks")
    yield _misses(report.runs)


def _facts(report: ReplayReport) -> Table:
    rows = grid()
    rows.add_row("kind", f"{report.kind}, {report.block_tokens} tokens per hash")
    span = "" if report.seconds is None else f" in {report.seconds:g} s of the trace"
    rows.add_row("requests", f"{report.requests}{span}")
    rows.add_row("blocks", f"{report.blocks}, of them {report.distinct_blocks} distinct")
    rows.add_row("tokens", f"{report.tokens} of input")
    if report.entry.nbytes is not None:
        size = exact(report.entry.nbytes)
        rows.add_row("one block", Text(f"{size}, all ranks, by {report.entry.source}"))
    if report.all_nbytes is not None:
        rows.add_row("all blocks", format_nbytes(report.all_nbytes))
    for note in report.notes:
        rows.add_row("note", Text(note, style="yellow"))
    return rows


def _problems(report: ReplayReport) -> Iterator[RenderableType]:
    count = report.problem_count
    lines = "1 line is wrong" if count == 1 else f"{count} lines are wrong"
    yield Text(f"{lines}; nothing was replayed", style="bold red")
    yield bullets(f"line {problem.line}: {problem.text}" for problem in report.problems)
    if report.problem_count > len(report.problems):
        yield Text(f"… and {report.problem_count - len(report.problems)} more")


def _rates(report: ReplayReport) -> Table:
    bytes_known = report.entry.nbytes is not None
    names = ["blocks", *(["capacity"] if bytes_known else []), "hits", "LRU", "FIFO", "foresight"]
    names += ["loaded"] if bytes_known else ["hit tokens"]
    table = plain_table(*names, right=names)
    for run in report.runs:
        size = [] if run.capacity_nbytes is None else [format_nbytes(run.capacity_nbytes)]
        last = (
            str(run.hit_tokens) if run.loaded_nbytes is None else format_nbytes(run.loaded_nbytes)
        )
        table.add_row(
            str(run.capacity_blocks),
            *size,
            f"{run.hit_blocks} of {report.blocks}",
            _rate(run.hit_share),
            _rate(run.fifo_hit_share),
            _rate(run.foresight_hit_share),
            last,
        )
    size = ["–"] if bytes_known else []
    hits = f"{report.ceiling_hit_blocks} of {report.blocks}"
    share = _rate(report.ceiling_hit_share)
    loaded = str(report.ceiling_hit_tokens)
    if report.entry.token_nbytes is not None:
        loaded = format_nbytes(round(report.ceiling_hit_tokens * report.entry.token_nbytes))
    table.add_row("endless", *size, hits, share, share, share, loaded, style="bold")
    return table


def _rate(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _chart(report: ReplayReport) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    most = report.ceiling_hit_share or 1.0
    for run in report.runs:
        size = run.capacity_nbytes
        name = f"{run.capacity_blocks} blocks" if size is None else format_nbytes(size)
        table.add_row(name, Text(_bar(run.hit_share / most), style="cyan"), _rate(run.hit_share))
    table.add_row(
        "endless",
        Text(_bar(report.ceiling_hit_share / most), style="green"),
        _rate(report.ceiling_hit_share),
    )
    return table


def _bar(share: float) -> str:
    eighths = round(min(1.0, share) * _CHART_CELLS * len(_EIGHTHS))
    whole, part = divmod(eighths, len(_EIGHTHS))
    return ("█" * whole + _EIGHTHS[part]).rstrip()


def _misses(runs: tuple[CapacityRun, ...]) -> Table:
    reasons = [name for name in _MISSES if any(name in run.misses for run in runs)]
    columns = ["capacity", "evictions", "no room", *(name.replace("_", " ") for name in reasons)]
    table = plain_table(*columns, right=columns)
    for run in runs:
        table.add_row(
            str(run.capacity_blocks),
            str(run.evictions),
            str(run.refused_blocks),
            *(str(run.misses.get(name, 0)) for name in reasons),
        )
    return table
