"""Where tensors and blocks lie in device memory, as text."""

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.block_map import GAP, MIXED, BlockMap, Picture, Place
from ems_cli.diagnostics.register import Zoom
from ems_cli.render.figures import heading, plain_table

_CELLS_PER_LINE = 64
_GLYPHS = "█▓▒░#*+=-:"
_TURNS = "▚"
_SHOWN_LAYERS = 2
"""Layers of a run that looks alike: the first, and the last."""


def block_map_text(
    block_map: BlockMap, *, in_short: bool, details: bool
) -> Iterator[RenderableType]:
    """Yield the addresses and pictures of a map; `in_short` only the pictures."""
    yield Text()
    yield heading("Block map")
    if not in_short:
        yield _places(block_map.places, details=details)
        yield Text()
    names = dict.fromkeys((min(place.plane, 9), place.name) for place in block_map.places)
    legend = "   ".join(f"{_GLYPHS[plane]} {name}" for plane, name in names)
    if any(MIXED in picture.cells for picture in block_map.pictures):
        legend += f"   {_TURNS} in turns"
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
    for picture in block_map.pages:
        yield Text()
        yield Text(
            f"The first two pages; one character is {format_nbytes(picture.cell_nbytes)}",
            style="dim",
        )
        yield _drawn(picture, marked=False)


def _glyph(cell: str) -> str:
    if cell == GAP:
        return "·"
    return _TURNS if cell == MIXED else _GLYPHS[int(cell)]


def _places(places: Sequence[Place], *, details: bool) -> Table:
    table = plain_table("layer", "plane", "from", "to", "size", right=("layer", "size"))
    for run in _alike(places):
        shown = run if details or len(run) <= _SHOWN_LAYERS + 1 else [run[0], run[-1]]
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
        drawn = "".join(_glyph(cell) for cell in cells)
        text.append(f"{picture.start + start * picture.cell_nbytes:#14x} ", style="dim")
        text.append(drawn + "\n")
    if marked:
        text.append(f"{'':14} one character is {format_nbytes(picture.cell_nbytes)}\n", style="dim")
    text.rstrip()
    return text


def zoom_text(block_map: BlockMap, zoom: Zoom) -> Iterator[RenderableType]:
    """Yield where one block or slot lies in every tensor."""
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
