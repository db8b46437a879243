"""The report of `ems-cli verify` as text."""

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ems.common.units import format_nbytes
from ems_cli.diagnostics.check import Verdict
from ems_cli.diagnostics.verify import StepReport, VerifyReport
from ems_cli.render.figures import VERDICT_STYLES, duration, grid, heading, plain_table


def verify_text(report: VerifyReport) -> RenderableType:
    """Return the report."""
    return Group(*_parts(report))


def _parts(report: VerifyReport) -> Iterator[RenderableType]:
    yield heading("Verification", report.labels)
    yield _summary(report)
    yield Text()
    yield _steps(report.steps)
    failed = [step for step in report.steps if step.fault is not None]
    if failed:
        yield Text()
        yield heading("What is wrong")
        yield _faults(failed)
    yield Text()
    if report.ended == "interrupted":
        yield Text("Interrupted: these are the steps until then", style="bold yellow")
    for note in report.notes:
        yield Text(f"Left out: {note}", style="yellow")
    if report.simulated:
        yield Text(
            "SIMULATED: the library's arithmetic and order are proved, no NPU's copies",
            style="yellow",
        )
    yield Text.assemble(
        "Verdict: ",
        (report.verdict.value, VERDICT_STYLES[report.verdict.value]),
        f", {report.passed_steps} of {len(report.steps)} steps passed, "
        f"{report.compared_elements} elements ({format_nbytes(report.compared_nbytes)}) compared, "
        f"--seed {report.settings.seed}",
    )


def _summary(report: VerifyReport) -> Table:
    rows = grid()
    settings = report.settings
    for rank in report.ranks:
        shape = rank.shape
        rows.add_row(
            rank.label,
            Text(
                f"{rank.device_name}, {shape.kvcache_type}, {shape.num_layers} layers, "
                f"{shape.num_blocks} blocks × {shape.block_size} tokens, "
                f"{format_nbytes(shape.nbytes)}, from {shape.source}"
            ),
        )
    rows.add_row("pool", Text(settings.pool or "of this run alone"))
    rows.add_row("rounds", f"{settings.rounds}, seed {settings.seed}")
    return rows


def _steps(steps: Sequence[StepReport]) -> Table:
    table = plain_table("", "step", "where", "elements", "time", right=("elements", "time"))
    table.columns[1].no_wrap = False
    table.columns[2].no_wrap = False
    rounds = {step.round for step in steps}
    for step in steps:
        name = step.name if len(rounds) == 1 else f"{step.name} ({step.round})"
        table.add_row(
            Text(step.verdict.value, style=VERDICT_STYLES[step.verdict.value]),
            name,
            Text(step.where),
            str(step.compared_elements),
            duration(step.seconds),
        )
    return table


def _faults(failed: Sequence[StepReport]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for step in failed:
        if step.fault is None:
            continue
        more = f" ({step.fault.regions} blocks of tensors)" if step.fault.regions > 1 else ""
        table.add_row(
            Text(step.fault.kind.value, style=VERDICT_STYLES[Verdict.FAIL.value]),
            Text(f"{step.name}, {step.where}: {step.fault.text}{more}"),
        )
    return table
