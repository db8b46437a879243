"""The options of `ems-cli bench`; those that take lists make a sweep."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, cast, get_args

import typer

from ems_cli.commands.options import LONGEST_SECONDS, PlaneOptions, numbers_of
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.bench_settings import USUAL_SECONDS, Order
from ems_cli.diagnostics.shape import DEFAULT_BLOCK_SIZE

_LIST: Final = "N,…"


@dataclass(frozen=True, slots=True)
class BenchShapeOptions(PlaneOptions):
    """How the benchmark's cache looks."""

    block_size: Annotated[str, typer.Option(metavar=_LIST, help="Tokens of one block.")] = str(
        DEFAULT_BLOCK_SIZE
    )
    blocks: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Blocks that are moved. The cache has twice as many: they are saved, and loaded"
            " into others.  [default: half of what fits into 1 GiB, at most 64]",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What a run of the benchmark is."""

    blocks_per_call: Annotated[
        str | None,
        typer.Option(metavar=_LIST, help="Blocks of one save or load.  [default: all of --blocks]"),
    ] = None
    in_flight: Annotated[
        str, typer.Option(metavar=_LIST, help="Calls of one run; the asynchronous ones at once.")
    ] = "1"
    order: Annotated[
        str,
        typer.Option(
            metavar="random|sequential",
            help="Blocks anywhere in the cache, or following each other in memory;"
            " random,sequential measures both.",
        ),
    ] = "random"
    pool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="URL",
            help="Pool to save into; may be repeated.  [default: memory:// of the size needed]",
        ),
    ] = None
    runs: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Runs of each operation.  [default: until the medians are known to 3 %, or"
            " --seconds are over, at least 10]",
        ),
    ] = None
    seconds: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=LONGEST_SECONDS,
            metavar="S",
            help="Time for the runs on each NPU and at each point.",
        ),
    ] = USUAL_SECONDS
    miss_ratio: Annotated[
        float,
        typer.Option(
            min=0, max=1, metavar="X", help="Share of each load's blocks that was never saved."
        ),
    ] = 0.0
    verify: Annotated[
        bool,
        typer.Option("--verify/--no-verify", help="Compare loaded blocks with what was saved."),
    ] = True
    together: Annotated[
        bool,
        typer.Option("--together", help="Then all --devices at once, against each alone."),
    ] = False

    def orders(self) -> tuple[Order, ...]:
        """Return the orders of blocks.

        Raises:
            BadInput: one of them is unknown.
        """
        parts = [part.strip() for part in self.order.split(",")]
        for part in parts:
            if part not in get_args(Order):
                raise BadInput(f"{part!r} is neither random nor sequential", option="--order")
        return tuple(dict.fromkeys(cast("Order", part) for part in parts))

    def calls(self) -> tuple[int, ...]:
        """Return the blocks per call; 0 where they are to be chosen.

        Raises:
            BadInput: they are no numbers.
        """
        if self.blocks_per_call is None:
            return (0,)
        return numbers_of(self.blocks_per_call, option="--blocks-per-call")


@dataclass(frozen=True, slots=True)
class KindOptions:
    """What else the benchmark can be, and what becomes of its figures."""

    suite: Annotated[
        bool,
        typer.Option(
            "--suite",
            help="A fixed set of caches, calls, pools and goals instead, on the first device; in"
            " one --pool, if that is given.",
        ),
    ] = False
    quick: Annotated[
        bool, typer.Option("--quick", help="With --suite: fewer runs, nothing above 1 GiB.")
    ] = False
    memory: Annotated[
        str,
        typer.Option(
            metavar="SIZE", help="With --suite: skip what takes more of host and simulated NPU."
        ),
    ] = "6GiB"
    submit: Annotated[
        bool,
        typer.Option(
            "--submit",
            help="Only time how long large calls hold the caller's thread, with a cache of their"
            " own, on the first device.",
        ),
    ] = False
    baseline: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Compare with what --save-baseline kept; slower is exit code 1."
        ),
    ] = None
    save_baseline: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Keep the report, as --json writes it.")
    ] = None
    details: Annotated[
        bool, typer.Option("--details", help="All figures: every percentile, blocks, first calls.")
    ] = False
