"""The report of `ems-cli register` as text."""

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.block_sizes import BlockSize
from ems_cli.diagnostics.check import Check, Verdict
from ems_cli.diagnostics.readings import ShapeReading
from ems_cli.diagnostics.register import DeviceRegistration, RegisterReport, TensorLayout
from ems_cli.diagnostics.shape import ShapeSummary
from ems_cli.render.block_map import block_map_text, zoom_text
from ems_cli.render.figures import (
    VERDICT_STYLES,
    bullets,
    duration,
    exact,
    grid,
    heading,
)

_SYMBOLIC = "[num_blocks, block_size, heads, head_size]"


def register_text(report: RegisterReport, *, details: bool = False) -> RenderableType:
    """Return the report on all devices; layouts like the first device's are told in short.

    With `details` every check has its line, and every layer its addresses.
    """
    parts: list[RenderableType] = []
    first = report.devices[0] if report.devices else None
    for device in report.devices:
        again = first is not None and device is not first and _looks_like(device, first)
        parts += [*_device(device, report, in_short=again, details=details), Text()]
    style = VERDICT_STYLES[report.verdict.value]
    return Group(*parts, Text.assemble("Verdict: ", (report.verdict.value, style)))


def _looks_like(device: DeviceRegistration, first: DeviceRegistration) -> bool:
    verdicts = [[(check.name, check.verdict) for check in one.checks] for one in (device, first)]
    return device.layouts == first.layouts and verdicts[0] == verdicts[1]


def _device(
    device: DeviceRegistration, report: RegisterReport, *, in_short: bool, details: bool
) -> Iterator[RenderableType]:
    yield heading(f"{device.device}  {device.device_name}", report.labels)
    yield from _verdict(device)
    yield Text()
    yield _summary(device)
    if in_short:
        yield Text("layout and checks as on the first device", style="dim")
    else:
        yield from _layout(device.layouts)
        yield from _readings(device.readings)
        yield from _sizes(device.block_sizes)
    if device.block_map is not None:
        yield from block_map_text(device.block_map, in_short=in_short, details=details)
        if report.zoom is not None:
            yield from zoom_text(device.block_map, report.zoom)
    if not in_short:
        yield Text()
        yield heading("Checks")
        yield _checks(device.checks, details=details)
    if device.warnings:
        yield Text()
        yield Text("The library warned:")
        yield bullets(device.warnings)


def _summary(device: DeviceRegistration) -> Table:
    shape = device.shape
    rows = grid()
    rows.add_row("cache", Text(_cache(shape)))
    rows.add_row("per token", f"{shape.token_nbytes} B")
    rows.add_row("per block", exact(shape.block_nbytes))
    rows.add_row("total", exact(shape.nbytes))
    free, memory = format_nbytes(device.free_nbytes), format_nbytes(device.memory_nbytes)
    rows.add_row("memory", f"{free} of {memory} were free")
    for note in shape.notes:
        rows.add_row("note", Text(note))
    return rows


def _cache(shape: ShapeSummary) -> str:
    parallel = shape.parallel
    rank = f", rank {parallel.rank} of tp {parallel.tp} × pp {parallel.pp}"
    return (
        f"{shape.kvcache_type}, {shape.num_layers} layers, {shape.num_blocks} blocks × "
        f"{shape.block_size} tokens, from {shape.source}"
        f"{rank if parallel.tp * parallel.pp > 1 else ''}"
    )


def _layout(layouts: Sequence[TensorLayout]) -> Iterator[RenderableType]:
    yield Text()
    yield heading(f"Layout {_SYMBOLIC}")
    rows = grid()
    for layout in layouts:
        rows.add_row(
            Text(layout.name, style="bold"),
            Text(
                f"{list(layout.shape)} {layout.dtype}, {layout.npu_format}, layers {layout.layers}"
            ),
        )
        rows.add_row("", f"strides {list(layout.strides)} elements")
        rows.add_row(
            "",
            f"{layout.token_nbytes} B per token, {format_nbytes(layout.block_nbytes)} per block, "
            f"{layout.tensors} × {format_nbytes(layout.nbytes)}",
        )
    yield rows


def _readings(readings: Sequence[ShapeReading]) -> Iterator[RenderableType]:
    doubtful = [one for one in readings if one.others]
    if not doubtful:
        return
    yield Text()
    yield heading("Readings", ["AMBIGUOUS"])
    for one in doubtful:
        rows = grid()
        rows.add_row("shape", f"{list(one.shape)}, {one.tensors} tensors from {one.first} on")
        rows.add_row("read as", Text(one.read_as, style="bold"))
        for other in one.others:
            rows.add_row("also fits", Text(f"{other.reading}: {other.if_so}"))
        yield rows


def _sizes(sizes: Sequence[BlockSize]) -> Iterator[RenderableType]:
    if not sizes:
        return
    yield Text()
    yield heading("Block sizes")
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, style="dim")
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for size in sizes:
        table.add_row(size.name, size.tokens, Text(size.meaning))
    yield table


def _checks(checks: Sequence[Check], *, details: bool) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        passed = check.verdict is Verdict.PASS
        if passed and not details:
            continue
        verdict = Text(check.verdict.value, style=VERDICT_STYLES[check.verdict.value])
        table.add_row(verdict, check.name, Text(check.found))
        if not passed:
            table.add_row("", "", Text(f"wanted: {check.wanted}", style="dim"))
            table.add_row("", "", Text(f"fix: {check.fix}"))
    names = [check.name for check in checks if check.verdict is Verdict.PASS]
    if names and not details:
        table.add_row(Text("PASS", style="green"), f"{len(names)} others", ", ".join(names))
    return table


def _verdict(device: DeviceRegistration) -> Iterator[RenderableType]:
    if device.refusal is not None:
        yield Text(f"Refused: {device.refusal}", style="bold red")
        return
    counts = Counter(check.verdict for check in device.checks)
    told = [f"{counts[Verdict.PASS]} of {len(device.checks)} checks passed"]
    if counts[Verdict.WARN]:
        told.append(f"{counts[Verdict.WARN]} worth a look")
    if counts[Verdict.FAIL]:
        told.append(f"{counts[Verdict.FAIL]} FAILED")
    text = ", ".join(told)
    if device.layout_seconds is not None and device.register_seconds is not None:
        text = (
            f"Registered in {duration(device.register_seconds)}, of it the layout "
            f"{duration(device.layout_seconds)}; {text}"
        )
    yield Text(text, style="" if counts[Verdict.FAIL] else "green")
