"""The report of `ems-cli verify` as a page."""

from collections.abc import Iterator

from ems.common.units import format_nbytes
from ems_cli.diagnostics.verify import StepReport, VerifyReport
from ems_cli.render.figures import duration, exact
from ems_cli.render.html.all_figures import all_figures
from ems_cli.render.html.markup import Markup, element
from ems_cli.render.html.page import badge, bullets, dim, page, pairs, section, table
from ems_cli.render.html.svg import Bar, bars


def verify_page(report: VerifyReport) -> str:
    """Return the page."""
    return page(
        "KV cache verification",
        labels=report.labels,
        verdict=report.verdict.value,
        versions=report.versions.items(),
        body=_body(report),
    )


def _body(report: VerifyReport) -> Iterator[Markup]:
    settings = report.settings
    steps = f"{report.passed_steps} of {len(report.steps)} steps passed"
    if report.ended == "interrupted":
        steps += "; interrupted, these are the steps until then"
    yield section(
        "Result",
        pairs(
            [
                ("steps", steps),
                (
                    "compared",
                    f"{report.compared_elements} elements, {exact(report.compared_nbytes)}",
                ),
                ("pool", settings.pool or "of this run alone"),
                ("rounds", str(settings.rounds)),
                ("repeat with", element("code", f"--seed {settings.seed}")),
            ]
        ),
        bullets(report.notes) if report.notes else [],
    )
    failed = [step for step in report.steps if step.fault is not None]
    if failed:
        yield section("What is wrong", [_fault(step) for step in failed])
    yield section(
        "Steps",
        table(
            ["", "step", "round", "where", "elements compared", "time"],
            [
                [
                    badge(step.verdict.value),
                    step.name,
                    str(step.round),
                    step.where,
                    str(step.compared_elements),
                    duration(step.seconds),
                ]
                for step in report.steps
            ],
            right=("round", "elements compared", "time"),
        ),
    )
    yield section("Compared bytes by step", _compared(report))
    yield section(
        "Caches",
        table(
            ["rank", "NPU", "kind", "layers", "blocks", "tokens per block", "size", "from"],
            [
                [
                    rank.label,
                    rank.device_name,
                    rank.shape.kvcache_type,
                    str(rank.shape.num_layers),
                    str(rank.shape.num_blocks),
                    str(rank.shape.block_size),
                    exact(rank.shape.nbytes),
                    rank.shape.source,
                ]
                for rank in report.ranks
            ],
            right=("layers", "blocks", "tokens per block", "size"),
        ),
        dim(
            "Every element tells rank, generation, layer, plane, block, token, head and dimension;"
            " all other blocks and the memory around them are compared as well."
        ),
    )
    yield all_figures(report)


def _fault(step: StepReport) -> Markup:
    fault = step.fault
    if fault is None:
        return element("div")
    more = f" In {fault.regions} blocks of tensors." if fault.regions > 1 else ""
    kind = element("strong", fault.kind.value)
    return element(
        "div",
        element("p", element("span", kind, class_="badge FAIL"), f" {step.name}, {step.where}"),
        element("p", element("span", fault.text, class_="code"), more),
    )


def _compared(report: VerifyReport) -> Markup:
    nbytes: dict[str, int] = {}
    for step in report.steps:
        nbytes[step.name] = nbytes.get(step.name, 0) + step.compared_nbytes
    rows = [Bar(name, float(count), format_nbytes(count)) for name, count in nbytes.items()]
    return bars(rows, title="compared bytes by step")
