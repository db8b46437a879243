"""Reports of `ems-cli inspect` on files, keys and copy plans, as text."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.compare import CompareReport, Field
from ems_cli.diagnostics.copy_figures import Copies, CopyReport
from ems_cli.diagnostics.saved import SavedDevice, SavedReport
from ems_cli.render.figures import (
    VERDICT_STYLES,
    bullets,
    duration,
    exact,
    grid,
    heading,
    percent,
    plain_table,
)
from ems_cli.render.live import process_text
from ems_cli.render.text import visible

_HISTOGRAM_CELLS = 32


def saved_text(report: SavedReport) -> RenderableType:
    """Return what is in a file."""
    return Group(*_saved(report))


def _saved(report: SavedReport) -> Iterator[RenderableType]:
    if report.process is not None:
        yield heading(f"Description in {visible(report.file)}")
        yield process_text(report.process)
        return
    labels = ("SIMULATED",) if report.simulated else ()
    yield heading(f"Registration in {visible(report.file)}", labels)
    for device in report.devices:
        yield from _device(device)
    verdict = str(report.verdict)
    yield Text.assemble("Verdict: ", (visible(verdict), VERDICT_STYLES.get(verdict, "")))


def _device(device: SavedDevice) -> Iterator[RenderableType]:
    yield heading(visible(f"{device.device}  {device.device_name}"))
    rows = grid()
    rows.add_row(
        "cache",
        f"{escape(visible(device.kvcache_type))}, {device.layers} layers, "
        f"{device.num_blocks} blocks × {device.block_size} tokens",
    )
    rows.add_row("bytes", f"{device.token_nbytes} per token, {exact(device.nbytes)} in all")
    for tensors in device.tensors:
        rows.add_row(
            Text(visible(tensors.name)),
            Text(
                visible(
                    f"{list(tensors.shape)} {tensors.dtype}, {tensors.npu_format}, layers "
                    f"{tensors.layers}"
                )
            ),
        )
    passed = device.checks - len(device.not_passed)
    rows.add_row("checks", f"{passed} of {device.checks} passed")
    for check in device.not_passed:
        verdict = Text(visible(check.verdict), style=VERDICT_STYLES.get(check.verdict, ""))
        rows.add_row(verdict, Text(visible(f"{check.name}: {check.found}; {check.fix}")))
    yield rows
    if device.refusal is not None:
        yield Text(visible(f"Refused: {device.refusal}"), style="bold red")


def compare_text(report: CompareReport) -> RenderableType:
    """Return what is alike in two descriptions, and what is not."""
    return Group(*_compare(report))


def _compare(report: CompareReport) -> Iterator[RenderableType]:
    yield heading("Do both name the same prefix alike?")
    rows = grid()
    rows.add_row("A", Text(visible(report.first)))
    rows.add_row("B", Text(visible(report.second)))
    yield rows
    yield Text()
    yield _fields(report.fields)
    if report.first_keys or report.second_keys:
        yield Text()
        yield heading("Keys begin with")
        keys = grid()
        for name, prefixes in (("A", report.first_keys), ("B", report.second_keys)):
            for prefix in prefixes or ("not told",):
                keys.add_row(name, Text(visible(prefix)))
        yield keys
    yield Text()
    yield _answer(report)
    if report.warnings:
        yield bullets(map(visible, report.warnings))


def _fields(fields: tuple[Field, ...]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for field in fields:
        if field.same is None:
            mark = Text("?", style="yellow")
        else:
            mark = Text("=", style="green") if field.same else Text("≠", style="bold red")
        if field.same:
            table.add_row(mark, field.name, Text(visible(field.first)))
        else:
            table.add_row(mark, field.name, Text(visible(f"A  {field.first}")))
            table.add_row("", "", Text(visible(f"B  {field.second}")))
    return table


def _answer(report: CompareReport) -> Text:
    if report.difference is not None:
        return Text(visible(f"No: {report.difference}"), style="bold red")
    if report.same is None:
        return Text("What can be compared is alike; ? is not in both", style="yellow")
    alike = "the same keys for the same hashes" if report.what == "hash" else "the same namespace"
    return Text(f"Yes: {alike}", style="green")


def copies_text(report: CopyReport) -> RenderableType:
    """Return a copy plan."""
    return Group(*_copies(report))


def _copies(report: CopyReport) -> Iterator[RenderableType]:
    shape = report.shape
    yield heading("Copy plan")
    rows = grid()
    rows.add_row(
        "cache",
        Text(
            f"{shape.kvcache_type}, {shape.num_layers} layers, blocks of {shape.block_size} "
            f"tokens, {shape.token_nbytes} B per token, from {shape.source}"
        ),
    )
    hashes = "1 hash" if report.hashes == 1 else f"{report.hashes} hashes"
    rows.add_row("asked for", f"{report.tokens} tokens: {hashes} of up to {report.tokens_per_hash}")
    rows.add_row("touches", f"{report.blocks} blocks in {report.runs} runs of slots")
    yield rows
    yield Text()
    yield _both(report)
    yield Text()
    yield heading("Spans by size")
    yield _histogram(report.copies)
    if report.warnings:
        yield Text()
        yield bullets(report.warnings)


def _both(report: CopyReport) -> Table:
    mine, other = report.copies, report.contiguous
    table = plain_table("", "as asked", "blocks in a row", right=("as asked", "blocks in a row"))
    pairs = [
        ("spans", str(mine.spans), str(other.spans)),
        ("bytes", format_nbytes(mine.nbytes), format_nbytes(other.nbytes)),
        ("smallest", format_nbytes(mine.smallest_nbytes), format_nbytes(other.smallest_nbytes)),
        ("median", format_nbytes(mine.median_nbytes), format_nbytes(other.median_nbytes)),
        ("largest", format_nbytes(mine.largest_nbytes), format_nbytes(other.largest_nbytes)),
        ("under 64 KiB", percent(mine.small_share), percent(other.small_share)),
    ]
    for name, one, two in pairs:
        table.add_row(name, one, two)
    if report.cost.launch_seconds:
        table.add_row("launching", duration(mine.launch_seconds), duration(other.launch_seconds))
    if mine.seconds is not None and other.seconds is not None:
        table.add_row("predicted", duration(mine.seconds), duration(other.seconds), style="bold")
    return table


def _histogram(copies: Copies) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    most = max(one.spans for one in copies.sizes)
    for one in copies.sizes:
        bar = "█" * max(1, round(_HISTOGRAM_CELLS * one.spans / most))
        table.add_row(
            f"from {format_nbytes(one.from_nbytes)}",
            Text(bar, style="cyan"),
            f"{one.spans} spans",
            format_nbytes(one.nbytes),
        )
    return table
