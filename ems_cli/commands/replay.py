"""`ems-cli replay`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ems_cli.commands.options import OutputOptions, nbytes_of, sink_for
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.shape_request import ShapeRequest

if TYPE_CHECKING:  # numpy comes with it
    from ems_cli.diagnostics.replay import Entry

_BLOCKS: Final = re.compile(r"(\d{1,12})\s*blocks?")
_SWEPT: Final = 7
_EXIT_INTERRUPTED: Final = 130
_MAX_NBYTES: Final = 8 << 30
"""Memory that the pool of a replay may take from this host."""


@dataclass(frozen=True, slots=True)
class EntryOptions:
    """What one hash of the trace stands for."""

    model: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|NAME",
            help="Count bytes as this model's cache: a config.json, or a known name.",
        ),
    ] = None
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="Element type of the model's cache.")
    ] = None
    tp: Annotated[int, typer.Option(min=1, metavar="N", help="Ranks that share a layer.")] = 1
    pp: Annotated[int, typer.Option(min=1, metavar="N", help="Pipeline stages.")] = 1
    entry_bytes: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Count every hash as an entry of this size instead."),
    ] = None


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How the trace is read, and the pools it goes through."""

    block_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Tokens of one hash.  [default: Mooncake 512, Qwen-Bailian 16]"
        ),
    ] = None
    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="LIST",
            help="Sizes of the pool: 64GiB,256GiB or 1000blocks,5000blocks.  [default: from a"
            " 64th of what the trace stores to all of it]",
        ),
    ] = None


def replay(
    context: typer.Context,
    how: ReplayOptions,
    entries: EntryOptions,
    output: OutputOptions,
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Mooncake's or Qwen-Bailian's JSONL.")
    ],
) -> None:
    """Send a request trace through the pool: hit rate by capacity."""
    sink = sink_for(context, output)
    if entries.model is not None and entries.entry_bytes is not None:
        raise BadInput("give it or --model, not both", option="--entry-bytes")
    from ems_cli.diagnostics.trace_file import read_trace  # noqa: PLC0415 - --help needs it not

    trace = read_trace(file, how.block_tokens)
    # numpy comes with these
    from ems_cli.diagnostics.replay import STAND_IN_NBYTES, replay_trace  # noqa: PLC0415
    from ems_cli.render.replay import replay_text  # noqa: PLC0415 - rich

    entry = _entry(entries, trace.block_tokens)
    capacities = [] if how.capacity is None else _capacities(how.capacity, entry)
    if any(blocks * STAND_IN_NBYTES > _MAX_NBYTES for blocks in capacities):
        raise BadInput(
            f"more than {_MAX_NBYTES // STAND_IN_NBYTES} blocks are not replayed",
            option="--capacity",
        )
    with sink.progress("replaying", total=len(capacities) or _SWEPT) as advance:
        report = replay_trace(trace, str(file), entry, capacities=capacities, advance=advance)
    sink.emit(report, replay_text)
    if report.ended == "interrupted":
        raise typer.Exit(_EXIT_INTERRUPTED)
    if report.problem_count:
        raise typer.Exit(1)


def _entry(options: EntryOptions, block_tokens: int) -> "Entry":
    from ems_cli.diagnostics.plan import Deployment, plan_of  # noqa: PLC0415 - numpy
    from ems_cli.diagnostics.replay import Entry  # noqa: PLC0415

    if options.entry_bytes is not None:
        nbytes = nbytes_of(options.entry_bytes, option="--entry-bytes")
        return Entry("--entry-bytes", nbytes, nbytes / block_tokens)
    if options.model is None:
        for name in ("dtype", "tp", "pp"):
            if getattr(options, name) not in (None, 1):
                raise BadInput("only a --model has it", option=f"--{name}")
        return Entry("nothing", None, None)
    request = ShapeRequest(
        model=options.model,
        dtype=options.dtype,
        tp=options.tp,
        pp=options.pp,
        block_size=block_tokens,
        blocks=1,
    )
    plan = plan_of(request, Deployment(None, block_tokens, 1))
    return Entry(plan.shape.source, plan.pool_block_nbytes, float(plan.pool_token_nbytes))


def _capacities(text: str, entry: "Entry") -> list[int]:
    capacities = []
    for part in text.split(","):
        match = _BLOCKS.fullmatch(part.strip())
        blocks = int(match[1]) if match else _blocks_in(part, entry)
        if blocks < 1:
            raise BadInput(
                f"{part.strip()} holds no block: one is {entry.nbytes or 1} bytes",
                option="--capacity",
            )
        capacities.append(blocks)
    return sorted(set(capacities))


def _blocks_in(part: str, entry: "Entry") -> int:
    nbytes = nbytes_of(part, option="--capacity")
    if entry.nbytes is None:
        raise BadInput(
            f"{part.strip()} is a size, and nothing says what a block takes: give --model or"
            " --entry-bytes, or write for example 1000blocks",
            option="--capacity",
        )
    return nbytes // entry.nbytes
