"""The report of `ems-cli register` as a page."""

from collections.abc import Iterator, Sequence
from typing import Final

from ems.common.units import format_nbytes
from ems_cli.diagnostics.block_map import GAP, BlockMap
from ems_cli.diagnostics.check import Check, Verdict
from ems_cli.diagnostics.register import DeviceRegistration, RegisterReport
from ems_cli.render.figures import duration, exact
from ems_cli.render.html.all_figures import all_figures
from ems_cli.render.html.markup import Child, Markup, element
from ems_cli.render.html.page import badge, bullets, dim, page, pairs, section, table
from ems_cli.render.html.svg import colour, legend, memory

_LAST_DIGIT: Final = 9
_MOST_PLACES: Final = 12


def register_page(report: RegisterReport) -> str:
    """Return the page."""
    return page(
        "KV cache registration",
        labels=report.labels,
        verdict=report.verdict.value,
        versions=report.versions.items(),
        body=[
            *(part for device in report.devices for part in _device(device)),
            all_figures(report),
        ],
    )


def _device(device: DeviceRegistration) -> Iterator[Markup]:
    shape = device.shape
    rows: list[tuple[str, Child]] = [
        (
            "cache",
            (
                f"{shape.kvcache_type}, {shape.num_layers} layers, {shape.num_blocks} blocks × "
                f"{shape.block_size} tokens, from {shape.source}"
            ),
        ),
        ("per token", f"{shape.token_nbytes} B"),
        ("per block", exact(shape.block_nbytes)),
        ("total", exact(shape.nbytes)),
        (
            "memory",
            f"{format_nbytes(device.free_nbytes)} of {format_nbytes(device.memory_nbytes)} free",
        ),
    ]
    if device.register_seconds is not None and device.layout_seconds is not None:
        rows.append(
            (
                "registered in",
                (
                    f"{duration(device.register_seconds)}, of it {duration(device.layout_seconds)} "
                    "for the layout"
                ),
            )
        )
    refused = []
    if device.refusal is not None:
        refused.append(element("div", f"Refused: {device.refusal}", class_="banner FAIL"))
    yield section(
        f"{device.device} {device.device_name}",
        refused,
        pairs(rows),
        bullets([*shape.notes, *device.warnings]),
    )
    yield section(
        "Layout [num_blocks, block_size, heads, head_size]",
        table(
            ["tensor", "layers", "shape", "strides (elements)", "type", "per token", "per block",
             "per tensor"],
            [
                [
                    layout.name,
                    layout.layers,
                    str(list(layout.shape)),
                    str(list(layout.strides)),
                    f"{layout.dtype}, {layout.npu_format}",
                    f"{layout.token_nbytes} B",
                    format_nbytes(layout.block_nbytes),
                    format_nbytes(layout.nbytes),
                ]
                for layout in device.layouts
            ],
            right=("per token", "per block", "per tensor"),
        ),
    )  # fmt: skip
    if device.block_map is not None:
        yield _memory(device.block_map)
    yield section("Checks", _checks(device.checks))


def _memory(block_map: BlockMap) -> Markup:
    names = dict.fromkeys((min(one.plane, _LAST_DIGIT), one.name) for one in block_map.places)
    keys = [(colour(plane), name) for plane, name in names]
    pictures: list[Child] = []
    for picture in block_map.pictures:
        title = f"memory from {picture.start:#x} to {picture.end:#x}"
        pictures += [
            dim(
                f"{picture.start:#x} to {picture.end - 1:#x}, "
                f"{format_nbytes(picture.end - picture.start)}; one cell is "
                f"{format_nbytes(picture.cell_nbytes)}"
            ),
            memory(
                picture.cells,
                gap=GAP,
                start=picture.start,
                cell_nbytes=picture.cell_nbytes,
                title=title,
            ),
        ]
    places = block_map.places
    shown = places if len(places) <= _MOST_PLACES else places[:_MOST_PLACES]
    rest = len(places) - len(shown)
    return section(
        "Memory",
        legend([*keys, ("var(--gap)", "no tensor")]),
        pictures,
        element(
            "p",
            f"{format_nbytes(block_map.tensor_nbytes)} in blocks, "
            f"{format_nbytes(block_map.padding_nbytes)} padding between blocks, "
            f"{format_nbytes(block_map.gap_nbytes)} between tensors",
        ),
        table(
            ["layer", "plane", "from", "to", "size"],
            [
                [
                    str(place.layer),
                    place.name,
                    element("code", f"{place.address:#x}"),
                    element("code", f"{place.end - 1:#x}"),
                    format_nbytes(place.end - place.address),
                ]
                for place in shown
            ],
            right=("layer", "size"),
        ),
        dim(f"and {rest} more tensors, below in “All figures”") if rest else [],
    )


def _checks(checks: Sequence[Check]) -> Markup:
    return table(
        ["", "check", "found", "wanted", "fix"],
        [
            [
                badge(check.verdict.value),
                check.name,
                check.found,
                check.wanted,
                "" if check.verdict is Verdict.PASS else check.fix,
            ]
            for check in checks
        ],
    )
