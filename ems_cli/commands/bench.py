"""`ems-cli bench`."""

from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ems_cli.commands.bench_options import BenchShapeOptions, KindOptions, RunOptions
from ems_cli.commands.options import DeviceOptions, OutputOptions, nbytes_of, numbers_of, sink_for
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.render.sink import Sink

if TYPE_CHECKING:  # numpy comes with these
    from ems_cli.diagnostics.bench import BenchReport
    from ems_cli.diagnostics.bench_run import Bench
    from ems_cli.diagnostics.bench_sweep import Point, Wanted

_EXIT_INTERRUPTED = 130
_EXIT_FAILED = 3


def bench(  # noqa: PLR0913 - groups of options
    context: typer.Context,
    cache: BenchShapeOptions,
    where: DeviceOptions,
    how: RunOptions,
    kind: KindOptions,
    *,
    output: OutputOptions,
) -> None:
    """Time saves and loads beside raw copies of the same bytes.

    Lists, as in --block-size 16,64,128, and a repeated --pool make a sweep: one row for every
    combination.
    """
    sink = sink_for(context, output)
    if kind.submit or kind.suite:
        option = "--submit" if kind.submit else "--suite"
        _refuse_own_cache(cache, how, option)
        _refuse_baselines(kind, option)
        if kind.submit:
            _refuse_suites_own(kind)
        (_submission if kind.submit else _suite)(sink, where, how, kind)
        return
    _refuse_suites_own(kind)
    points = _points(cache, how)
    _refuse_unwritable(kind.save_baseline)
    before = _baseline(kind.baseline, len(points))
    running, wanted = _started(sink, cache, where, how)
    if kind.baseline is not None:
        _refuse_unlike(kind.baseline, before or [], wanted, points)
    if len(points) == 1:
        _one(sink, running, wanted, points[0], before=before, kind=kind)
    else:
        _sweep(sink, running, wanted, points, before=before, kind=kind)


def _points(cache: BenchShapeOptions, how: RunOptions) -> "tuple[Point, ...]":
    sizes = numbers_of(cache.block_size, option="--block-size")
    in_flight = numbers_of(how.in_flight, option="--in-flight")
    calls, orders = how.calls(), how.orders()
    if cache.shape is not None:
        sizes = (cache.asked_for(sizes[0], None).block_size,)
    from ems_cli.diagnostics.bench_sweep import points_of  # noqa: PLC0415 - numpy

    return points_of(sizes, calls, in_flight, orders, how.pool or (None,))


def _started(
    sink: Sink, cache: BenchShapeOptions, where: DeviceOptions, how: RunOptions
) -> "tuple[Bench, Wanted]":
    """Start the runtime, once all options are known to be right."""
    sizes = numbers_of(cache.block_size, option="--block-size")
    request, chosen = cache.asked_for(sizes[0], None), where.chosen()
    from ems_cli.diagnostics.bench_run import Bench  # noqa: PLC0415 - numpy
    from ems_cli.diagnostics.bench_settings import Settings  # noqa: PLC0415
    from ems_cli.diagnostics.bench_sweep import Wanted  # noqa: PLC0415
    from ems_cli.diagnostics.host_noise import host_noise  # noqa: PLC0415
    from ems_cli.diagnostics.npu import SIMULATED_NOTE, start_runtime  # noqa: PLC0415
    from ems_cli.diagnostics.shape_request import shape_of  # noqa: PLC0415

    shape_of(request)
    settings = Settings(
        blocks_per_call=0,
        in_flight=1,
        miss_ratio=how.miss_ratio,
        order="random",
        verify=how.verify,
        runs=how.runs,
        pool=None,
        seconds=how.seconds,
    )
    runtime = start_runtime()
    if runtime.simulated:
        sink.note(SIMULATED_NOTE)
    indices = chosen.among(runtime.device_count)
    if how.together and len(indices) < 2:  # noqa: PLR2004 - one is always alone
        raise BadInput("it takes more than one of --devices", option="--together")
    wanted = Wanted(request, cache.blocks, indices, settings, how.together)
    return Bench(runtime, sink.note, host_noise()), wanted


def _one(  # noqa: PLR0913 - what is measured, and what becomes of it
    sink: Sink,
    running: "Bench",
    wanted: "Wanted",
    point: "Point",
    *,
    before: list[Any] | None,
    kind: KindOptions,
) -> None:
    from ems_cli.diagnostics.bench_run import usual_runs  # noqa: PLC0415 - numpy
    from ems_cli.diagnostics.bench_sweep import bench_at  # noqa: PLC0415

    total = len(wanted.indices) * usual_runs(wanted.settings)
    with sink.progress("measuring", total=total) as advance:
        report = bench_at(replace(running, advance=lambda: advance(1)), wanted, point)
    if before is not None and kind.baseline is not None:
        report = _compared(kind.baseline, before[0], report)
    from ems_cli.render.bench import bench_text  # noqa: PLC0415 - rich

    _end(
        sink,
        report,
        lambda seen: bench_text(seen, details=kind.details),
        keep=kind.save_baseline,
    )


def _sweep(  # noqa: PLR0913 - as above
    sink: Sink,
    running: "Bench",
    wanted: "Wanted",
    points: "tuple[Point, ...]",
    *,
    before: list[Any] | None,
    kind: KindOptions,
) -> None:
    from ems_cli.diagnostics.bench_sweep import sweep_on  # noqa: PLC0415 - numpy

    with sink.progress("measuring", total=len(points)) as advance:
        left = list(before or ())

        def done(report: "BenchReport") -> "BenchReport":
            advance(1)
            if kind.baseline is None:
                return report
            return _compared(kind.baseline, left.pop(0), report)

        report = sweep_on(running, wanted, points, done=done)
    from ems_cli.render.bench_sweep import sweep_text  # noqa: PLC0415 - rich

    _end(sink, report, sweep_text, keep=kind.save_baseline)


