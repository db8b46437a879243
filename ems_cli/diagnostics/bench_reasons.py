"""Why a figure is low, or not to be trusted: sentences from the figures alone."""

from collections.abc import Iterator, Mapping
from typing import Final

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import (
    ASYNC_LOAD,
    ASYNC_SAVE,
    CEILINGS,
    MEMCPY,
    RAW_OUT,
    Figures,
    Operation,
    SpanFacts,
)
from ems_cli.diagnostics.measure import BUSY_SHARE, FEW_SAMPLES

LOW_SHARE: Final = 0.9
"""Below this share of the ceiling a reason is looked for."""
_SMALL_SPAN = 64 << 10
_SHORT_RUN = 2e-3
_WIDE = 1.25
_ABOVE = 1.05
_SUBMIT_SHARE = 0.1
_HOST_BOUND = 0.8


def reasons_of(
    operations: Mapping[str, Operation], spans: SpanFacts, others_cpu_share: float | None
) -> tuple[str, ...]:
    """Return the likely reasons for what is low or doubtful, the strongest first."""
    figures = {name: operation.figures for name, operation in operations.items()}
    if not figures:
        return ()
    low = {
        name: share
        for name in CEILINGS
        if name in figures
        and (share := figures[name].ceiling_share) is not None
        and share < LOW_SHARE
    }
    found = [*_doubts(figures, others_cpu_share)]
    if low:
        worst = min(low, key=lambda name: low[name])
        reasons = list(_low(figures, spans, worst))
        found += reasons or [f"{worst} reaches {low[worst]:.0%} of the ceiling; no reason found"]
    return (*found, *_host_bound(figures))


def _low(figures: Mapping[str, Figures], spans: SpanFacts, worst: str) -> Iterator[str]:
    share = f"{worst} reaches {figures[worst].ceiling_share:.0%} of the ceiling"
    if spans.median_nbytes < _SMALL_SPAN:
        yield (
            f"{share}: spans of {format_nbytes(spans.median_nbytes)} are small, and each has a "
            "fixed cost; larger blocks make larger spans"
        )
    if figures[worst].seconds_p50 < _SHORT_RUN:
        yield (
            f"{share}: a run of {figures[worst].seconds_p50 * 1e3:.2f} ms is little more than the "
            "fixed cost of a call; more blocks per call spread it"
        )
    for name in (ASYNC_SAVE, ASYNC_LOAD):
        submit = figures[name].submit_seconds_p50 if name in figures else None
        if submit is not None and submit > _SUBMIT_SHARE * figures[name].seconds_p50:
            yield (
                f"{name} spends {submit / figures[name].seconds_p50:.0%} of its time on the "
                "caller's thread, before anything moves"
            )


def _doubts(figures: Mapping[str, Figures], others_cpu_share: float | None) -> Iterator[str]:
    if others_cpu_share is not None and others_cpu_share > BUSY_SHARE:
        yield (
            f"other processes used {others_cpu_share:.0%} of the processors meanwhile; "
            "repeat on a quiet host"
        )
    fewest = min(one.runs for one in figures.values())
    if fewest < FEW_SAMPLES:
        yield f"{fewest} runs say little of p90 and p99; --runs {FEW_SAMPLES} or more"
    above = [name for name, one in figures.items() if (one.ceiling_share or 0) > _ABOVE]
    if above:
        yield (
            f"{', '.join(above)} above the ceiling: the raw copy is one call on one stream, the "
            "library has two slices under way; or the noise is larger than the difference"
        )
    wide = [name for name, one in figures.items() if one.seconds_p90 > _WIDE * one.seconds_p50]
    if wide:
        yield f"times vary much: p90 is over {_WIDE} × p50 in {', '.join(wide)}"


def _host_bound(figures: Mapping[str, Figures]) -> Iterator[str]:
    if MEMCPY in figures and RAW_OUT in figures:
        share = figures[RAW_OUT].bytes_per_second / (figures[MEMCPY].bytes_per_second or 1.0)
        if share > _HOST_BOUND:
            yield f"the ceiling is the host's memory: raw copies reach {share:.0%} of its memcpy"
