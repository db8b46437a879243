"""`ems-cli register`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from ems_cli.commands.options import DeviceOptions, OutputOptions, ShapeOptions, sink_for
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.shape import CacheShape
from ems_cli.diagnostics.shape_request import shape_of, shapes_on


@dataclass(frozen=True, slots=True)
class ZoomOptions:
    """Which block or slot is shown in every tensor."""

    block: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Show where block N lies in every tensor."),
    ] = None
    slot: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Show where slot N lies in every tensor."),
    ] = None


def register(
    context: typer.Context,
    cache: ShapeOptions,
    where: DeviceOptions,
    zoom: ZoomOptions,
    output: OutputOptions,
) -> None:
    """Register a KV cache: its layout, its place in memory, checks."""
    sink = sink_for(context, output)
    request, chosen = cache.request(), where.chosen()
    shape = shape_of(request)
    slot = _slot(shape, zoom)
    # torch and numpy come with these: not before the options are known to be right
    from ems_cli.diagnostics.check import Verdict  # noqa: PLC0415
    from ems_cli.diagnostics.npu import SIMULATED_NOTE, start_runtime  # noqa: PLC0415
    from ems_cli.diagnostics.register import Zoom, register_on  # noqa: PLC0415

    runtime = start_runtime()
    if runtime.simulated:
        sink.note(SIMULATED_NOTE)
    indices = chosen.among(runtime.device_count)
    caches = list(zip(indices, shapes_on(request, len(indices)), strict=True))
    wanted = None
    if slot is not None:
        block, offset = divmod(slot, shape.block_size)
        wanted = Zoom(block, offset, slot, whole_block=zoom.block is not None)
    report = register_on(runtime, caches, zoom=wanted, tell=sink.note)
    from ems_cli.render.register import register_text  # noqa: PLC0415 - rich

    sink.emit(report, register_text)
    if report.verdict is Verdict.FAIL:
        raise typer.Exit(1)


def _slot(shape: CacheShape, zoom: ZoomOptions) -> int | None:
    """Return the slot to show, the first one of a block."""
    if zoom.block is not None and zoom.slot is not None:
        raise BadInput("give it or --block, not both", option="--slot")
    if zoom.block is not None:
        if zoom.block >= shape.num_blocks:
            raise BadInput(f"there are blocks 0 to {shape.num_blocks - 1}", option="--block")
        return zoom.block * shape.block_size
    last = shape.num_blocks * shape.block_size - 1
    if zoom.slot is not None and zoom.slot > last:
        raise BadInput(f"there are slots 0 to {last}", option="--slot")
    return zoom.slot
