"""The report of `ems-cli bench` as a page."""

from collections.abc import Iterator
from typing import Any, Final

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import BenchReport, DeviceBench
from ems_cli.render.figures import duration, exact, gigabytes, milliseconds, percent
from ems_cli.render.html.all_figures import all_figures
from ems_cli.render.html.markup import Markup, element
from ems_cli.render.html.page import bullets, dim, page, pairs, section, table
from ems_cli.render.html.svg import Bar, bars, histogram

_FEWEST: Final = 2


def bench_page(report: Any) -> str:
    """Return the page; what is no plain benchmark is told in tables alone."""
    body = _body(report) if isinstance(report, BenchReport) else [all_figures(report)]
    return page(
        "KV cache benchmark",
        labels=getattr(report, "labels", ()),
        verdict=None,
        versions=getattr(report, "versions", {}).items(),
        body=body,
    )


def _body(report: BenchReport) -> Iterator[Markup]:
    if report.ended == "interrupted":
        yield element("div", "Interrupted: these are the runs until then", class_="banner WARN")
    if report.failure is not None:
        yield element("div", f"Failed after these runs: {report.failure}", class_="banner FAIL")
    for device in report.devices:
        yield from _device(device, report)
    yield all_figures(report)


def _device(device: DeviceBench, report: BenchReport) -> Iterator[Markup]:
    shape, settings = device.shape, report.settings
    labels = [element("span", label, class_="badge label") for label in device.labels]
    cache = (
        f"{shape.kvcache_type}, {shape.num_layers} layers, {shape.num_blocks} blocks × "
        f"{shape.block_size} tokens, from {shape.source}"
    )
    title = [f"{device.device} {device.device_name} ", labels]
    yield section(
        title,
        _verified(device),
        pairs(
            [
                ("cache", cache),
                ("per block", exact(shape.block_nbytes)),
                ("one run", f"{settings.in_flight} × {settings.blocks_per_call} blocks"),
                ("pool", settings.pool or "memory:// in this process"),
            ]
        ),
        bullets(device.reasons),
    )
    rates = [
        Bar(_named(name), found.figures.bytes_per_second / 1e9,
            f"{gigabytes(found.figures.bytes_per_second)} GB/s")
        for name, found in device.operations.items()
    ]  # fmt: skip
    yield section(
        "Rates and times",
        bars(rates, title="bytes that arrived per second, by operation"),
        _rates(device),
        dim(
            "GB/s: 10^9 bytes that arrived, per second, median of the runs. of raw: this rate by "
            "that of the raw copy of the same bytes next to it."
        ),
    )
    yield section("Blocks and bytes of all runs", _blocks(device))
    spread = element("div", list(_histograms(device)), class_="many")
    yield section("How the times are spread", spread)


def _named(name: str) -> str:
    return name.replace("_", " ")


def _rates(device: DeviceBench) -> Markup:
    columns = ["runs", "per run", "GB/s", "of raw", "submit ms", "transfer ms", "p50 ms", "p90 ms",
               "p99 ms", "max ms"]  # fmt: skip
    rows = []
    for name, operation in device.operations.items():
        one = operation.figures
        rows.append(
            [
                _named(name),
                str(one.runs),
                format_nbytes(one.nbytes_per_run),
                gigabytes(one.bytes_per_second),
                percent(one.ceiling_share),
                milliseconds(one.submit_seconds_p50),
                milliseconds(one.transfer_seconds_p50),
                milliseconds(one.seconds_p50),
                milliseconds(one.seconds_p90),
                milliseconds(one.seconds_p99),
                milliseconds(one.seconds_max),
            ]
        )
    return table(["operation", *columns], rows, right=columns)


def _blocks(device: DeviceBench) -> Markup:
    columns = ["requested", "moved", "missed", "failed", "bytes moved"]
    rows = []
    for name, operation in device.operations.items():
        one = operation.figures
        counts = (one.requested_blocks, one.moved_blocks, one.missed_blocks, one.failed_blocks)
        rows.append([_named(name), *map(str, counts), exact(one.nbytes)])
    return table(["operation", *columns], rows, right=columns)


def _histograms(device: DeviceBench) -> Iterator[Markup]:
    for name, operation in device.operations.items():
        seconds = [run.seconds for run in operation.runs]
        if len(seconds) >= _FEWEST:
            low, high = duration(min(seconds)), duration(max(seconds))
            picture = histogram(seconds, title=f"times of {_named(name)}", low=low, high=high)
            yield element("div", element("h3", _named(name)), picture)


def _verified(device: DeviceBench) -> Markup:
    found = device.verification
    if found is None:
        text = "UNVERIFIED: no loaded byte was compared (--no-verify)"
        return element("div", text, class_="banner FAIL")
    if found.wrong_blocks:
        text = f"WRONG: {found.wrong_blocks} of {found.verified_blocks} loaded blocks differ"
        first = f"; {found.first_wrong}" if found.first_wrong else ""
        return element("div", text + first, class_="banner FAIL")
    text = f"Verified: {found.verified_blocks} loaded blocks hold what was saved, byte by byte"
    return element("div", text, class_="banner PASS" if found.verified_blocks else "banner WARN")
