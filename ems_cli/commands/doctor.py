"""`ems-cli doctor`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from ems_cli.commands.options import LONGEST_SECONDS, OutputOptions, sink_for

_EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class ExamineOptions:
    """Which checks are made, and what becomes of them."""

    only: Annotated[
        list[str] | None,
        typer.Option(metavar="LIST", help="Make these checks alone: cann,devices."),
    ] = None
    skip: Annotated[
        list[str] | None, typer.Option(metavar="LIST", help="Leave these checks out.")
    ] = None
    strict: Annotated[bool, typer.Option("--strict", help="Take a warning for a failure.")] = False
    seconds: Annotated[
        float,
        typer.Option(
            min=1,
            max=LONGEST_SECONDS,
            metavar="S",
            help="How long an import or the pool may take.",
        ),
    ] = 120.0
    bundle: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Also write a .tar.gz or .zip for a bug report; secrets are masked.",
        ),
    ] = None


def doctor(context: typer.Context, how: ExamineOptions, output: OutputOptions) -> None:
    """Check that this computer is ready: software, NPUs, host, pool."""
    sink = sink_for(context, output)
    from ems_cli.diagnostics.bundle import (  # noqa: PLC0415 - the pool's modules, and archives
        bundle_files,
        check_name,
        write_bundle,
    )
    from ems_cli.diagnostics.doctor import Examination, chosen_checks, examine  # noqa: PLC0415
    from ems_cli.diagnostics.surroundings import Machine  # noqa: PLC0415

    names = chosen_checks(_names(how.only), _names(how.skip))
    if how.bundle is not None:
        check_name(how.bundle)
    machine = Machine(timeout_seconds=how.seconds)
    with sink.progress("examining", total=len(names)) as advance:
        report = examine(machine, names, strict=how.strict, advance=advance)
    if how.bundle is not None:
        from ems_cli.render.as_json import plain  # noqa: PLC0415

        run_dir = Examination(machine).run_dir
        write_bundle(how.bundle, bundle_files(plain(report), machine.environment, run_dir))
        sink.note(f"{how.bundle} is written; look into it before you give it away")
    from ems_cli.render.doctor import doctor_text  # noqa: PLC0415 - rich

    sink.emit(report, doctor_text)
    if report.ended == "interrupted":
        raise typer.Exit(_EXIT_INTERRUPTED)
    if not report.healthy:
        raise typer.Exit(1)


def _names(given: list[str] | None) -> list[str]:
    """Return the names of repeated options, each of which may be a list with commas."""
    return [name.strip() for text in given or [] for name in text.split(",") if name.strip()]
