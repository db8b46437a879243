"""The report of `ems-cli plan` as text."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.break_even import BreakEven, LoadTime
from ems_cli.diagnostics.plan import PlanReport
from ems_cli.render.figures import bullets, duration, exact, grid, heading, plain_table

_SCOPES = {
    "rank": "each rank's own pool",
    "node": "a pool per node",
    "pool": "one pool for all",
}


def plan_text(report: PlanReport) -> RenderableType:
    """Return the report."""
    return Group(*_parts(report))


def _parts(report: PlanReport) -> Iterator[RenderableType]:
    yield heading(f"Plan for {report.shape.source}")
    yield _summary(report)
    yield Text()
    yield heading("Bytes")
    yield _bytes(report)
    yield Text(
        f"A sequence of {report.sequence_length} tokens takes {exact(report.sequence_pool_nbytes)} "
        f"of {'the' if report.ranks == 1 else 'a shared'} pool"
    )
    if len(report.stages) > 1:
        yield Text()
        yield heading("Pipeline stages")
        yield _stages(report)
    yield Text()
    yield heading(f"Spans: the {report.spans_per_block} copies that one block is")
    yield _spans(report)
    if report.capacity_nbytes is not None:
        yield Text()
        yield heading(f"What {exact(report.capacity_nbytes)} hold")
        yield _rooms(report)
    if report.load is not None:
        yield Text()
        yield heading("Loading a prefix", report.load.bandwidth.labels)
        yield _load(report.load, report.break_even, report.sequence_length)
    if report.warnings:
        yield Text()
        yield heading("Worth knowing")
        yield bullets(report.warnings)


def _summary(report: PlanReport) -> Table:
    shape = report.shape
    parallel = shape.parallel
    rows = grid()
    layers = f"{shape.num_layers} of {shape.model_layers} layers"
    if shape.num_layers == shape.model_layers:
        layers = f"{shape.num_layers} layers"
    rows.add_row("cache", Text(f"{shape.kvcache_type}, {layers}, {_planes(report)}"))
    rows.add_row("block", f"{shape.block_size} tokens")
    if report.ranks > 1:
        rows.add_row(
            "ranks",
            f"{report.ranks} (tp {parallel.tp} × pp {parallel.pp}) on "
            f"{report.nodes} {'node' if report.nodes == 1 else 'nodes'}; shown is rank "
            f"{parallel.rank}",
        )
        shared = (
            "once, all TP ranks of a stage share it (MLA)"
            if report.shared_by_tp_ranks
            else "by every TP rank for itself"
        )
        rows.add_row("kept", shared)
    for note in report.notes:
        rows.add_row("note", Text(note))
    return rows


def _planes(report: PlanReport) -> str:
    group = report.shape.groups[0]
    planes = " + ".join(f"{plane.name} {plane.heads} × {plane.head_size}" for plane in group.planes)
    more = len(report.shape.groups) - 1
    return f"{planes}, {group.planes[0].dtype}{f', {more} more kinds' if more else ''}"


def _bytes(report: PlanReport) -> Table:
    shape = report.shape
    stage = report.stages[shape.pp_rank]
    table = plain_table("", "per token", "per block", right=("per token", "per block"))
    model = report.model_token_nbytes
    table.add_row("the model, kept once", f"{model} B", exact(model * shape.block_size))
    if report.ranks > 1:
        table.add_row("this rank", f"{shape.token_nbytes} B", exact(shape.block_nbytes))
    padding = stage.entry_nbytes - stage.block_nbytes
    aligned = f"its entry, {padding} B for alignment" if padding else "its entry, no padding"
    table.add_row(aligned, "", exact(stage.entry_nbytes))
    if report.ranks > 1:
        pool = f"{report.pool_token_nbytes} B"
        table.add_row("all ranks in one pool", pool, exact(report.pool_block_nbytes))
    return table


def _stages(report: PlanReport) -> Table:
    table = plain_table(
        *("stage", "layers", "per token", "entry", "entries per block"),
        right=("stage", "per token", "entry", "entries per block"),
    )
    for stage in report.stages:
        table.add_row(
            str(stage.pp_rank),
            stage.layers,
            f"{stage.token_nbytes} B",
            format_nbytes(stage.entry_nbytes),
            str(stage.entries_per_block),
        )
    return table


def _spans(report: PlanReport) -> Table:
    table = plain_table(
        *("plane", "layers", "spans", "size of each", ""), right=("spans", "size of each")
    )
    for span in report.spans:
        verdict = Text("small", style="yellow") if span.small else Text("fine", style="green")
        table.add_row(
            span.name, span.layers, str(span.tensors), format_nbytes(span.nbytes), verdict
        )
    return table


def _rooms(report: PlanReport) -> Table:
    length = f"× {report.sequence_length}"
    table = plain_table(
        *("if it is", "in all", "blocks", "tokens", f"sequences {length}"),
        right=("in all", "blocks", "tokens", f"sequences {length}"),
    )
    for room in report.rooms:
        if report.ranks == 1 and room.scope != "pool":
            continue
        name = _SCOPES[room.scope] + (f" ({room.pools})" if room.pools > 1 else "")
        table.add_row(
            name,
            format_nbytes(room.memory_nbytes),
            str(room.blocks),
            str(room.tokens),
            str(room.sequences),
        )
    return table


def _load(load: LoadTime, even: BreakEven | None, length: int) -> Table:
    rows = grid()
    rate = load.bandwidth
    rows.add_row("rate", Text(f"{rate.bytes_per_second / 1e9:.2f} GB/s per rank, {rate.source}"))
    fixed = f", of it {duration(load.fixed_seconds)} fixed" if load.fixed_seconds else ""
    size = format_nbytes(load.nbytes)
    rows.add_row(
        "load", f"{load.prefix_tokens} tokens, {size} per rank: {duration(load.seconds)}{fixed}"
    )
    if even is None:
        return rows
    speed = f"{even.prefill_tokens_per_second:g} tokens/s"
    rows.add_row("compute", f"the same at {speed}: {duration(even.prefill_seconds)}")
    faster = f"{even.speedup:.1f} times faster" if even.speedup >= 1 else "SLOWER"
    rows.add_row("loading is", Text(faster, style="green" if even.speedup >= 1 else "bold red"))
    rows.add_row("needs", f"more than {even.needed_bytes_per_second / 1e9:.2f} GB/s per rank")
    rows.add_row("break-even", _from(even, length))
    return rows


def _from(even: BreakEven, length: int) -> str:
    if even.from_tokens is None:
        return "never: computing is faster at any length"
    start = f"from a prefix of {even.from_tokens} tokens on"
    if even.from_hit_share is None:
        return f"{start}; a sequence of {length} is too short to gain"
    return f"{start}: {even.from_hit_share:.1%} of a sequence of {length}"
