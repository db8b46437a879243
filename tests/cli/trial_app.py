"""A command line with small commands, made as the product makes its own."""

import sys
import time
from dataclasses import dataclass
from typing import Annotated

import typer

from ems.common.exception import EmsException, PoolUnavailable
from ems_cli.app import create_app
from ems_cli.commands.options import (
    DeviceOptions,
    OutputOptions,
    ShapeOptions,
    nbytes_of,
    sink_for,
)
from ems_cli.diagnostics.shape_request import shape_of


@dataclass(frozen=True, slots=True)
class Measured:
    token_nbytes: int
    devices: tuple[int, ...]


def measure(
    context: typer.Context,
    cache: ShapeOptions,
    where: DeviceOptions,
    output: OutputOptions,
    *,
    pool_size: Annotated[str, typer.Option(metavar="SIZE", help="Memory of the pool.")] = "1GiB",
) -> None:
    """Measure a shape."""
    shape = shape_of(cache.request())
    sink = sink_for(context, output)
    sink.note(f"the pool has {nbytes_of(pool_size, option='--pool-size')} bytes")
    with sink.progress("measuring", total=1) as advance:
        advance(1)
    report = Measured(shape.token_nbytes, where.chosen().indices)
    sink.emit(report, lambda measured: f"{measured.token_nbytes} bytes per token")


def fail(context: typer.Context, output: OutputOptions, *, how: str = "pool") -> None:
    """Fail in the way that is asked for."""
    sink = sink_for(context, output)
    if how.startswith("late"):
        sink.emit(Measured(1, ()), lambda _: "half a report")
        how = how.removeprefix("late-")
    raise {
        "pool": PoolUnavailable("no answer from\n[red]pool[/red] \x1b[31mat host"),
        "ems": EmsException("broken"),
        "bug": KeyError("unexpected"),
        "socket": BrokenPipeError("a socket, not stdout"),
        "interrupt": KeyboardInterrupt(),
        "found": typer.Exit(1),
    }[how]


def talk(context: typer.Context, output: OutputOptions, *, lines: int = 1) -> None:
    """Write a long report."""
    sink_for(context, output).emit(Measured(0, ()), lambda _: "all work and no play\n" * lines)


def wait() -> None:
    """Wait until interrupted."""
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    time.sleep(60)


app = create_app([measure, fail, talk, wait])

if __name__ == "__main__":
    app(prog_name="ems-cli")
