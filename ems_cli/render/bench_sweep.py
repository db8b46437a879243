"""A sweep of `ems-cli bench` as text: a row for each point."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import DeviceBench
from ems_cli.diagnostics.bench_sweep import SweepPoint, SweepReport
from ems_cli.render.bars import bar
from ems_cli.render.figures import gigabytes, grid, heading, milliseconds, percent, plain_table

_COLUMNS = {
    "block_size": "tokens",
    "blocks_per_call": "blocks",
    "in_flight": "calls",
    "order": "order",
    "pool": "pool",
}
_BAR = 12
_MOST_WITH_BARS = 4


def sweep_text(report: SweepReport) -> RenderableType:
    """Return the report."""
    return Group(*_parts(report))


def _parts(report: SweepReport) -> Iterator[RenderableType]:
    first = report.points[0].report.devices[0]
    shape = first.shape
    yield heading(f"{first.device_name}, {shape.source}, {shape.num_layers} layers", report.labels)
    wrong = [one for one in report.points if not one.report.verified]
    if any(one.report.has_problem for one in report.points):
        yield Text("WRONG bytes, failed blocks or a regression: see --json", style="bold red")
    elif wrong:
        yield Text(f"UNVERIFIED: {len(wrong)} of {len(report.points)} points", style="bold red")
    else:
        yield Text("Verified at every point, byte by byte", style="green")
    yield Text()
    yield _table(report)
    yield from _legend(report)
    yield Text(
        "GB/s of asynchronous saves and loads; bars, of raw (the better raw copy), p50 and the "
        "time that the caller is held: of the loads.",
        style="dim",
    )
    if report.ended == "interrupted":
        yield Text("Interrupted: these are the points until then", style="bold yellow")
    if report.failure is not None:
        yield Text(f"Failed after these points: {report.failure}", style="bold red")
    if report.simulated:
        yield Text("SIMULATED: these figures say nothing about hardware", style="yellow")


def _table(report: SweepReport) -> Table:
    several = any(len(one.report.devices) > 1 for one in report.points)
    names = [_COLUMNS[name] for name in report.varied] + (["npu"] if several else [])
    figures = ("span", "save", "load", "of raw", "p50 ms", "held ms")
    drawn = len(names) < _MOST_WITH_BARS
    bars = (" ",) if drawn else ()
    table = plain_table(*names, *figures[:3], *bars, *figures[3:], right=(*names, *figures))
    table.padding = (0, 1, 0, 0)  # many columns
    most = max(
        (_rate(device, "async_load") for one in report.points for device in one.report.devices),
        default=0.0,
    )
    for one in report.points:
        for device in one.report.devices:
            load = device.operations["async_load"].figures
            row = [_value(report, one, name) for name in report.varied]
            row += [device.device.removeprefix("npu:")] if several else []
            row += [_span(device), gigabytes(_rate(device, "async_save"))]
            row.append(gigabytes(load.bytes_per_second))
            row += [bar(load.bytes_per_second, most, _BAR).ljust(_BAR)] if drawn else []
            row += [percent(load.ceiling_share), milliseconds(load.seconds_p50)]
            table.add_row(*row, milliseconds(load.submit_seconds_p50))
    return table


def _span(device: DeviceBench) -> str:
    return format_nbytes(device.span_facts.median_nbytes).replace(".00 ", " ")


def _value(report: SweepReport, one: SweepPoint, name: str) -> str:
    if name == "blocks_per_call":
        return str(one.report.settings.blocks_per_call)
    if name == "pool":
        return _pool_names(report)[one.point.pool]
    return str(getattr(one.point, name))


def _pool_names(report: SweepReport) -> dict[str | None, str]:
    """Return the scheme of each pool's URL, with a number where several have the same."""
    names: dict[str | None, str] = {}
    for one in report.points:
        url = one.point.pool
        scheme = (url or "memory://").partition("://")[0]
        if url not in names:
            same = sum(name.partition(" ")[0] == scheme for name in names.values())
            names[url] = f"{scheme} {same + 1}" if same else scheme
    return names


def _legend(report: SweepReport) -> Iterator[RenderableType]:
    if "pool" in report.varied:
        rows = grid()
        for url, name in _pool_names(report).items():
            rows.add_row(name, Text(url or "memory:// in this process, just large enough"))
        yield rows


def _rate(device: DeviceBench, operation: str) -> float:
    found = device.operations.get(operation)
    return found.figures.bytes_per_second if found else 0.0
