"""Why a figure is low, or not to be trusted: sentences from the figures alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from ems.common.units import format_nbytes
from ems_cli.diagnostics.bench import (
    ASYNC_LOAD,
    ASYNC_SAVE,
    BOTH,
    LIBRARY,
    LOAD,
    MEMCPY,
    RAW_OUT,
    SAVE,
    Figures,
    Operation,
    SpanFacts,
)
from ems_cli.diagnostics.host_noise import BUSY_OVERRUN, HostNoise
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
    operations: Mapping[str, Operation],
    spans: SpanFacts,
    others_cpu_share: float | None,
    *,
    noise: HostNoise | None = None,
    given_runs: bool = False,
) -> tuple[str, ...]:
    """Return the likely reasons for what is low or doubtful, the strongest first.

    `given_runs` are those that the caller chose: no time allows more of them.
    """
    figures = {name: operation.figures for name, operation in operations.items()}
    if not figures:
        return ()
    low = {
        name: share
        for name in LIBRARY
        if name in figures
        and (share := figures[name].ceiling_share) is not None
        and share < LOW_SHARE
    }
    busy = noise is not None and noise.busy
    more = "more --runs tell more" if given_runs else "--seconds N allows more"
    found = [*_noise(noise), *_doubts(figures, others_cpu_share, busy=busy, more=more)]
    if low:
        worst = min(low, key=lambda name: low[name])
        reasons = list(_low(figures, spans, worst))
        found += reasons or [
            f"{_named([worst])} reaches {low[worst]:.0%} of the ceiling; no reason found"
        ]
    return (*found, *_ceiling(figures), *_host_bound(figures))


def _named(names: Sequence[str]) -> str:
    told = {BOTH: "both at once"}
    return ", ".join(told.get(name, name.replace("_", " ")) for name in names)


def _low(figures: Mapping[str, Figures], spans: SpanFacts, worst: str) -> Iterator[str]:
    share = f"{_named([worst])} reaches {figures[worst].ceiling_share:.0%} of the ceiling"
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
    waited = figures[worst].phase_shares.get("pool", 0.0)
    if waited > _SUBMIT_SHARE:
        yield f"{_named([worst])} spends {waited:.0%} of its calls in the pool, not copying"
    held = {
        name: figures[name].submit_seconds_p50 or 0.0
        for name in (ASYNC_SAVE, ASYNC_LOAD)
        if name in figures
    }
    shares = {name: seconds / figures[name].seconds_p50 for name, seconds in held.items()}
    long = [name for name, share in shares.items() if share > _SUBMIT_SHARE]
    if long:
        most = max(shares.values())
        yield (
            f"{_named(long)}: up to {most:.0%} of the time passes on the caller's thread, before "
            "anything moves"
        )


def _noise(noise: HostNoise | None) -> Iterator[str]:
    if noise is not None and noise.busy:
        share = noise.others_cpu_share
        found = [] if share is None else [f"others used {share:.0%} of the processors"]
        if noise.overrun_p99 > BUSY_OVERRUN:
            found.append(f"a spin of 1 ms took {noise.overrun_p99 * 1e3:.1f} ms longer at p99")
        yield f"the host was busy beforehand: {', '.join(found)}; repeat on a quiet one"


def _doubts(
    figures: Mapping[str, Figures], others_cpu_share: float | None, *, busy: bool, more: str
) -> Iterator[str]:
    if not busy and others_cpu_share is not None and others_cpu_share > BUSY_SHARE:
        yield (
            f"other processes used {others_cpu_share:.0%} of the processors meanwhile; "
            "repeat on a quiet host"
        )
    fewest = min(one.runs for one in figures.values())
    if fewest < FEW_SAMPLES:
        yield f"{fewest} runs say little of p90 and p99; --runs {FEW_SAMPLES} or more"
    loose = {
        name: (one.seconds_p50_high - one.seconds_p50_low) / 2 / one.seconds_p50
        for name, one in figures.items()
        if name in LIBRARY
        and not one.tight
        and one.seconds_p50_low is not None
        and one.seconds_p50_high is not None
    }
    if loose:
        name = max(loose, key=lambda name: loose[name])
        yield (
            f"not tight: the median of {_named([name])} is known to ±{loose[name]:.0%} "
            f"only after {figures[name].runs} runs; {more}"
        )
    above = [name for name, one in figures.items() if (one.ceiling_share or 0) > _ABOVE]
    if above:
        yield (
            f"{_named(above)} above the ceiling: the noise is larger than the difference, or the "
            "library overlaps what the raw copy does in turn"
        )
    wide = [
        name
        for name, one in figures.items()
        if name in LIBRARY and one.seconds_p90 > _WIDE * one.seconds_p50
    ]
    if wide:
        yield f"times vary much: p90 is over {_WIDE} × p50 in {_named(wide)}"


def _ceiling(figures: Mapping[str, Figures]) -> Iterator[str]:
    """Yield which raw copies are the ceiling."""
    told = {"one stream": "in one call", "two streams": "half on each of two streams"}
    found = {
        direction: told[ceiling]
        for direction, names in (("out", (SAVE, ASYNC_SAVE)), ("in", (LOAD, ASYNC_LOAD)))
        for name in names
        if name in figures and (ceiling := figures[name].ceiling) is not None
        if figures[name].two_streams_share is not None
    }
    if found:
        ways = ", ".join(f"{direction} {how}" for direction, how in found.items())
        yield (
            f"the raw copy is the faster of two: {ways}; the library, too, has two slices under way"
        )


def _host_bound(figures: Mapping[str, Figures]) -> Iterator[str]:
    if MEMCPY in figures and RAW_OUT in figures:
        share = figures[RAW_OUT].bytes_per_second / (figures[MEMCPY].bytes_per_second or 1.0)
        if share > _HOST_BOUND:
            yield f"the ceiling is the host's memory: raw copies reach {share:.0%} of its memcpy"
