"""`ems-cli verify`."""

from dataclasses import dataclass
from typing import Annotated, Final

import typer

from ems_cli.commands.options import DeviceOptions, OutputOptions, ShapeOptions, sink_for
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.shape import CacheShape
from ems_cli.diagnostics.shape_request import ShapeRequest, shapes_on

_EXIT_INTERRUPTED = 130
_BLOCKS: Final = 8
_MOST_RANKS: Final = 4
"""Ranks of a parallel model that are verified when the devices do not say how many."""


@dataclass(frozen=True, slots=True)
class CodedShapeOptions(ShapeOptions):
    """A cache of a few blocks: more would teach nothing."""

    blocks: Annotated[int, typer.Option(min=4, metavar="N", help="Blocks of the cache.")] = _BLOCKS


@dataclass(frozen=True, slots=True)
class ProofOptions:
    """What is verified."""

    rounds: Annotated[
        int, typer.Option(min=1, metavar="N", help="How often everything is done, each time anew.")
    ] = 1
    seed: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Repeat the random choices of a run.  [default: a new one]"
        ),
    ] = None
    pool: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Pool to save into.  [default: memory://, or with --processes a temporary lmdb://]",
        ),
    ] = None
    processes: Annotated[
        int,
        typer.Option(
            min=1, max=16, metavar="N", help="Processes: the others load what this one saved."
        ),
    ] = 1
    faults: Annotated[
        bool,
        typer.Option(
            "--faults",
            help="Let the pool fail as well, and on the simulated NPU copies: slow and half-way.",
        ),
    ] = False


def verify(
    context: typer.Context,
    cache: CodedShapeOptions,
    where: DeviceOptions,
    how: ProofOptions,
    output: OutputOptions,
) -> None:
    """Prove byte by byte that what is loaded is what was saved."""
    sink = sink_for(context, output)
    _refuse_unshared(how)
    request, chosen = cache.request(), where.chosen()
    _refuse_other_layouts(request)
    shapes_on(request, 1)
    # torch and numpy come with these: not before the options are known to be right
    from ems_cli.diagnostics.check import Verdict  # noqa: PLC0415
    from ems_cli.diagnostics.npu import SIMULATED_NOTE, start_runtime  # noqa: PLC0415
    from ems_cli.diagnostics.verify import VerifySettings  # noqa: PLC0415
    from ems_cli.diagnostics.verify_beyond import steps_beyond  # noqa: PLC0415
    from ems_cli.diagnostics.verify_run import usual_steps, verify_on  # noqa: PLC0415
    from ems_cli.render.verify import verify_text  # noqa: PLC0415 - rich

    settings = VerifySettings(how.rounds, _seed(how), how.pool, how.processes, how.faults)
    sink.note(f"seed {settings.seed}")
    runtime = start_runtime()
    if runtime.simulated:
        sink.note(SIMULATED_NOTE)
    caches = _caches(request, chosen.among(runtime.device_count))
    with sink.progress("verifying", total=usual_steps(len(caches), settings)) as advance:
        report = verify_on(
            runtime,
            caches,
            settings,
            tell=sink.note,
            advance=lambda: advance(1),
            beyond=steps_beyond(settings),
        )
    sink.emit(report, verify_text)
    if report.ended == "interrupted":
        raise typer.Exit(_EXIT_INTERRUPTED)
    if report.verdict is not Verdict.PASS:
        raise typer.Exit(1)


def _refuse_unshared(how: ProofOptions) -> None:
    if how.processes > 1 and how.pool is not None and how.pool.startswith("memory:"):
        raise BadInput("other processes do not see memory://; choose a shared one", option="--pool")


def _refuse_other_layouts(request: ShapeRequest) -> None:
    """Its caches have guarded memory around them, so verify lays them out itself."""
    if getattr(request, "groups", ()):
        raise BadInput("the layers are verified as one group; drop it", option="--groups")
    if getattr(request, "arrangement", "separate") != "separate":
        raise BadInput(
            "verify registers dense blocks, then blocks that lie apart; drop it", option="--layout"
        )


def _seed(how: ProofOptions) -> int:
    import secrets  # noqa: PLC0415 - only here

    return secrets.randbits(31) if how.seed is None else how.seed


def _caches(request: ShapeRequest, indices: tuple[int, ...]) -> list[tuple[int, CacheShape]]:
    """Return a device and a shape for each rank; ranks beyond the devices take turns on them."""
    ranks = len(indices)
    if request.tp * request.pp > 1:
        ranks = max(ranks, min(request.tp * request.pp - request.rank, _MOST_RANKS))
    shapes = shapes_on(request, ranks)
    return [(indices[at % len(indices)], shape) for at, shape in enumerate(shapes)]
