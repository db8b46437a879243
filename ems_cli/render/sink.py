"""Where a command's output goes: the report to stdout, everything else to stderr."""

import contextlib
import os
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, Final, TextIO, TypeVar

from ems.common.exception import EmsException
from ems_cli.render.as_json import error_json, report_json
from ems_cli.render.text import one_line

if TYPE_CHECKING:  # rich takes longer to import than most commands to run
    from rich.console import Console, RenderableType

Report = TypeVar("Report")

_USUAL_WIDTH: Final = 80


def report_console(file: TextIO, *, width: int | None = None) -> "Console":
    """Return a console on which a text is only text: never markup, an emoji or a highlight.

    Style comes from `rich.text.Text` and from the styles of tables, so nothing from outside can
    bring its own. Rich heeds NO_COLOR, FORCE_COLOR and COLUMNS; without a terminal it takes 80
    columns.
    """
    from rich.console import Console  # noqa: PLC0415 - see above

    class PlainConsole(Console):
        """Rich leaves with exit code 1 where nobody reads; that is for `ems_cli.app` to decide."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    console = PlainConsole(file=file, width=width, markup=False, emoji=False, highlight=False)
    if console.width < 1:  # COLUMNS=0, as some terminals say that know no width
        console.width = _USUAL_WIDTH
    return console


class Sink:
    """One command's output; the streams are looked up when something is written."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.has_emitted = False
        """Whether stdout holds a report already, so that no second document may follow."""

    def emit(
        self, report: Report, as_text: "Callable[[Report], RenderableType]", *, width: int = 0
    ) -> None:
        """Write `report` to stdout: as JSON from its own fields, or through `as_text`.

        A `str` from `as_text` is written as it is, anything else through rich, at `width` if given.

        Raises:
            BrokenPipeError: nobody reads any more.
            EmsException: stdout cannot be written, a full disk for example.
        """
        self.has_emitted = True
        try:
            if self.as_json:
                sys.stdout.write(report_json(report) + "\n")
            else:
                _print(as_text(report), sys.stdout, width)
            sys.stdout.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            abandon_stdout()
            raise EmsException(f"the report could not be written: {error.strerror}") from error

    def note(self, text: str) -> None:
        """Write one line to stderr, unless the caller wants quiet."""
        if not self.quiet:
            self.warn(text)

    def warn(self, text: str) -> None:
        """Write one line to stderr in any case."""
        with contextlib.suppress(OSError):  # what is only talk must not fail a command
            sys.stderr.write(one_line(text) + "\n")
            sys.stderr.flush()

    def fail(self, code: str, message: str, *, exit_code: int) -> int:
        """Tell of a failure and return `exit_code`.

        With JSON it is an object on stdout, unless a report stands there already; else one line
        on stderr.
        """
        if self.as_json and not self.has_emitted:
            _write_or_abandon(error_json(code, message, exit_code=exit_code) + "\n")
        else:
            name = f" ({code})" if code.startswith("EMS_") else ""
            self.warn(f"Error: {message}{name}")
        return exit_code

    @contextlib.contextmanager
    def progress(self, what: str, total: int) -> Generator[Callable[[int], None], None, None]:
        """Show how far `what` is while the block runs; yields a function that advances it.

        The bar stands on stderr, only on a terminal and not when quiet, and is gone afterwards.
        """
        if self.quiet or not sys.stderr.isatty():
            yield _advance_nothing
            return
        from rich.progress import Progress  # noqa: PLC0415 - see above

        with Progress(console=report_console(sys.stderr), transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda steps: bar.advance(task, steps)


def _print(renderable: Any, file: TextIO, width: int) -> None:
    if isinstance(renderable, str):
        file.write(renderable if renderable.endswith("\n") else renderable + "\n")
    else:
        console = report_console(file, width=width or None)
        if console.is_terminal:
            console.print(renderable)
            return
        with console.capture() as captured:  # tables fill their lines with blanks
            console.print(renderable)
        file.write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def abandon_stdout() -> None:
    """Send what is still buffered to nowhere, else Python complains about it when it ends."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _write_or_abandon(text: str) -> None:
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError:  # closed or full; the exit code says what happened
        abandon_stdout()


def _advance_nothing(_steps: int) -> None:
    pass