def _end(
    sink: Sink, report: Any, as_text: Callable[[Any], Any], *, keep: Path | None = None
) -> None:
    sink.emit(report, as_text)
    _keep(sink, keep, report)
    if report.ended == "interrupted":
        raise typer.Exit(_EXIT_INTERRUPTED)
    if report.failure is not None:
        sink.warn(f"Error: {report.failure}")
        raise typer.Exit(_EXIT_FAILED)
    if report.has_problem:
        raise typer.Exit(1)


def _baseline(file: Path | None, points: int) -> list[Any] | None:
    if file is None:
        return None
    from ems_cli.diagnostics.bench_compare import read_baseline  # noqa: PLC0415

    before = read_baseline(file)
    if len(before) != points:
        raise BadInput(f"{file} has {len(before)} points, this one {points}", option="--baseline")
    return list(before)


def _refuse_unlike(
    file: Path, before: list[Any], wanted: "Wanted", points: "tuple[Point, ...]"
) -> None:
    """Refuse a baseline that cannot be compared, before anything takes long."""
    from ems_cli.diagnostics.bench_compare import refuse_unlike  # noqa: PLC0415
    from ems_cli.diagnostics.bench_sweep import prepared  # noqa: PLC0415
    from ems_cli.render.as_json import plain  # noqa: PLC0415

    for one, point in zip(before, points, strict=True):
        settings, _ = prepared(wanted, point)
        refuse_unlike(file, one, plain(settings))


def _compared(file: Path, before: Any, report: "BenchReport") -> "BenchReport":
    from ems_cli.diagnostics.bench_compare import comparison_of  # noqa: PLC0415
    from ems_cli.render.as_json import plain  # noqa: PLC0415

    if report.ended != "complete":
        return report
    return replace(report, comparison=comparison_of(file, before, plain(report)))


def _refuse_unwritable(file: Path | None) -> None:
    """Refuse a place that cannot be written, before anything takes long."""
    if file is not None and (file.is_dir() or not file.absolute().parent.is_dir()):
        why = "it is a folder" if file.is_dir() else "its folder does not exist"
        raise BadInput(f"{file} cannot be written: {why}", option="--save-baseline")


def _keep(sink: Sink, file: Path | None, report: Any) -> None:
    if file is None:
        return
    from ems_cli.render.as_json import report_json  # noqa: PLC0415

    try:
        file.write_text(report_json(report) + "\n", encoding="utf-8")
    except OSError as error:
        option = "--save-baseline"
        raise BadInput(f"{file} cannot be written: {error.strerror}", option=option) from error
    sink.note(f"the figures are in {file}")


def _refuse_own_cache(cache: BenchShapeOptions, how: RunOptions, option: str) -> None:
    kept = {"runs": how.runs, **({"pool": how.pool} if option == "--suite" else {})}
    same = {field.name: getattr(RunOptions(), field.name) for field in fields(RunOptions)}
    if cache != BenchShapeOptions() or how != RunOptions(**{**same, **kept}):
        only = " and ".join(f"--{name}" for name in kept)
        raise BadInput(f"it has a cache and calls of its own; only {only}", option=option)
    if len(how.pool or ()) > 1:
        raise BadInput("--suite measures one pool at a time", option="--pool")


def _refuse_suites_own(kind: KindOptions) -> None:
    for option, given in (
        ("--suite", kind.suite),
        ("--quick", kind.quick),
        ("--memory", kind.memory != KindOptions().memory),
    ):
        if given:
            why = (
                "give it or --submit, not both" if option == "--suite" else "it belongs to --suite"
            )
            raise BadInput(why, option=option)


def _refuse_baselines(kind: KindOptions, option: str) -> None:
    given = "--baseline" if kind.baseline is not None else "--save-baseline"
    if kind.baseline is not None or kind.save_baseline is not None:
        raise BadInput(f"its figures have goals of their own; drop {given}", option=option)


def _submission(sink: Sink, where: DeviceOptions, how: RunOptions, _kind: KindOptions) -> None:
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


def _suite(sink: Sink, where: DeviceOptions, how: RunOptions, kind: KindOptions) -> None:
    budget = nbytes_of(kind.memory, option="--memory")
    chosen = where.chosen()
    from ems_cli.diagnostics.bench_run import Bench  # noqa: PLC0415 - torch
    from ems_cli.diagnostics.bench_suite import Extent, suite_on  # noqa: PLC0415
    from ems_cli.diagnostics.host_noise import host_noise  # noqa: PLC0415
    from ems_cli.diagnostics.npu import SIMULATED_NOTE, start_runtime  # noqa: PLC0415

    runtime = start_runtime()
    if runtime.simulated:
        sink.note(SIMULATED_NOTE)
    index = chosen.among(runtime.device_count)[0]
    pool = how.pool[0] if how.pool else None
    extent = Extent(budget_nbytes=budget, quick=kind.quick, runs=how.runs, pool=pool)
    with sink.progress("measuring", total=extent.steps) as advance:
        running = Bench(runtime, sink.note, host_noise(), lambda: advance(1))
        report = suite_on(running, index, extent)
    from ems_cli.render.bench_suite import suite_text  # noqa: PLC0415 - rich

    _end(sink, report, suite_text)
