"""The report of `ems-cli register` as text."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.block_map import GAP, BlockMap, Picture, Place
from ems_cli.diagnostics.check import Check, Verdict
from ems_cli.diagnostics.register import DeviceRegistration, RegisterReport, TensorLayout, Zoom
from ems_cli.diagnostics.shape import ShapeSummary
from ems_cli.render.figures import (
    VERDICT_STYLES,
    bullets,
    duration,
    exact,
    grid,
    heading,
    plain_table,
)

_SYMBOLIC = "[num_blocks, block_size, heads, head_size]"
_CELLS_PER_LINE = 64
_GLYPHS = "█▓▒░#*+=-:"
_SHOWN_LAYERS = 2
"""Layers of a run that looks alike: the first, and the last."""


def register_text(report: RegisterReport) -> RenderableType:
    """Return the report on all devices; layouts like the first device's are told in short."""
    parts: list[RenderableType] = []
    first = report.devices[0] if report.devices else None
    for device in report.devices:
        again = first is not None and device is not first and _looks_like(device, first)
        parts += [*_device(device, report, in_short=again), Text()]
    style = VERDICT_STYLES[report.verdict.value]
    return Group(*parts, Text.assemble("Verdict: ", (report.verdict.value, style)))


def _looks_like(device: DeviceRegistration, first: DeviceRegistration) -> bool:
    verdicts = [[(check.name, check.verdict) for check in one.checks] for one in (device, first)]
    return device.layouts == first.layouts and verdicts[0] == verdicts[1]


def _device(
    device: DeviceRegistration, report: RegisterReport, *, in_short: bool
) -> Iterator[RenderableType]:
    yield heading(f"{device.device}  {device.device_name}", report.labels)
    yield _summary(device)
    if in_short:
        yield Text("layout and checks as on the first device", style="dim")
    else:
        yield from _layout(device.layouts)
    if device.block_map is not None:
        yield from _block_map(device.block_map, in_short=in_short)
        if report.zoom is not None:
            yield from _zoom(device.block_map, report.zoom)
    if not in_short:
        yield Text()
        yield heading("Checks")
        yield _checks(device.checks)
    yield Text()
    yield from _end(device)


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


def _block_map(block_map: BlockMap, *, in_short: bool) -> Iterator[RenderableType]:
    yield Text()
    yield heading("Block map")
    if not in_short:
        yield _places(block_map.places)
        yield Text()
    names = dict.fromkeys((min(place.plane, 9), place.name) for place in block_map.places)
    legend = "   ".join(f"{_GLYPHS[plane]} {name}" for plane, name in names)
    sizes = {picture.cell_nbytes for picture in block_map.pictures}
    cell = format_nbytes(sizes.pop()) if len(sizes) == 1 else "as marked"
    yield Text(f"{legend}   · no tensor   one character is {cell}", style="dim")
    for picture in block_map.pictures:
        yield _drawn(picture, marked=bool(sizes))
    yield Text(
        f"{format_nbytes(block_map.tensor_nbytes)} in blocks, "
        f"{format_nbytes(block_map.padding_nbytes)} padding between blocks, "
        f"{format_nbytes(block_map.gap_nbytes)} between tensors"
    )


def _places(places: Sequence[Place]) -> Table:
    table = plain_table("layer", "plane", "from", "to", "size", right=("layer", "size"))
    for run in _alike(places):
        shown = run if len(run) <= _SHOWN_LAYERS + 1 else [run[0], run[-1]]
        for at, layer in enumerate(shown):
            if at == 1 and len(shown) < len(run):
                table.add_row("", "", f"… {len(run) - _SHOWN_LAYERS} layers alike", "", "")
            for place in layer:
                table.add_row(
                    str(place.layer),
                    Text(place.name),
                    f"{place.address:#x}",
                    f"{place.end - 1:#x}",
                    format_nbytes(place.end - place.address),
                )
    return table


def _alike(places: Sequence[Place]) -> list[list[list[Place]]]:
    """Return runs of neighbouring layers whose tensors have the same names and sizes."""
    layers: dict[int, list[Place]] = {}
    for place in places:
        layers.setdefault(place.layer, []).append(place)
    runs: list[list[list[Place]]] = []
    for layer in layers.values():
        if runs and _look(runs[-1][-1]) == _look(layer):
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def _look(layer: Sequence[Place]) -> list[tuple[str, int, int]]:
    return [(place.name, place.end - place.address, place.block_stride_nbytes) for place in layer]


def _drawn(picture: Picture, *, marked: bool) -> Text:
    text = Text()
    for start in range(0, len(picture.cells), _CELLS_PER_LINE):
        cells = picture.cells[start : start + _CELLS_PER_LINE]
        drawn = "".join("·" if cell == GAP else _GLYPHS[int(cell)] for cell in cells)
        text.append(f"{picture.start + start * picture.cell_nbytes:#14x} ", style="dim")
        text.append(drawn + "\n")
    if marked:
        text.append(f"{'':14} one character is {format_nbytes(picture.cell_nbytes)}\n", style="dim")
    text.rstrip()
    return text


def _zoom(block_map: BlockMap, zoom: Zoom) -> Iterator[RenderableType]:
    yield Text()
    if zoom.whole_block:
        last = zoom.slot + block_map.places[0].block_size - 1
        yield heading(f"Block {zoom.block}: slots {zoom.slot} to {last}")
    else:
        yield heading(f"Slot {zoom.slot}: block {zoom.block}, token {zoom.offset} of it")
    table = plain_table("layer", "plane", "address", "bytes", right=("layer", "bytes"))
    for run in _alike(block_map.places):
        shown = run if len(run) <= _SHOWN_LAYERS + 1 else [run[0], run[-1]]
        for at, layer in enumerate(shown):
            if at == 1 and len(shown) < len(run):
                table.add_row("", "", f"… {len(run) - _SHOWN_LAYERS} layers", "")
            for place in layer:
                address = place.slot(zoom.slot)
                tokens = place.block_size if zoom.whole_block else 1
                nbytes = str(tokens * place.token_nbytes)
                table.add_row(str(place.layer), Text(place.name), f"{address:#x}", nbytes)
    yield table


def _checks(checks: Sequence[Check]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        verdict = Text(check.verdict.value, style=VERDICT_STYLES[check.verdict.value])
        table.add_row(verdict, check.name, Text(check.found))
        if check.verdict is not Verdict.PASS:
            table.add_row("", "", Text(f"wanted: {check.wanted}", style="dim"))
            table.add_row("", "", Text(f"fix: {check.fix}"))
    return table


def _end(device: DeviceRegistration) -> Iterator[RenderableType]:
    if device.refusal is not None:
        yield Text(f"Refused: {device.refusal}", style="bold red")
    if device.warnings:
        yield Text("The library warned:")
        yield bullets(device.warnings)
    if device.layout_seconds is not None and device.register_seconds is not None:
        yield Text(
            f"Registered in {duration(device.register_seconds)}, of it the layout "
            f"{duration(device.layout_seconds)}"
        )
