"""A sweep of `ems-cli bench` as text: a row for each point."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import DeviceBench
from ems_cli.diagnostics.bench_sweep import SweepPoint, SweepReport
from ems_cli.render.bars import bar
from ems_cli.render.figures import gigabytes, heading, milliseconds, percent, plain_table

_COLUMNS = {
    "block_size": "tokens",
    "blocks_per_call": "blocks",
    "in_flight": "calls",
    "order": "order",
    "pool": "pool",
}
_BAR = 12
_SHORT = 24


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
    yield Text("Asynchronous calls; of raw: of the better raw copy; p50 of a load.", style="dim")
    if report.ended == "interrupted":
        yield Text("Interrupted: these are the points until then", style="bold yellow")
    if report.failure is not None:
        yield Text(f"Failed after these points: {report.failure}", style="bold red")
    if report.simulated:
        yield Text("SIMULATED: these figures say nothing about hardware", style="yellow")


def _table(report: SweepReport) -> Table:
    several = any(len(one.report.devices) > 1 for one in report.points)
    names = [_COLUMNS[name] for name in report.varied] + (["npu"] if several else [])
    figures = ("span", "save", "load GB/s", "of raw", "p50 ms")
    table = plain_table(*names, *figures[:3], " ", *figures[3:], right=(*names, *figures))
    most = max(
        (_rate(device, "async_load") for one in report.points for device in one.report.devices),
        default=0.0,
    )
    for one in report.points:
        for device in one.report.devices:
            table.add_row(*_row(report, one, device, most, several=several))
    return table


def _row(
    report: SweepReport, one: SweepPoint, device: DeviceBench, most: float, *, several: bool
) -> Iterator[RenderableType]:
    for name in report.varied:
        yield Text(_value(one, name))
    if several:
        yield Text(device.device.removeprefix("npu:"))
    load = device.operations["async_load"].figures
    yield format_nbytes(device.span_facts.median_nbytes)
    yield gigabytes(_rate(device, "async_save"))
    yield gigabytes(load.bytes_per_second)
    yield bar(load.bytes_per_second, most, _BAR).ljust(_BAR)
    yield percent(load.ceiling_share)
    yield milliseconds(load.seconds_p50)


def _value(one: SweepPoint, name: str) -> str:
    value = getattr(one.point, name)
    if name == "blocks_per_call":
        value = one.report.settings.blocks_per_call
    if value is None:
        return "memory://"
    text = str(value)
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def _rate(device: DeviceBench, operation: str) -> float:
    found = device.operations.get(operation)
    return found.figures.bytes_per_second if found else 0.0
