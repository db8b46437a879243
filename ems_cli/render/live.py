"""Processes that use the pool, as text: an overview, and each by itself."""

from collections.abc import Iterator, Mapping

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.live import LiveReport
from ems_cli.diagnostics.process_figures import OperationFigures, ProcessFigures
from ems_cli.render.figures import bullets, grid, heading, plain_table
from ems_cli.render.text import visible

_STYLES = {"alive": "green", "dead": "bold red", "ended": "yellow", "saved": "cyan"}
_BAR_CELLS = 24
_FEW = 2
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def live_text(report: LiveReport, *, details: bool = False, few: int = _FEW) -> RenderableType:
    """Return the overview, and each process by itself where they are `few`, or with `details`."""
    return Group(*_live(report, details=details or len(report.processes) <= few))


def _live(report: LiveReport, *, details: bool) -> Iterator[RenderableType]:
    yield heading(_title(report.processes))
    if not report.processes:
        yield Text(f"none has left a description in {visible(report.run_dir)}", style="dim")
    else:
        yield _overview(report.processes)
    if details:
        for process in report.processes:
            yield Text()
            yield process_text(process)
    else:
        doubts = [f"pid {one.pid}: {doubt}" for one in report.processes for doubt in one.doubts]
        if doubts:
            yield Text()
            yield heading("Suspicious")
            yield bullets(doubts)
        yield Text("--details or --pid N shows more of each", style="dim")
    yield from _footer(report)


def _footer(report: LiveReport) -> Iterator[RenderableType]:
    yield from (Text(note, style="yellow") for note in report.notes)
    if report.pruned:
        pids = ", ".join(map(str, report.pruned))
        yield Text(f"removed what dead processes had left: pid {pids}")
    elif any(process.state == "dead" for process in report.processes):
        yield Text("--prune removes what dead processes have left", style="dim")
    for file in report.unreadable:
        yield Text(f"not understood, of another version of ems: {visible(file)}", style="yellow")


def _title(processes: tuple[ProcessFigures, ...]) -> str:
    counts = {state: sum(one.state == state for one in processes) for state in _STYLES}
    alive = counts.pop("alive")
    others = "".join(f", {count} {state}" for state, count in counts.items() if count)
    return f"Processes: {alive} alive{others}"


def _overview(processes: tuple[ProcessFigures, ...]) -> Table:
    columns = ("pid", "rank", "npu", "state", "up", "pool", "saved", "loaded", "hits")
    table = plain_table(*columns, right=set(columns) - {"state"})
    for one in processes:
        by_name = {operation.name: operation for operation in one.operations}
        table.add_row(
            str(one.pid),
            str(one.rank_id),
            str(one.device_id),
            Text(one.state, style=_STYLES[one.state]),
            age(one.age_seconds),
            _share(one.pool.used_nbytes, one.pool.capacity_nbytes),
            _moved(by_name.get("save")),
            _moved(by_name.get("load")),
            _rate(one.hit_share),
        )
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"


def _moved(operation: OperationFigures | None) -> str:
    """Return what an operation moved: per second where that is known, else in all."""
    if operation is None:
        return "–"
    if operation.rates is None:
        return format_nbytes(operation.nbytes)
    return _speed(operation.rates.bytes_per_second)


