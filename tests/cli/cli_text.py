"""What a report looks like on 80 columns without colours, and what it should."""

import io
from pathlib import Path

from ems_cli.render.sink import report_console

GOLDEN = Path(__file__).parent / "golden"


def printed(renderable):
    file = io.StringIO()
    report_console(file, width=80).print(renderable)
    return "".join(line.rstrip() + "\n" for line in file.getvalue().splitlines())


def golden(name):
    return (GOLDEN / name).read_text(encoding="utf-8")
