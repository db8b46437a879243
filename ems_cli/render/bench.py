"""The report of `ems-cli bench` as text: the verdict first, and little more."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import BenchReport, DeviceBench, Figures, Together
from ems_cli.render.bars import bar, histogram
from ems_cli.render.bench_compare import comparison_text
from ems_cli.render.bench_details import details_of
from ems_cli.render.bench_names import LIBRARY, name_of
from ems_cli.render.figures import (
    bullets,
    duration,
    gigabytes,
    grid,
    heading,
    milliseconds,
    percent,
    plain_table,
)

_BAR = 16
_BINS = 32
PHASES = {
    "wait": ("wait",),
    "plan": ("plan",),
    "pool": ("pool",),
    "start": ("start",),
    "copy": ("copy",),
    "commit": ("commit",),
    "end": ("result", "other"),
}
"""Columns, and what is added up in each."""
_SHOWN_RAW = {
    "one stream": ("raw_copy_out", "raw_copy_in"),
    "two streams": ("raw_copy_out_two_streams", "raw_copy_in_two_streams"),
}


def bench_text(report: BenchReport, *, details: bool = False) -> RenderableType:
    """Return the report on all devices; with `details` every figure of it."""
    parts: list[RenderableType] = []
    for device in report.devices:
        parts += [*_device(device, report, details=details), Text()]
    if report.together is not None:
        parts += [*_together(report.together), Text()]
    if report.comparison is not None:
        parts += [*comparison_text(report.comparison), Text()]
    return Group(*parts, *_end(report))


def _device(device: DeviceBench, report: BenchReport, *, details: bool) -> Iterator[RenderableType]:
    yield heading(f"{device.device}  {device.device_name}", device.labels)
    yield _verified(device)
    yield from _reached(device)
    yield Text()
    yield _summary(device, report)
    yield Text()
    yield _rates(device)
    yield Text()
    yield from _phases(device)
    yield heading("Times of the runs")
    yield _histograms(device)
    if details:
        yield from details_of(device, report)
    if device.reasons:
        yield Text()
        yield bullets(device.reasons)


def _reached(device: DeviceBench) -> Iterator[Text]:
    """Yield the verdict on speed."""
    pairs = []
    for prefix in ("", "async_"):
        names = (f"{prefix}save", f"{prefix}load")
        shares = [
            device.operations[name].figures.ceiling_share
            for name in names
            if name in device.operations
        ]
        if len(shares) == len(names) and None not in shares:
            pairs.append(" and ".join(percent(share) for share in shares))
    if pairs:
        asynchronous = f", asynchronous {pairs[1]}" if len(pairs) > 1 else ""
        yield Text(f"Save and load reach {pairs[0]} of the raw copy{asynchronous}")


def _summary(device: DeviceBench, report: BenchReport) -> Table:
    shape, settings, spans = device.shape, report.settings, device.span_facts
    rows = grid()
    layout = "" if shape.arrangement == "separate" else f", {shape.arrangement}"
    rows.add_row(
        "cache",
        Text(
            f"{shape.kvcache_type}, {shape.num_layers} layers, {shape.num_blocks} blocks × "
            f"{shape.block_size} tokens, from {shape.source}{layout}"
        ),
    )
    order = "following each other" if settings.order == "sequential" else "at random"
    calls = "" if settings.in_flight == 1 else f"{settings.in_flight} calls of "
    rows.add_row(
        "a run",
        f"{calls}{settings.blocks_per_call} blocks {order}, saved, then loaded into others",
    )
    if settings.miss_ratio:
        missing = settings.blocks_per_call - settings.hits_per_call
        rows.add_row("", f"the last {missing} blocks of each load were never saved")
    sizes = format_nbytes(spans.median_nbytes)
    if spans.smallest_nbytes != spans.largest_nbytes:
        smallest, largest = map(format_nbytes, (spans.smallest_nbytes, spans.largest_nbytes))
        sizes = f"{smallest} to {largest}, median {sizes}"
    moved = settings.hits_per_call * settings.in_flight * shape.block_nbytes
    rows.add_row("", f"{format_nbytes(moved)} each way, {spans.spans} spans of {sizes}")
    pool = settings.pool or "memory:// in this process"
    rows.add_row("pool", Text(f"{pool}, {format_nbytes(device.pool_capacity_nbytes)}"))
    return rows


def _rates(device: DeviceBench) -> Table:
    columns = ("GB/s", "of raw", "p50 ms", "±", "p99 ms")
    table = plain_table("", "GB/s", " ", *columns[1:], right=columns)
    figures = {name: one.figures for name, one in device.operations.items()}
    shown = [name for name in LIBRARY if name in figures]
    for direction in range(2):
        ceiling = next((figures[name].ceiling for name in shown[direction:]), None)
        name = _SHOWN_RAW[ceiling or "one stream"][direction]
        shown += [name] if name in figures else []
    shown += [name for name in ("raw_copy_both_ways", "memcpy") if name in figures]
    most = max(figures[name].bytes_per_second for name in shown)
    for name in shown:
        one = figures[name]
        style = "" if name in LIBRARY else "dim"
        table.add_row(
            name_of(name.removesuffix("_two_streams")),
            gigabytes(one.bytes_per_second),
            Text(bar(one.bytes_per_second, most, _BAR).ljust(_BAR), style=style or "green"),
            percent(one.ceiling_share),
            milliseconds(one.seconds_p50),
            _known_to(one),
            milliseconds(one.seconds_p99),
            style=style,
        )
    return table


def _known_to(figures: Figures) -> str:
    low, high = figures.seconds_p50_low, figures.seconds_p50_high
    if low is None or high is None or not figures.seconds_p50:
        return "–"
    return percent((high - low) / 2 / figures.seconds_p50)


def _phases(device: DeviceBench) -> Iterator[RenderableType]:
    found = {
        name: device.operations[name].figures
        for name in LIBRARY
        if name in device.operations and device.operations[name].figures.phase_shares
    }
    if not found:
        return
    table = plain_table("Where the time goes", *PHASES, "held ms", right=(*PHASES, "held ms"))
    for name, one in found.items():
        table.add_row(name_of(name), *phase_row(one), milliseconds(one.submit_seconds_p50))
    yield table
    yield Text()


def phase_row(figures: Figures) -> Iterator[str]:
    """Yield the cells of `PHASES`."""
    for phases in PHASES.values():
        yield percent(sum(figures.phase_shares.get(phase, 0.0) for phase in phases))


def _histograms(device: DeviceBench) -> Table:
    table = Table.grid(padding=(0, 2))
    for name in LIBRARY:
        if name in device.operations:
            seconds = [run.seconds for run in device.operations[name].runs]
            bars = histogram(seconds, _BINS)
            table.add_row(name_of(name), duration(min(seconds)), bars, duration(max(seconds)))
    return table


def _verified(device: DeviceBench) -> Text:
    found = device.verification
    if found is None:
        return Text("UNVERIFIED: no loaded byte was compared (--no-verify)", style="bold red")
    if found.wrong_blocks:
        text = f"WRONG: {found.wrong_blocks} of {found.verified_blocks} loaded blocks differ"
        first = f"; {found.first_wrong}" if found.first_wrong else ""
        return Text(text + first, style="bold red")
    if not found.verified_blocks:
        return Text("UNVERIFIED: no run loaded all that was saved", style="bold red")
    return Text(
        f"Verified: {found.verified_blocks} loaded blocks hold what was saved, byte by byte",
        style="green",
    )


def _together(together: Together) -> Iterator[RenderableType]:
    yield heading("All NPUs at once: saves, then loads")
    table = plain_table("", "GB/s", " ", right=("GB/s",))
    most = max(together.together_bytes_per_second, sum(together.alone_bytes_per_second))
    for name, rate in zip(together.devices, together.alone_bytes_per_second, strict=True):
        table.add_row(f"{name} alone", gigabytes(rate), bar(rate, most, 2 * _BAR))
    rate = together.together_bytes_per_second
    table.add_row("all at once", gigabytes(rate), bar(rate, most, 2 * _BAR))
    yield table
    yield Text(f"{percent(together.scaling)} of the sum of the rates alone")


def _end(report: BenchReport) -> Iterator[RenderableType]:
    if report.ended == "interrupted":
        yield Text("Interrupted: these are the runs until then", style="bold yellow")
    if report.failure is not None:
        yield Text(f"Failed after these runs: {report.failure}", style="bold red")
    if report.simulated:
        yield Text("SIMULATED: these figures say nothing about hardware", style="yellow")
