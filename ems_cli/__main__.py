"""Start of `ems-cli`, and of `python -m ems_cli`."""

import contextlib
import os
import signal
import sys
import threading
from typing import Any, Final

_EXIT_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count
_SHORTLY: Final = 0.05
_STREAMS: Final = (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))
"""By their numbers, and how their place is opened: a write to a closed stdout must fail."""


def main() -> None:
    """Run the command line and leave with its exit code."""
    _open_what_is_closed()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # whoever replaced the stream did not offer it
            # a path or a bar that the terminal's encoding lacks must not end a command
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    sys.unraisablehook = _interrupt_again
    try:
        from ems_cli.app import app  # noqa: PLC0415 - takes long enough to be interrupted
    except KeyboardInterrupt:
        sys.stderr.write("Error: interrupted\n")
        sys.exit(_EXIT_INTERRUPTED)
    app(prog_name="ems-cli")


def _open_what_is_closed() -> None:
    """Give closed streams their numbers back, before a file of ours gets them.

    Python has None in the place of a stream that the caller has closed.
    """
    for name, flags in _STREAMS:
        if getattr(sys, name) is None:
            number = os.open(os.devnull, flags)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w"))


def _interrupt_again(unraisable: Any) -> None:
    """Repeat a Ctrl-C that came while a finalizer ran: Python prints it there and goes on."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    main_thread = threading.main_thread().ident
    again = threading.Timer(_SHORTLY, signal.pthread_kill, (main_thread, signal.SIGINT))
    again.daemon = True
    again.start()


if __name__ == "__main__":
    main()