def _speed(bytes_per_second: float) -> str:
    """Return a rate in the unit that keeps it readable, in powers of 1000."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if bytes_per_second >= size:
            return f"{bytes_per_second / size:.1f} {unit}/s"
    return f"{bytes_per_second:.0f} B/s"


def _rate(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def process_text(process: ProcessFigures) -> RenderableType:
    """Return one process by itself."""
    return Group(*_process(process))


def _process(one: ProcessFigures) -> Iterator[RenderableType]:
    yield _name(one)
    yield _facts(one)
    if one.operations:
        yield _operations(one.operations)
    if one.doubts:
        yield Text("Suspicious:", style="bold yellow")
        yield bullets(one.doubts)


def _name(one: ProcessFigures) -> Text:
    line = heading(f"pid {one.pid}")
    if one.command:
        line.append(f"  {visible(one.command)}", style="not bold")
    line.append(f"  {one.state}", style=_STYLES[one.state])
    if one.state == "alive":
        line.append(f" for {age(one.age_seconds)}", style="not bold")
    return line


def _facts(one: ProcessFigures) -> Table:
    rows = grid()
    names = one.namespace
    ranks = ", ".join(
        f"{kind} {names.get(f'rank_in_{kind}_group')} of {names.get(f'{kind}_world_size')}"
        for kind in ("tp", "pp")
        if names.get(f"{kind}_world_size") is not None
    )
    visible_npus = "" if one.visible_devices is None else f", visible {one.visible_devices}"
    rank = f"{one.rank_id} ({ranks}) on npu:{one.device_id}{visible_npus}"
    rows.add_row("rank", Text(visible(rank)))
    tenant = f", tenant {names['access_id']}" if names.get("access_id") else ""
    digest = one.namespace_digest[:12]
    rows.add_row(
        "model", Text(visible(f"{one.model_id}{tenant}, {one.kvcache_type}, namespace {digest}"))
    )
    _add_layout(rows, one)
    pool = one.pool
    url = "memory://, the default" if pool.url is None else pool.url
    rows.add_row("pool", Text(visible(url)))
    rows.add_row("", _bar(pool.used_nbytes, pool.capacity_nbytes))
    rows.add_row(
        "",
        f"evictable {format_nbytes(pool.evictable_nbytes)}, held {format_nbytes(pool.held_nbytes)},"
        f" reserved {format_nbytes(pool.reserved_nbytes)}",
    )
    entries, evictions = _many(pool.entries, "entry", "entries"), _many(pool.evictions, "eviction")
    rows.add_row("", f"{entries}, {evictions}")
    hits = f"{_rate(one.hit_share)}: {one.hit_blocks} of {one.looked_up_blocks} blocks"
    rows.add_row("hit rate", hits if one.looked_up_blocks else "no block was asked for yet")
    if one.misses_by_reason:
        rows.add_row("misses", Text(_counts(one.misses_by_reason)))
    if one.failures_by_code:
        rows.add_row("failures", Text(_counts(one.failures_by_code), style="red"))
    rows.add_row("figures", f"{age(one.written_seconds_ago)} old")
    return rows


def _add_layout(rows: Table, one: ProcessFigures) -> None:
    if one.layout is None:
        rows.add_row("cache", Text("not registered yet", style="yellow"))
        return
    layout = one.layout
    planes = layout.planes / layout.layers
    rows.add_row(
        "cache",
        f"{layout.layers} layers × {planes:g} planes, {layout.token_nbytes} B per token, "
        f"{format_nbytes(layout.nbytes)}",
    )
    for group in layout.groups:
        window = "" if group.window is None else f", window {group.window}"
        which = "" if len(layout.groups) == 1 else f"layers {group.layers}: "
        rows.add_row(
            "",
            f"{which}{group.num_blocks} blocks × {group.block_size} tokens{window}, "
            f"layout {escape(visible(group.fingerprint[:12]))}",
        )
    for warning in layout.warnings:
        rows.add_row("warning", Text(visible(warning), style="yellow"))


def _operations(operations: tuple[OperationFigures, ...]) -> Table:
    with_rates = any(operation.rates for operation in operations)
    columns = ["calls", "failed", "blocks", "done", "ms per call"]
    columns += ["blocks/s", "rate"] if with_rates else ["bytes"]
    table = plain_table("", *columns, right=columns)
    for one in operations:
        failed = Text(str(one.failed), style="bold red" if one.failed else "")
        mean = f"{one.seconds / one.calls * 1e3:.2f}" if one.calls else "–"
        last = ["–", "–"] if with_rates else [format_nbytes(one.nbytes)]
        if one.rates is not None:
            last = [f"{one.rates.blocks_per_second:.0f}", _speed(one.rates.bytes_per_second)]
        counts = (str(one.calls), failed, str(one.blocks), str(one.done))
        table.add_row(one.name, *counts, mean, *last)
    return table


def _bar(part: int, whole: int) -> Text:
    cells = round(_BAR_CELLS * min(1.0, max(0.0, part / whole))) if whole else 0
    text = Text("█" * cells, style="cyan")
    text.append("░" * (_BAR_CELLS - cells), style="dim")
    text.append(f" {format_nbytes(part)} of {format_nbytes(whole)} used", style="default")
    return text


def _counts(counts: Mapping[str, int]) -> str:
    parts = sorted(counts.items(), key=lambda item: -item[1])
    return visible(
        ", ".join(
            f"{name.replace('_', ' ') if name.islower() else name} {count}" for name, count in parts
        )
    )


def _many(count: int, one: str, several: str = "") -> str:
    return f"{count} {one if count == 1 else several or one + 's'}"


def age(seconds: float) -> str:
    """Return a time as people say it: "35 s", "12 min", "3.5 h", "2.1 d"."""
    if seconds < 1:
        return "< 1 s"
    if seconds < 2 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 2 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    return f"{seconds / _HOUR:.1f} h" if seconds < 2 * _DAY else f"{seconds / _DAY:.1f} d"
