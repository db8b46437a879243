"""The report of `ems-cli bench` as text."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import BenchReport, DeviceBench, Operation
from ems_cli.render.figures import (
    bullets,
    duration,
    exact,
    gigabytes,
    grid,
    heading,
    milliseconds,
    percent,
    plain_table,
)

_NAMES = {
    "memcpy": "host memcpy",
    "raw_copy_out": "raw copy out",
    "raw_copy_in": "raw copy in",
    "async_save": "async save",
    "async_load": "async load",
}
_BARS = "▁▂▃▄▅▆▇█"
_BINS = 24
_HISTOGRAMS = ("save", "load", "async_save", "async_load")


def bench_text(report: BenchReport) -> RenderableType:
    """Return the report on all devices."""
    parts: list[RenderableType] = []
    for device in report.devices:
        parts += [*_device(device, report), Text()]
    return Group(*parts, *_end(report))


def _device(device: DeviceBench, report: BenchReport) -> Iterator[RenderableType]:
    yield heading(f"{device.device}  {device.device_name}", device.labels)
    yield _summary(device, report)
    yield Text()
    yield heading("Rates and times")
    yield _rates(device)
    yield Text(
        "GB/s: 10^9 bytes that arrived, per second. of raw: this rate by that of the raw copy of "
        "the same spans next to it (saves: out, loads: in), median of the runs.",
        style="dim",
    )
    yield Text()
    yield heading("Milliseconds")
    yield _times(device)
    yield Text()
    yield heading("Blocks and bytes of all runs")
    yield _blocks(device)
    yield Text()
    yield heading("How the times are spread")
    yield _histograms(device)
    yield Text()
    yield _verified(device)
    if device.reasons:
        yield bullets(device.reasons)


def _summary(device: DeviceBench, report: BenchReport) -> Table:
    shape, settings, spans = device.shape, report.settings, device.span_facts
    rows = grid()
    rows.add_row(
        "cache",
        Text(
            f"{shape.kvcache_type}, {shape.num_layers} layers, {shape.num_blocks} blocks × "
            f"{shape.block_size} tokens, from {shape.source}"
        ),
    )
    rows.add_row("per block", exact(shape.block_nbytes))
    order = "following each other" if settings.sequential else "at random"
    calls = "1 call" if settings.in_flight == 1 else f"{settings.in_flight} calls"
    rows.add_row("one run", f"{calls} of {settings.blocks_per_call} blocks {order}")
    if settings.miss_ratio:
        missing = settings.blocks_per_call - settings.hits_per_call
        rows.add_row("", f"the last {missing} blocks of each load were never saved")
    sizes = format_nbytes(spans.median_nbytes)
    if spans.smallest_nbytes != spans.largest_nbytes:
        smallest, largest = (
            format_nbytes(spans.smallest_nbytes),
            format_nbytes(spans.largest_nbytes),
        )
        sizes = f"{smallest} to {largest}, median {sizes}"
    rows.add_row("spans", f"{spans.spans} of {sizes}")
    pool = settings.pool or "memory:// in this process"
    rows.add_row("pool", Text(f"{pool}, {format_nbytes(device.pool_capacity_nbytes)}"))
    rows.add_row("registered", f"in {duration(device.registration_seconds)}")
    return rows


def _rates(device: DeviceBench) -> Table:
    table = plain_table(
        *("", "runs", "per run", "GB/s", "of raw", "p50 ms", "cold ms"),
        right=("runs", "per run", "GB/s", "of raw", "p50 ms", "cold ms"),
    )
    for name, operation in device.operations.items():
        figures = operation.figures
        cold = operation.cold[0].seconds if operation.cold else None
        table.add_row(
            _NAMES.get(name, name),
            str(figures.runs),
            format_nbytes(figures.nbytes_per_run),
            gigabytes(figures.bytes_per_second),
            percent(figures.ceiling_share),
            milliseconds(figures.seconds_p50),
            milliseconds(cold),
        )
    return table


def _times(device: DeviceBench) -> Table:
    columns = ("submit", "transfer", "total p50", "p90", "p99", "max")
    table = plain_table("", *columns, right=columns)
    for name, operation in device.operations.items():
        figures = operation.figures
        table.add_row(
            _NAMES.get(name, name),
            milliseconds(figures.submit_seconds_p50),
            milliseconds(figures.transfer_seconds_p50),
            milliseconds(figures.seconds_p50),
            milliseconds(figures.seconds_p90),
            milliseconds(figures.seconds_p99),
            milliseconds(figures.seconds_max),
        )
    return table


def _blocks(device: DeviceBench) -> Table:
    columns = ("requested", "moved", "missed", "failed", "bytes moved")
    table = plain_table("", *columns, right=columns)
    for name in _HISTOGRAMS:
        if name in device.operations:
            figures = device.operations[name].figures
            failed = Text(
                str(figures.failed_blocks), style="bold red" if figures.failed_blocks else ""
            )
            table.add_row(
                _NAMES.get(name, name),
                str(figures.requested_blocks),
                str(figures.moved_blocks),
                str(figures.missed_blocks),
                failed,
                str(figures.nbytes),
            )
    return table


def _histograms(device: DeviceBench) -> Table:
    table = Table.grid(padding=(0, 2))
    for name in _HISTOGRAMS:
        if name in device.operations:
            low, bars, high = _histogram(device.operations[name])
            table.add_row(_NAMES.get(name, name), low, bars, high)
    return table


def _histogram(operation: Operation) -> tuple[str, str, str]:
    """Return the least time, bars over equal steps of time, and the greatest."""
    seconds = [run.seconds for run in operation.runs]
    low, high = min(seconds), max(seconds)
    counts = [0] * _BINS
    for each in seconds:
        place = int((each - low) / (high - low) * _BINS) if high > low else 0
        counts[min(place, _BINS - 1)] += 1
    most = max(counts)
    bars = "".join(_BARS[-(-count * len(_BARS) // most) - 1] if count else " " for count in counts)
    return duration(low), bars, duration(high)


def _verified(device: DeviceBench) -> Text:
    found = device.verification
    if found is None:
        return Text("UNVERIFIED: no loaded byte was compared (--no-verify)", style="bold red")
    if found.wrong_blocks:
        text = f"WRONG: {found.wrong_blocks} of {found.verified_blocks} loaded blocks differ"
        first = f"; {found.first_wrong}" if found.first_wrong else ""
        return Text(text + first, style="bold red")
    return Text(
        f"Verified: {found.verified_blocks} loaded blocks hold what was saved, byte by byte",
        style="green" if found.verified_blocks else "yellow",
    )


def _end(report: BenchReport) -> Iterator[RenderableType]:
    if report.ended == "interrupted":
        yield Text("Interrupted: these are the runs until then", style="bold yellow")
    if report.failure is not None:
        yield Text(f"Failed after these runs: {report.failure}", style="bold red")
    if report.simulated:
        yield Text("SIMULATED: these figures say nothing about hardware", style="yellow")
