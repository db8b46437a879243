"""`ems-cli plan`."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ems_cli.commands.model_options import ModelOptions, rate_of
from ems_cli.commands.options import LONGEST_SECONDS, OutputOptions, nbytes_of, sink_for
from ems_cli.diagnostics.bad_input import BadInput

if TYPE_CHECKING:  # numpy comes with it
    from ems_cli.diagnostics.break_even import Bandwidth
    from ems_cli.diagnostics.plan import PlanReport

_SEQUENCE_LENGTH = 8192
_RANKS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class RoomOptions:
    """What is to fit where."""

    capacity: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory for the pool: what it holds is told for SIZE per rank, per node and in"
            " all.",
        ),
    ] = None
    sequence_length: Annotated[
        int, typer.Option(min=1, metavar="N", help="Tokens of one sequence.")
    ] = _SEQUENCE_LENGTH
    ranks_per_node: Annotated[int, typer.Option(min=1, metavar="N", help="Ranks on one node.")] = (
        _RANKS_PER_NODE
    )


@dataclass(frozen=True, slots=True)
class TimeOptions:
    """How fast things are."""

    bandwidth: Annotated[
        str | None,
        typer.Option(metavar="RATE", help="How fast one rank loads: 20GB/s, 15GiB/s."),
    ] = None
    from_bench: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take the rate from a saved `bench --json`."),
    ] = None
    fixed_ms: Annotated[
        float,
        typer.Option(
            min=0,
            max=LONGEST_SECONDS * 1e3,
            metavar="MS",
            help="What a load takes besides its bytes, in milliseconds.",
        ),
    ] = 0.0
    prefix_tokens: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help="Tokens of the prefix to load.  [default: a sequence's]"
        ),
    ] = None
    prefill_tokens_per_second: Annotated[
        float | None,
        typer.Option(
            min=1e-3,
            max=1e12,
            metavar="X",
            help="What the whole instance computes: tells the break-even.",
        ),
    ] = None


def plan(
    context: typer.Context,
    model: ModelOptions,
    room: RoomOptions,
    times: TimeOptions,
    output: OutputOptions,
) -> None:
    """Work out capacity and load times of a model's cache; no NPU."""
    sink = sink_for(context, output)
    request = model.request()
    capacity = None if room.capacity is None else nbytes_of(room.capacity, option="--capacity")
    _refuse_half_a_question(times)
    from ems_cli.diagnostics.plan import Deployment, plan_of  # noqa: PLC0415 - numpy
    from ems_cli.render.plan import plan_text  # noqa: PLC0415 - rich

    deployment = Deployment(capacity, room.sequence_length, room.ranks_per_node)
    report = plan_of(request, deployment)
    bandwidth = _bandwidth(times)
    if bandwidth is not None:
        report = _with_times(report, bandwidth, times)
    sink.emit(report, plan_text)


def _refuse_half_a_question(times: TimeOptions) -> None:
    if times.bandwidth is not None and times.from_bench is not None:
        raise BadInput("give it or --from-bench, not both", option="--bandwidth")
    if times.bandwidth is None and times.from_bench is None:
        if times.prefill_tokens_per_second is not None:
            raise BadInput(
                "the break-even needs --bandwidth or --from-bench as well",
                option="--prefill-tokens-per-second",
            )
        for option, given in (
            ("--prefix-tokens", times.prefix_tokens),
            ("--fixed-ms", times.fixed_ms),
        ):
            if given:
                raise BadInput(
                    "the time of a load needs --bandwidth or --from-bench", option=option
                )


def _bandwidth(times: TimeOptions) -> "Bandwidth | None":
    from ems_cli.diagnostics.break_even import Bandwidth, bandwidth_from_bench  # noqa: PLC0415

    if times.from_bench is not None:
        return bandwidth_from_bench(times.from_bench)
    if times.bandwidth is None:
        return None
    return Bandwidth(rate_of(times.bandwidth, option="--bandwidth"), "given")


def _with_times(report: "PlanReport", bandwidth: "Bandwidth", times: TimeOptions) -> "PlanReport":
    from ems_cli.diagnostics.break_even import (  # noqa: PLC0415
        break_even,
        load_time,
        other_spans,
    )

    token_nbytes = max(stage.token_nbytes for stage in report.stages)
    load = load_time(
        bandwidth,
        token_nbytes=token_nbytes,
        prefix_tokens=times.prefix_tokens or report.sequence_length,
        fixed_seconds=times.fixed_ms / 1e3,
    )
    doubt = other_spans(bandwidth, min(span.nbytes for span in report.spans))
    warnings = report.warnings if doubt is None else (*report.warnings, doubt)
    rate = times.prefill_tokens_per_second
    if rate is None:
        return replace(report, load=load, warnings=warnings)
    even = break_even(
        load,
        token_nbytes=token_nbytes,
        prefill_tokens_per_second=rate,
        sequence_length=report.sequence_length,
    )
    return replace(report, load=load, break_even=even, warnings=warnings)
