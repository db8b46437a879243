"""A report's text as a file of 80 columns without colour has it."""

import io
from pathlib import Path

from ems_cli.render.sink import report_console

GOLDEN = Path(__file__).parent / "golden"


def printed(renderable):
    file = io.StringIO()
    console = report_console(file, width=80)
    console.print(renderable)
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


def golden(name):
    return (GOLDEN / name).read_text(encoding="utf-8")
