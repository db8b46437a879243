"""Start of `ems-cli`, and of `python -m ems_cli`."""

import contextlib
import sys

from ems_cli.app import app


def main() -> None:
    """Run the command line and leave with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError):  # whoever replaced the stream did not offer it
            # a path or a bar that the terminal's encoding lacks must not end a command
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
    app(prog_name="ems-cli")


if __name__ == "__main__":
    main()
