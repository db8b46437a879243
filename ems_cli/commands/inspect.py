"""`ems-cli inspect` and its sub-commands."""

import json
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ems_cli.commands.model_options import ModelOptions, rate_of
from ems_cli.commands.option_groups import with_groups
from ems_cli.commands.options import EXIT_CODES, LONGEST_SECONDS, OutputOptions, sink_for
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.render.sink import Sink

if TYPE_CHECKING:  # what costs time to import comes when it is needed
    from ems_cli.diagnostics.live import LiveReport

_EXIT_INTERRUPTED = 130
_WATCH: Final = "--watch"
_USUAL_SECONDS: Final = "1"
_OF_A_FILE: Final = "file"


class _Inspect(TyperGroup):
    """Sub-commands, and for whatever is none of them the file of that name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; `--watch` alone watches once a second."""
        return super().parse_args(ctx, _with_seconds(args))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the sub-command, and its arguments."""
        if args[0] not in self.commands or args[0] == _OF_A_FILE:
            return _OF_A_FILE, self.commands[_OF_A_FILE], args
        return super().resolve_command(ctx, args)


def _with_seconds(args: list[str]) -> list[str]:
    if _WATCH not in args:
        return args
    at = args.index(_WATCH)
    following = args[at + 1 : at + 2]
    if following and following[0].replace(".", "", 1).isdigit():
        return args
    return [*args[: at + 1], _USUAL_SECONDS, *args[at + 1 :]]


inspect = typer.Typer(
    name="inspect",
    help="Show the processes that use the pool, keys, and copy plans.",
    cls=_Inspect,
    invoke_without_command=True,
    subcommand_metavar="[FILE | COMMAND [ARGS]...]",
    epilog=EXIT_CODES,
)
"""Sub-commands; `ems_cli.app` adds them as one command."""


@dataclass(frozen=True, slots=True)
class LiveOptions:
    """Which processes, and how."""

    pid: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only this process, in full.")
    ] = None
    details: Annotated[bool, typer.Option("--details", help="Every process in full.")] = False
    watch: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=LONGEST_SECONDS,
            metavar="[SECONDS]",
            help="Look again and again, with rates in between; Ctrl-C ends it.",
        ),
    ] = None
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Write the counters for Prometheus.")
    ] = False
    prune: Annotated[
        bool, typer.Option("--prune", help="Remove what dead processes have left.")
    ] = False
    save: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Keep the description of --pid N for `inspect hash`."),
    ] = None


def _live(context: typer.Context, how: LiveOptions, output: OutputOptions) -> None:
    """Show the processes on this host that use the pool; FILE shows a saved description.

    Processes leave their descriptions in EMS_RUN_DIR; reading them disturbs none. A FILE is what
    `register --json` wrote, or what `--save` kept.
    """
    sink = sink_for(context, output)
    _refuse_what_has_no_effect(how, context.invoked_subcommand)
    if context.invoked_subcommand is not None:
        return
    run_dir = _run_dir()
    if how.prometheus:
        _prometheus(sink, run_dir, how)
    elif how.save is not None:
        _save(sink, run_dir, how.pid, how.save)
    elif how.watch is not None:
        _watch(sink, run_dir, how, how.watch)
    else:
        from ems_cli.diagnostics.live import live_report  # noqa: PLC0415
        from ems_cli.render.live import live_text  # noqa: PLC0415 - rich

        report = live_report(run_dir, pid=how.pid, prune=how.prune)
        _refuse_unknown_pid(report, how)
        sink.emit(report, lambda seen: live_text(seen, details=how.details or how.pid is not None))


def _refuse_what_has_no_effect(how: LiveOptions, command: str | None) -> None:
    given = [
        f"--{field.name}" for field in fields(how) if getattr(how, field.name) not in (None, False)
    ]
    if given and command is not None:
        whose = "a FILE" if command == _OF_A_FILE else f"inspect {command}"
        raise BadInput(f"{whose} does not take it", option=given[0])
    alone = [name for name in ("--prometheus", "--save", _WATCH, "--prune") if name in given]
    if len(alone) > 1:
        raise BadInput(f"drop it or {alone[0]}", option=alone[1])


def _run_dir() -> Path:
    from ems.telemetry.run_dir import default_run_dir  # noqa: PLC0415 - --help needs none of it

    return default_run_dir()


def _refuse_unknown_pid(report: "LiveReport", how: LiveOptions) -> None:
    if how.pid is not None and not (report.processes or report.pruned or report.unreadable):
        raise BadInput(
            f"no process {how.pid} has left a description in {report.run_dir}", option="--pid"
        )


def _prometheus(sink: Sink, run_dir: Path, how: LiveOptions) -> None:
    from ems_cli.diagnostics.live import prometheus_report  # noqa: PLC0415

    if sink.as_json:
        raise BadInput("it has a format of its own; drop it or --json", option="--prometheus")
    text = prometheus_report(run_dir, pid=how.pid)
    if text:
        sink.emit(how, lambda _: text)
    else:
        sink.note(f"no live process has left a description in {run_dir}")


def _save(sink: Sink, run_dir: Path, pid: int | None, file: Path) -> None:
    from ems_cli.diagnostics.live import description_of  # noqa: PLC0415

    if pid is None:
        raise BadInput("say which process by --pid", option="--save")
    if sink.as_json:
        raise BadInput("it writes a file and no report; drop it or --json", option="--save")
    content = description_of(run_dir, pid)
    if content is None:
        raise BadInput(f"no process {pid} has left a description in {run_dir}", option="--pid")
    try:
        file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise BadInput(f"{file} cannot be written: {error.strerror}", option="--save") from error
    sink.note(f"the description of process {pid} is in {file}")


def _watch(sink: Sink, run_dir: Path, how: LiveOptions, seconds: float) -> None:
    from ems_cli.diagnostics.live import live_report  # noqa: PLC0415
    from ems_cli.diagnostics.watch import Watch  # noqa: PLC0415
    from ems_cli.render.live import live_text  # noqa: PLC0415 - rich
    from ems_cli.render.watch import watch  # noqa: PLC0415 - rich

    if sink.as_json:
        raise BadInput("it draws on a terminal; drop it or --json", option=_WATCH)
    seen: list[LiveReport] = []
    between = Watch()

    def as_text(report: "LiveReport") -> Any:
        return live_text(report, details=how.details or how.pid is not None, few=1)

    try:
        watch(
            lambda: between.look(live_report(run_dir, pid=how.pid)),
            as_text,
            seconds=seconds,
            keep=lambda report: seen.__setitem__(slice(None), [report]),
        )
    except KeyboardInterrupt:
        if seen:
            sink.emit(seen[0], as_text)
        raise typer.Exit(_EXIT_INTERRUPTED) from None


def _file(
    context: typer.Context,
    output: OutputOptions,
    *,
    name: Annotated[str, typer.Argument(metavar="FILE")],
) -> None:
    """Show a saved registration or description."""
    sink = sink_for(context, output)
    from ems_cli.diagnostics.saved import read_document, saved_report  # noqa: PLC0415
    from ems_cli.render.inspect import saved_text  # noqa: PLC0415 - rich

    if not Path(name).exists() and not name.isdigit():
        names = ", ".join(one.name or "" for one in inspect.registered_commands if not one.hidden)
        raise BadInput(f"no file {name!r}, and no command of that name: {names}", option="FILE")
    report = saved_report(read_document(name, _run_dir()), time.time())
    sink.emit(report, saved_text)


_FIRST = Annotated[str, typer.Argument(metavar="A", help="A file, or the pid of a process.")]
_SECOND = Annotated[str, typer.Argument(metavar="B", help="The other one.")]


def _hash(context: typer.Context, output: OutputOptions, *, first: _FIRST, second: _SECOND) -> None:
    """Tell whether two processes use the same keys, and what differs."""
    _compare(context, output, "hash", (first, second))


def _namespace(
    context: typer.Context, output: OutputOptions, *, first: _FIRST, second: _SECOND
) -> None:
    """Tell whether two processes share tenant, model and ranks."""
    _compare(context, output, "namespace", (first, second))


def _compare(
    context: typer.Context, output: OutputOptions, what: Any, names: tuple[str, str]
) -> None:
    sink = sink_for(context, output)
    from ems_cli.diagnostics.compare import compare  # noqa: PLC0415 - numpy
    from ems_cli.diagnostics.saved import read_document  # noqa: PLC0415
    from ems_cli.render.inspect import compare_text  # noqa: PLC0415 - rich

    first, second = (read_document(name, _run_dir()) for name in names)
    report = compare(what, first, second)
    sink.emit(report, compare_text)
    if report.same is False:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """What is saved or loaded, and what copies cost."""

    slots: Annotated[
        str | None, typer.Option(metavar="LIST", help="Slots in their order: 0-127,300.")
    ] = None
    blocks: Annotated[
        str | None, typer.Option(metavar="LIST", help="Whole blocks instead: 5,9,7.")
    ] = None
    tokens_per_hash: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="[default: those of a block]")
    ] = None
    launch_us: Annotated[
        float,
        typer.Option(
            min=0,
            max=LONGEST_SECONDS * 1e6,
            metavar="US",
            help="Fixed cost of one span, in microseconds.",
        ),
    ] = 0.0
    bandwidth: Annotated[
        str | None, typer.Option(metavar="RATE", help="How fast bytes move: 20GB/s.")
    ] = None


def _plan(
    context: typer.Context, model: ModelOptions, asked: RequestOptions, output: OutputOptions
) -> None:
    """Work out the copies of a save or load, and what they cost."""
    sink = sink_for(context, output)
    from ems_cli.diagnostics.copy_figures import (  # noqa: PLC0415 - numpy
        Cost,
        copy_report,
        slots_asked_for,
    )
    from ems_cli.render.inspect import copies_text  # noqa: PLC0415 - rich

    request = model.request()
    slots = slots_asked_for(request, slots=asked.slots, blocks=asked.blocks)
    rate = None if asked.bandwidth is None else rate_of(asked.bandwidth, option="--bandwidth")
    request = replace(request, blocks=max(*slots, len(slots)) // request.block_size + 1)
    cost = Cost(asked.launch_us / 1e6, rate)
    sink.emit(copy_report(request, slots, cost, asked.tokens_per_hash), copies_text)


inspect.callback()(with_groups(_live))
for _name, _command in (("hash", _hash), ("namespace", _namespace), ("plan", _plan)):
    inspect.command(_name, epilog=EXIT_CODES)(with_groups(_command))
inspect.command(_OF_A_FILE, hidden=True, epilog=EXIT_CODES)(with_groups(_file))
