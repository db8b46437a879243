"""The report of `ems-cli replay` as a page."""

from collections.abc import Iterator

from ems.common.units import format_nbytes
from ems_cli.diagnostics.replay import CapacityRun, ReplayReport
from ems_cli.render.figures import exact
from ems_cli.render.html.all_figures import all_figures
from ems_cli.render.html.markup import Child, Markup, element
from ems_cli.render.html.page import bullets, dim, page, pairs, section, table
from ems_cli.render.html.svg import Line, lines


def replay_page(report: ReplayReport) -> str:
    """Return the page."""
    return page(
        "Trace replay",
        labels=(),
        verdict="FAIL" if report.problem_count else None,
        versions=(),
        body=_body(report),
    )


def _body(report: ReplayReport) -> Iterator[Markup]:
    rows: list[tuple[str, Child]] = [
        ("trace", report.file),
        ("kind", f"{report.kind}, {report.block_tokens} tokens per hash"),
        ("requests", str(report.requests)),
        ("blocks", f"{report.blocks}, of them {report.distinct_blocks} distinct"),
        ("tokens", f"{report.tokens} of input"),
    ]
    if report.entry.nbytes is not None:
        rows.append(("one block", f"{exact(report.entry.nbytes)}, by {report.entry.source}"))
    if report.all_nbytes is not None:
        rows.append(("all blocks", exact(report.all_nbytes)))
    yield section("Trace", pairs(rows), bullets(report.notes))
    if report.problem_count:
        yield section(
            "Lines that are wrong",
            element("div", f"{report.problem_count} in all; nothing was replayed",
                    class_="banner FAIL"),
            bullets(f"line {problem.line}: {problem.text}" for problem in report.problems),
        )  # fmt: skip
    elif report.runs:
        yield section("Hit rate by capacity", _chart(report), _rates(report))
        yield section("Evictions and misses, in blocks", _misses(report))
    yield all_figures(report)


def _size(run: CapacityRun) -> str:
    if run.capacity_nbytes is None:
        return f"{run.capacity_blocks} blocks"
    return format_nbytes(run.capacity_nbytes)


def _chart(report: ReplayReport) -> Markup:
    runs = report.runs
    found = [
        Line("LRU, the pool of EMS", [run.hit_share for run in runs]),
        Line("FIFO", [run.fifo_hit_share or 0.0 for run in runs]),
        Line("foresight", [run.foresight_hit_share or 0.0 for run in runs]),
        Line("endless cache", [report.ceiling_hit_share] * len(runs), dashed=True),
    ]
    if any(run.fifo_hit_share is None or run.foresight_hit_share is None for run in runs):
        del found[1:3]
    return lines([_size(run) for run in runs], found, title="hit rate by capacity")


def _rates(report: ReplayReport) -> Markup:
    columns = ["blocks", "capacity", "hits", "LRU", "FIFO", "foresight", "hit tokens"]
    rows = [
        [
            str(run.capacity_blocks),
            _size(run),
            f"{run.hit_blocks} of {report.blocks}",
            _rate(run.hit_share),
            _rate(run.fifo_hit_share),
            _rate(run.foresight_hit_share),
            str(run.hit_tokens),
        ]
        for run in report.runs
    ]
    endless = _rate(report.ceiling_hit_share)
    hits = f"{report.ceiling_hit_blocks} of {report.blocks}"
    tokens = str(report.ceiling_hit_tokens)
    rows.append(["endless", "–", hits, endless, endless, endless, tokens])
    return element(
        "div",
        table(columns, rows, right=columns),
        dim(
            "LRU is the pool of EMS. FIFO and foresight (what is needed last goes first) are "
            "counted beside it; the endless cache forgets nothing."
        ),
    )


def _rate(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _misses(report: ReplayReport) -> Markup:
    reasons = list(dict.fromkeys(name for run in report.runs for name in run.misses))
    columns = ["capacity", "evictions", "no room", *(name.replace("_", " ") for name in reasons)]
    rows = [
        [
            _size(run),
            str(run.evictions),
            str(run.refused_blocks),
            *(str(run.misses.get(name, 0)) for name in reasons),
        ]
        for run in report.runs
    ]
    return table(columns, rows, right=columns)
