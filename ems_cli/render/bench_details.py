"""What `ems-cli bench --details` shows besides: every percentile, blocks, what comes device."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import BenchReport, DeviceBench
from ems_cli.render.bench_names import LIBRARY, name_of
from ems_cli.render.figures import (
    duration,
    exact,
    gigabytes,
    grid,
    heading,
    milliseconds,
    percent,
    plain_table,
)


def details_of(device: DeviceBench, report: BenchReport) -> Iterator[RenderableType]:
    """Yield the tables."""
    yield Text()
    yield heading("Milliseconds")
    yield _times(device)
    yield Text()
    yield heading("Against the raw copy")
    yield _ceilings(device)
    yield Text(
        "one: all spans in one call on one stream; two: half of the bytes on each of two streams. "
        "Medians of this rate by that of the raw copy next to it.",
        style="dim",
    )
    yield Text()
    yield heading("Blocks and bytes of all runs")
    yield _blocks(device)
    yield Text()
    yield heading("Once")
    yield _once(device, report)


def _times(device: DeviceBench) -> Table:
    columns = ("submit", "transfer", "total p50", "p90", "p99", "max")
    table = plain_table("", *columns, right=columns)
    for name, operation in device.operations.items():
        figures = operation.figures
        table.add_row(
            name_of(name),
            milliseconds(figures.submit_seconds_p50),
            milliseconds(figures.transfer_seconds_p50),
            milliseconds(figures.seconds_p50),
            milliseconds(figures.seconds_p90),
            milliseconds(figures.seconds_p99),
            milliseconds(figures.seconds_max),
        )
    return table


def _ceilings(device: DeviceBench) -> Table:
    columns = ("runs", "GB/s", "one", "two", "cold ms")
    table = plain_table("", *columns, right=columns)
    for name, operation in device.operations.items():
        figures = operation.figures
        table.add_row(
            name_of(name),
            str(figures.runs),
            gigabytes(figures.bytes_per_second),
            percent(figures.one_stream_share),
            percent(figures.two_streams_share),
            milliseconds(operation.cold[0].seconds if operation.cold else None),
        )
    return table


def _blocks(device: DeviceBench) -> Table:
    columns = ("requested", "moved", "missed", "failed", "bytes moved")
    table = plain_table("", *columns, right=columns)
    for name in LIBRARY:
        if name in device.operations:
            figures = device.operations[name].figures
            failed = Text(
                str(figures.failed_blocks), style="bold red" if figures.failed_blocks else ""
            )
            table.add_row(
                name_of(name),
                str(figures.requested_blocks),
                str(figures.moved_blocks),
                str(figures.missed_blocks),
                failed,
                str(figures.nbytes),
            )
    return table


def _once(device: DeviceBench, report: BenchReport) -> Table:
    rows = grid()
    rows.add_row("cache", exact(device.shape.nbytes))
    rows.add_row("per block", exact(device.shape.block_nbytes))
    rows.add_row(
        "registered",
        f"in {duration(device.registration_seconds)}, again in "
        f"{duration(device.registration_again_seconds)}",
    )
    if device.pinned_nbytes:
        each = device.pinning_seconds / device.pinned_nbytes * (1 << 30)
        rows.add_row(
            "pinned",
            f"{format_nbytes(device.pinned_nbytes)} in {duration(device.pinning_seconds)}, "
            f"{duration(each)} per GiB",
        )
    if device.both_ways_gain is not None:
        rows.add_row("both at once", f"{device.both_ways_gain:.2f} times the rate of one direction")
    noise = report.noise
    if noise is not None:
        rows.add_row(
            "host",
            f"a spin of 1 ms takes {duration(noise.overrun_p99)} longer at p99, others use "
            f"{percent(noise.others_cpu_share)} of {noise.processors} processors",
        )
    rows.add_row("machine", Text(f"{report.machine.processor}, {report.machine.system}"))
    return rows
