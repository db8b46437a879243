"""`ems-cli register`."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ems_cli.commands.options import DeviceOptions, OutputOptions, ShapeOptions, sink_for
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.shape import CacheShape
from ems_cli.diagnostics.shape_request import shape_of, shapes_on
from ems_cli.render.sink import Sink

if TYPE_CHECKING:  # torch comes with it
    from ems_cli.diagnostics.register import RegisterReport


@dataclass(frozen=True, slots=True)
class ShowOptions:
    """What is shown, and what becomes of it."""

    block: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Show where block N lies in every tensor."),
    ] = None
    slot: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Show where slot N lies in every tensor."),
    ] = None
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the report, as --json writes it, for `inspect`."),
    ] = None
    details: Annotated[
        bool, typer.Option("--details", help="Every check and every tensor's address.")
    ] = False


def register(
    context: typer.Context,
    cache: ShapeOptions,
    where: DeviceOptions,
    show: ShowOptions,
    output: OutputOptions,
) -> None:
    """Register a KV cache: its layout, its place in memory, checks."""
    sink = sink_for(context, output)
    request, chosen = cache.request(), where.chosen()
    shape = shape_of(request)
    slot = _slot(shape, show)
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
        wanted = Zoom(block, offset, slot, whole_block=show.block is not None)
    report = register_on(runtime, caches, zoom=wanted, tell=sink.note)
    if show.save is not None:
        _save(sink, report, show.save)
    from ems_cli.render.register import register_text  # noqa: PLC0415 - rich

    sink.emit(report, lambda seen: register_text(seen, details=show.details))
    if report.verdict is Verdict.FAIL:
        raise typer.Exit(1)


def _save(sink: Sink, report: "RegisterReport", file: Path) -> None:
    from ems_cli.render.as_json import report_json  # noqa: PLC0415 - not for --help

    try:
        file.write_text(report_json(report) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}", option="--save") from error
    sink.note(f"the registration is in {file}; ems-cli inspect {file} shows it")


def _slot(shape: CacheShape, show: ShowOptions) -> int | None:
    """Return the slot to show, the first one of a block."""
    if show.block is not None and show.slot is not None:
        raise BadInput("give it or --block, not both", option="--slot")
    if show.block is not None:
        if show.block >= shape.num_blocks:
            raise BadInput(f"there are blocks 0 to {shape.num_blocks - 1}", option="--block")
        return show.block * shape.block_size
    last = shape.num_blocks * shape.block_size - 1
    if show.slot is not None and show.slot > last:
        raise BadInput(f"there are slots 0 to {last}", option="--slot")
    return show.slot
