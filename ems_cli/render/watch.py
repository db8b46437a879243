"""A report that is drawn again and again in place."""

import signal
import sys
import time
from collections.abc import Callable
from typing import TypeVar

from rich.console import RenderableType
from rich.live import Live

from ems_cli.render.sink import report_console

Report = TypeVar("Report")


def watch(
    look: Callable[[], Report],
    as_text: Callable[[Report], RenderableType],
    *,
    seconds: float,
    keep: Callable[[Report], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Show what `look` returns, every `seconds`, until interrupted; `keep` gets every report.

    On a terminal it has a screen of its own, which is gone afterwards; else report follows report.

    Raises:
        KeyboardInterrupt: the way in which it ends; the terminal is as before.
    """
    console = report_console(sys.stdout)
    if not console.is_terminal:
        while True:
            report = look()
            keep(report)
            console.print(as_text(report))
            sys.stdout.flush()
            sleep(seconds)
    # a watch that is ended by `kill` must leave its screen, too
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            report = look()
            keep(report)
            live.update(as_text(report), refresh=True)
            sleep(seconds)
