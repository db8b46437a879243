"""The application `ems-cli` and the one place where failures become exit codes."""

import contextlib
import errno
import select
import sys
import traceback
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ems.common.exception import EmsException, shown
from ems_cli.commands.bench import bench
from ems_cli.commands.doctor import doctor
from ems_cli.commands.inspect import inspect
from ems_cli.commands.option_groups import with_groups
from ems_cli.commands.options import EXIT_CODES, OutputOptions, sink_for
from ems_cli.commands.outputs import with_outputs
from ems_cli.commands.plan import plan
from ems_cli.commands.pool import pool
from ems_cli.commands.register import register
from ems_cli.commands.replay import replay
from ems_cli.commands.verify import verify
from ems_cli.render.page_sink import PageSink
from ems_cli.render.sink import Sink, abandon_stdout

COMMANDS: Final[tuple[Callable[..., None] | typer.Typer, ...]] = (
    register,
    bench,
    verify,
    inspect,
    doctor,
    plan,
    replay,
    pool,
)
"""Every command, in the order of the help; the first line of its docstring is shown there."""

_EXIT_USAGE = 2
_EXIT_FAILURE = 3
_EXIT_BUG = 70  # EX_SOFTWARE of sysexits.h
_EXIT_INTERRUPTED = 130  # 128 + SIGINT, as shells count
_EXIT_CLOSED_PIPE = 141  # 128 + SIGPIPE

_UNWRITABLE = (errno.ENOSPC, errno.EBADF, errno.EIO, errno.EDQUOT)
"""How writing to stdout fails where a help or a schema is written, not a report."""

# Typer brings its own click since 0.29; both have this ancestor of what a caller did wrong.
_USAGE_ERROR: type[Exception] = typer.BadParameter.__bases__[0].__bases__[0]


class _ClosedPipeError(Exception):
    """Nobody reads stdout; Typer would turn a `BrokenPipeError` into exit code 1."""


class _Boundary(TyperGroup):
    """The group of commands; whatever escapes one of them ends here as an exit code."""

    def main(self, args: Any = None, *positional: Any, **others: Any) -> Any:
        """Run the command line and leave with its exit code."""
        arguments = list(sys.argv[1:] if args is None else args)
        sink = PageSink(as_json="--json" in _before_separator(arguments))
        others.update(standalone_mode=False, obj=sink)
        sys.exit(_exit_code(lambda: super(_Boundary, self).main(args, *positional, **others), sink))

    def make_context(self, *args: Any, **others: Any) -> Any:
        """Parse the options before the command's name."""
        with _closed_pipe_renamed():
            return super().make_context(*args, **others)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with _closed_pipe_renamed():
            return super().invoke(ctx)


def create_app(commands: Iterable[Callable[..., None] | typer.Typer]) -> typer.Typer:
    """Return the application with `commands`: functions whose parameters Typer reads, or groups."""
    app = typer.Typer(
        name="ems-cli",
        cls=_Boundary,
        no_args_is_help=True,
        rich_markup_mode=None,  # plain help comes in a third of the time
        pretty_exceptions_enable=False,
        epilog=EXIT_CODES,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(with_groups(_root))
    for command in commands:
        if isinstance(command, typer.Typer):
            app.add_typer(_with_outputs_of_all(command))
            continue
        name = command.__name__
        app.command(epilog=EXIT_CODES)(with_outputs(with_groups(command), name))
    return app


def _with_outputs_of_all(group: typer.Typer) -> typer.Typer:
    """Return `group` with the outputs of its commands, and of itself."""
    name = group.info.name
    for entry in group.registered_commands:
        if entry.callback is not None:
            entry.callback = with_outputs(entry.callback, f"{name} {entry.name}")
    own = group.registered_callback
    if own is not None and own.callback is not None:
        own.callback = with_outputs(own.callback, str(name))
    return group


def _show_version(context: typer.Context, wanted: bool) -> None:  # noqa: FBT001 - Typer's form
    if not wanted:
        return
    from importlib import metadata  # noqa: PLC0415 - costs more than the rest of --help

    try:
        version = metadata.version("ems")
    except metadata.PackageNotFoundError:  # a source tree on PYTHONPATH
        version = "unknown"
    sink_for(context, OutputOptions()).emit(Version(version), _version_text)
    raise typer.Exit


@dataclass(frozen=True, slots=True)
class Version:
    """The report of `--version`."""

    version: str


def _version_text(report: Version) -> str:
    return f"ems-cli {report.version}"


def _root(
    context: typer.Context,
    output: OutputOptions,
    *,
    version: Annotated[  # noqa: ARG001 - its callback has shown it by now
        bool,
        typer.Option(
            "--version", help="Show the version and leave.", callback=_show_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Show what a KV cache is, whether it is right, and how fast it moves."""
    sink_for(context, output)


def _exit_code(run: Callable[[], int | None], sink: Sink) -> int:
    try:
        code = run() or 0
        sys.stdout.flush()
    except _USAGE_ERROR as error:
        return _refused(error, sink)
    except (typer.Abort, KeyboardInterrupt):
        code = _EXIT_INTERRUPTED
    except EmsException as error:
        return sink.fail(error.status_code().name, str(error), exit_code=_EXIT_FAILURE)
    except (_ClosedPipeError, BrokenPipeError):
        abandon_stdout()
        return _EXIT_CLOSED_PIPE
    except Exception as error:  # noqa: BLE001 - the last place that can give it an exit code
        return _unforeseen(error, sink)
    if code == _EXIT_INTERRUPTED and not sink.has_emitted:
        return sink.fail("INTERRUPTED", "interrupted", exit_code=code)
    return code


def _unforeseen(error: Exception, sink: Sink) -> int:
    """Tell of a bug, or that nothing can be written: a help and a schema do not say it."""
    if isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None:
        abandon_stdout()
        sink.warn(f"Error: the output could not be written: {error.strerror}")
        return _EXIT_FAILURE
    traceback.print_exception(error)
    return sink.fail("BUG", f"a bug in ems-cli: {error!r}", exit_code=_EXIT_BUG)


def _refused(error: Any, sink: Sink) -> int:
    """Tell what the caller did wrong."""
    errors = getattr(error.__cause__, "errors", None)
    if callable(errors) and (found := errors()):  # Typer tells what it wanted, not what it got
        error.message = f"{error.message}: {shown(found[0]['input'])}"
    if sink.as_json:
        return sink.fail("USAGE", error.format_message(), exit_code=_EXIT_USAGE)
    error.show()
    return _EXIT_USAGE


@contextlib.contextmanager
def _closed_pipe_renamed() -> Generator[None, None, None]:
    try:
        yield
    except BrokenPipeError as error:
        if _stdout_is_closed():
            raise _ClosedPipeError from error
        raise RuntimeError("a broken pipe that is not stdout") from error


def _stdout_is_closed() -> bool:
    """Whether nobody holds the other end of stdout; writing again would not tell reliably."""
    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), select.POLLOUT)
    except (AttributeError, OSError, ValueError):  # no poll here, or no descriptor
        return True
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


def _before_separator(arguments: list[str]) -> list[str]:
    return arguments[: arguments.index("--")] if "--" in arguments else arguments


app = create_app(COMMANDS)
