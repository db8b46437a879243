"""Reports of `ems-cli pool` as text."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.pool_changes import RemovalReport, counted
from ems_cli.diagnostics.pool_contents import KeyFigures, KeysReport, StatsReport
from ems_cli.diagnostics.pool_namespaces import NamespaceFigures
from ems_cli.diagnostics.pool_serve import ServeReport
from ems_cli.render.figures import bullets, exact, grid, heading, percent
from ems_cli.render.text import visible

_BAR_CELLS = 32
_SHOWN_PIDS = 6


def serve_text(report: ServeReport) -> str:
    """Return how to use a cluster that is up; plain, to be copied."""
    lines = [
        f"Mooncake is up, with {format_nbytes(report.capacity_nbytes)} of memory. In other shells:",
        "",
        f"  export EMS_POOL='{report.url}'",
        "  ems-cli pool stats",
        "",
        f"metrics  {report.metrics_url}",
        f"lease    {report.lease_seconds:g} s in which what was read is not evicted",
        f"pids     master {report.master_pid}, node {report.node_pid}",
        "",
        "For trials alone: nobody is asked for a name, and the node's data ports listen",
        "on all interfaces. What it holds goes when it ends: by Ctrl-C.",
    ]
    return "\n".join(lines)


def stats_text(report: StatsReport) -> RenderableType:
    """Return a pool's figures."""
    return Group(*_stats(report))


def _stats(report: StatsReport) -> Iterator[RenderableType]:
    yield heading(f"Pool {visible(report.url)}")
    yield _sizes(report)
    yield Text()
    yield heading("Entries by namespace")
    if report.namespaces:
        yield _namespaces(report.namespaces)
    else:
        yield Text("there are none", style="dim")
    if report.notes:
        yield Text()
        yield bullets(map(visible, report.notes))


def _sizes(report: StatsReport) -> Table:
    rows = grid()
    rows.add_row("capacity", exact(report.capacity_nbytes))
    rows.add_row("backed", exact(report.backed_nbytes))
    share = report.used_nbytes / report.capacity_nbytes if report.capacity_nbytes else 0.0
    rows.add_row("", Text.assemble(_bar(share), f" {percent(share)}"))
    rows.add_row("used", exact(report.used_nbytes))
    rows.add_row("evictable", f"up to {exact(report.evictable_nbytes)}")
    rows.add_row("free", exact(report.free_nbytes))
    rows.add_row("largest free", exact(report.largest_free_nbytes))
    rows.add_row("entries", str(report.entries))
    rows.add_row("evictions", str(report.evictions))
    rows.add_row("processes", Text(f"{_pids(report.pids) or 'none known on this host'}"))
    if report.pids:
        rows.add_row("held", f"{exact(report.held_nbytes)}, in the processes' own memory")
        rows.add_row("reserved", f"{exact(report.reserved_nbytes)}, likewise")
    return rows


def _bar(share: float) -> Text:
    cells = min(_BAR_CELLS, round(_BAR_CELLS * share))
    return Text("█" * cells, style="cyan") + Text("░" * (_BAR_CELLS - cells), style="dim")


def _namespaces(namespaces: Sequence[NamespaceFigures]) -> Table:
    table = Table.grid(padding=(0, 2))
    for justify in ("left", "right", "right"):
        table.add_column(justify=justify, no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("namespace", "entries", "layouts", "known as", style="bold")
    for one in namespaces:
        name = visible(one.name) if one.name else "nobody has told"
        pids = f" ({_pids(one.pids)})" if one.pids else ""
        known = Text(name, style="" if one.name else "dim") + Text(pids)
        digest = Text(visible(one.digest) or "none")
        table.add_row(digest, str(one.entries), str(one.layouts), known)
    return table


def _pids(pids: Sequence[int]) -> str:
    if not pids:
        return ""
    shown = ", ".join(map(str, pids[:_SHOWN_PIDS]))
    more = f" and {len(pids) - _SHOWN_PIDS} more" if len(pids) > _SHOWN_PIDS else ""
    return f"pid {shown}{more}"


def keys_text(report: KeysReport) -> str:
    """Return one line for each key, which is never broken: it is there to be copied."""
    rows = [("tokens", "bytes", "key"), *map(_row, report.keys)]
    wide = [max(len(row[at]) for row in rows) for at in (0, 1)]
    return "\n".join(f"{row[0]:>{wide[0]}}  {row[1]:>{wide[1]}}  {row[2]}" for row in rows)


def _row(one: KeyFigures) -> tuple[str, str, str]:
    tokens, nbytes = ("–" if value is None else str(value) for value in (one.tokens, one.nbytes))
    return tokens, nbytes, visible(one.key)


def removal_text(report: RemovalReport) -> str:
    """Return what has gone."""
    whole = f" of namespace {report.namespace}" if report.namespace else ""
    lines = [f"{counted(report.removed)}{whole} removed from {visible(report.url)}"]
    lines += [f"not there: {visible(key)}" for key in report.missing]
    if report.pids and report.removed:
        lines.append(f"{_pids(report.pids)} will miss what was removed")
    return "\n".join(lines)
