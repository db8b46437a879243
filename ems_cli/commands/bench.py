"""`ems-cli bench`."""

from dataclasses import dataclass
from typing import Annotated

import typer

from ems_cli.commands.options import DeviceOptions, OutputOptions, ShapeOptions, sink_for
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.shape_request import shapes_on
from ems_cli.render.sink import Sink

_EXIT_INTERRUPTED = 130
_EXIT_FAILED = 3


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run of the benchmark is."""

    blocks_per_call: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Blocks of one save or load.  [default: half of the cache, at most 64]",
        ),
    ] = None
    in_flight: Annotated[
        int,
        typer.Option(
            min=1, max=64, metavar="N", help="Calls of one run; the asynchronous ones at once."
        ),
    ] = 1
    runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Runs of each operation.  [default: 20, or what 20 s allow, at least 5]",
        ),
    ] = None
    miss_ratio: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="X", help="Share of each load's blocks that was never saved."
        ),
    ] = 0.0
    sequential: Annotated[
        bool,
        typer.Option(
            "--sequential/--random", help="Blocks that follow each other in memory, or random ones."
        ),
    ] = False
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Compare loaded blocks with what was saved."),
    ] = True
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="Pool to save into.  [default: memory:// of the size needed]"
        ),
    ] = None
    submit: Annotated[
        bool,
        typer.Option(
            "--submit",
            help="Only time how long large calls hold the caller's thread, with a cache of their"
            " own, on the first device.",
        ),
    ] = False


def bench(
    context: typer.Context,
    cache: ShapeOptions,
    where: DeviceOptions,
    how: RunOptions,
    output: OutputOptions,
) -> None:
    """Time saves and loads beside raw copies of the same bytes."""
    sink = sink_for(context, output)
    if how.submit:
        if cache != ShapeOptions() or how != RunOptions(runs=how.runs, submit=True):
            raise BadInput("it has a cache and calls of its own; only --runs", option="--submit")
        _submission(sink, where, how)
        return
    request, chosen = cache.request(), where.chosen()
    shape = shapes_on(request, 1)[0]
    # torch and numpy come with these: not before the options are known to be right
    from ems_cli.diagnostics.bench import Settings  # noqa: PLC0415
    from ems_cli.diagnostics.bench_run import (  # noqa: PLC0415
        bench_on,
        filled_in,
        usual_runs,
    )
    from ems_cli.diagnostics.npu import SIMULATED_NOTE, start_runtime  # noqa: PLC0415

    wanted = Settings(
        blocks_per_call=how.blocks_per_call or 1,
        in_flight=how.in_flight,
        miss_ratio=how.miss_ratio,
        sequential=how.sequential,
        verify=how.verify,
        runs=how.runs,
        pool=how.pool,
    )
    settings = filled_in(wanted, shape, how.blocks_per_call)
    runtime = start_runtime()
    if runtime.simulated:
        sink.note(SIMULATED_NOTE)
    indices = chosen.among(runtime.device_count)
    caches = list(zip(indices, shapes_on(request, len(indices)), strict=True))
    with sink.progress("measuring", total=len(caches) * usual_runs(settings)) as advance:
        report = bench_on(runtime, caches, settings, tell=sink.note, advance=lambda: advance(1))
    from ems_cli.render.bench import bench_text  # noqa: PLC0415 - rich

    sink.emit(report, bench_text)
    if report.ended == "interrupted":
        raise typer.Exit(_EXIT_INTERRUPTED)
    if report.failure is not None:
        sink.warn(f"Error: {report.failure}")
        raise typer.Exit(_EXIT_FAILED)
    if report.has_problem:
        raise typer.Exit(1)


def _submission(sink: Sink, where: DeviceOptions, how: RunOptions) -> None:
    from ems_cli.diagnostics.npu import SIMULATED_NOTE, start_runtime  # noqa: PLC0415 - torch
    from ems_cli.diagnostics.submission import (  # noqa: PLC0415
        USUAL_RUNS,
        measure_submission,
    )

    chosen = where.chosen()
    runtime = start_runtime()
    if runtime.simulated:
        sink.note(SIMULATED_NOTE)
    index = chosen.among(runtime.device_count)[0]
    report = measure_submission(runtime, index, runs=how.runs or USUAL_RUNS, tell=sink.note)
    from ems_cli.render.submission import submission_text  # noqa: PLC0415 - rich

    sink.emit(report, submission_text)
