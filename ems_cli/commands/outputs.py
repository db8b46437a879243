"""What every command can write besides its text: the schema of its JSON, and some a page."""

import functools
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from ems_cli.render.page_sink import Page, PageSink


@dataclass(frozen=True, slots=True)
class Outputs:
    """Places, as "module:name", so that nothing is imported before it is needed."""

    reports: tuple[str, ...]
    """The classes of the reports that a command may write."""
    page: str | None = None
    """The function that makes a page of its report."""


OUTPUTS: Final[Mapping[str, Outputs]] = {
    "register": Outputs(("register:RegisterReport",), "register:register_page"),
    "bench": Outputs(
        (
            "bench:BenchReport",
            "bench_sweep:SweepReport",
            "bench_suite:SuiteReport",
            "submission:SubmitReport",
        ),
        "bench:bench_page",
    ),
    "verify": Outputs(("verify:VerifyReport",), "verify:verify_page"),
    "plan": Outputs(("plan:PlanReport",)),
    "replay": Outputs(("replay:ReplayReport",), "replay:replay_page"),
    "inspect": Outputs(("live:LiveReport",)),
    "inspect file": Outputs(("saved:SavedReport",)),
    "inspect hash": Outputs(("compare:CompareReport",)),
    "inspect namespace": Outputs(("compare:CompareReport",)),
    "inspect plan": Outputs(("copy_figures:CopyReport",)),
    "doctor": Outputs(("doctor:DoctorReport",)),
    "pool serve": Outputs(("pool_serve:ServeReport",)),
    "pool stats": Outputs(("pool_contents:StatsReport",)),
    "pool keys": Outputs(("pool_contents:KeysReport",)),
    "pool clear": Outputs(("pool_changes:RemovalReport",)),
    "pool remove": Outputs(("pool_changes:RemovalReport",)),
}
"""By command, as it is typed; modules of `ems_cli.diagnostics`, and of `ems_cli.render.html`."""


def with_outputs(command: Callable[..., None], name: str) -> Callable[..., None]:
    """Let `command`, called `name`, take `--json-schema`, and `--report` if it has a page."""
    outputs = OUTPUTS.get(name)
    if outputs is None or "json_schema" in inspect.signature(command).parameters:
        return command

    @functools.wraps(command)
    def call(**given: Any) -> None:
        given.pop("json_schema")
        path = given.pop("report", None)
        sink = given["context"].find_root().obj
        if path is not None and outputs.page is not None and isinstance(sink, PageSink):
            _check(path)
            sink.page = Page(path, _found("ems_cli.render.html", outputs.page))
        command(**given)

    signature = inspect.signature(command)
    added = [_parameter("json_schema", bool, _schema_option(name, outputs), default=False)]
    if outputs.page is not None:
        added.append(_parameter("report", Path | None, _REPORT_OPTION, default=None))
    parameters = [*signature.parameters.values(), *added]
    call.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return call


_REPORT_OPTION: Final = typer.Option(
    "--report",
    metavar="FILE.html",
    help="Write the report as a page for a browser or a printer, too.",
)


def _schema_option(name: str, outputs: Outputs) -> Any:
    def show(wanted: bool) -> None:  # noqa: FBT001 - Typer's form
        if not wanted:
            return
        from ems_cli.render.json_schema import schema_of  # noqa: PLC0415 - seldom wanted

        reports = [_found("ems_cli.diagnostics", place) for place in outputs.reports]
        schema = schema_of(f"ems-cli {name} --json", reports)
        sys.stdout.write(json.dumps(schema, indent=2) + "\n")
        raise typer.Exit

    return typer.Option(
        "--json-schema",
        help="Show the JSON Schema of --json and leave.",
        callback=show,
        is_eager=True,
    )


def _parameter(name: str, kind: Any, option: Any, *, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[kind, option],
    )


def _found(package: str, place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(f"{package}.{module}"), name)


def _check(path: Path) -> None:
    """Refuse a place that cannot be written, before anything takes long."""
    hint = "'--report'"
    if path.is_dir():
        raise typer.BadParameter(f"{path} is a folder", param_hint=hint)
    if not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"the folder of {path} does not exist", param_hint=hint)
