"""What the suite's figures should be, and whether they are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from ems_cli.diagnostics.bench import (
    LOAD,
    RAW_BOTH,
    RAW_IN,
    RAW_OUT,
    SAVE,
    Operation,
)
from ems_cli.diagnostics.bench_figures import both_ways_gain
from ems_cli.diagnostics.submission import HeldTime
from ems_cli.diagnostics.suite_kinds import PoolName
from ems_cli.diagnostics.suite_models import ORDERED_AT
from ems_cli.diagnostics.suite_pools import LOAD_BY_HAND, SAVE_BY_HAND, PoolCase
from ems_cli.diagnostics.suite_small import SmallFigures

EXISTS_SECONDS: Final = 10e-3
POOL_FACTOR: Final = 1.02
LATENCY_SECONDS: Final = 150e-6
NOT_COPYING: Final = 0.05
BOTH_WAYS: Final = 1.6
GROWTH_NBYTES: Final = 8 << 20
BY_HAND: Final[Mapping[PoolName, float]] = {"lmdb": 0.85, "mooncake": 0.90}
"""Of the engine's own calls with the same values."""

Unit = Literal["share", "seconds", "nbytes", "factor", "rate"]


@dataclass(frozen=True, slots=True)
class Goal:
    """One figure beside its limit, both of this run."""

    name: str
    value: float
    unit: Unit
    limit: float | None
    """None: shown only."""
    at_least: bool
    """Whether the value must reach the limit, instead of staying below."""
    met: bool | None
    raw: float | None = None
    """What the raw copies of the same bytes made of it in this run; None: there is no such."""
    raw_unit: Unit = "factor"


def goal(  # noqa: PLR0913 - what a line of the report has
    name: str,
    value: float,
    unit: Unit,
    limit: float | None,
    *,
    at_least: bool,
    raw: float | None = None,
    raw_unit: Unit = "factor",
) -> Goal:
    """Return a figure with its verdict."""
    met = None if limit is None else (value >= limit if at_least else value <= limit)
    return Goal(name, value, unit, limit, at_least, met, raw, raw_unit)


_DIRECTIONS: Final = ((SAVE, RAW_OUT), (LOAD, RAW_IN))


def share_goals(
    name: str, operations: Mapping[str, Operation], least: float | None
) -> Iterator[Goal]:
    """Yield the shares of the raw copy in one call that waiting calls reach."""
    for operation, raw in _DIRECTIONS:
        share = operations[operation].figures.one_stream_share
        if share is not None:
            rate = operations[raw].figures.bytes_per_second if raw in operations else None
            what = f"{operation} of raw, {name}"
            yield goal(what, share, "share", least, at_least=True, raw=rate, raw_unit="rate")


def copying_goals(name: str, operations: Mapping[str, Operation]) -> Iterator[Goal]:
    """Yield the share of waiting calls, as their caller sees them, in which no byte moves."""
    for operation, _ in _DIRECTIONS:
        runs = [run for run in operations[operation].runs if "copy" in run.phases]
        if runs:
            share = median(1 - run.phases["copy"] / run.seconds for run in runs)
            what = f"{operation} not copying, {name}"
            yield goal(what, share, "share", NOT_COPYING, at_least=False)


def both_ways_goals(name: str, operations: Mapping[str, Operation]) -> Iterator[Goal]:
    """Yield the rate of both directions at once by that of one, beside that of raw copies."""
    gain = both_ways_gain(operations)
    if gain is None:
        return
    raw = None
    if {RAW_BOTH, RAW_OUT, RAW_IN} <= operations.keys():
        one = [operations[each].figures.bytes_per_second for each in (RAW_OUT, RAW_IN)]
        raw = operations[RAW_BOTH].figures.bytes_per_second / (sum(one) / 2)
    yield goal(f"both at once, {name}", gain, "factor", BOTH_WAYS, at_least=True, raw=raw)


def latency_goals(name: str, operations: Mapping[str, Operation]) -> Iterator[Goal]:
    """Yield what a call of one block takes beyond the raw copy of it."""
    for operation, raw in _DIRECTIONS:
        alone = operations[raw].figures.seconds_p50
        yield goal(
            f"{operation} - raw, 1 block, {name}",
            operations[operation].figures.seconds_p50 - alone,
            "seconds",
            LATENCY_SECONDS,
            at_least=False,
            raw=alone,
            raw_unit="seconds",
        )


def by_hand_goals(case: PoolCase) -> Iterator[Goal]:
    """Yield the shares of the engine's own calls that waiting calls reach."""
    for operation, by_hand, share in (
        (SAVE, SAVE_BY_HAND, case.save_by_hand_share),
        (LOAD, LOAD_BY_HAND, case.load_by_hand_share),
    ):
        if share is not None and case.blocks_per_call == ORDERED_AT:
            rate = case.operations[by_hand].figures.bytes_per_second
            yield goal(
                f"{case.pool} {operation}, {case.model}",
                share,
                "share",
                BY_HAND.get(case.pool),
                at_least=True,
                raw=rate,
                raw_unit="rate",
            )


def held_goals(times: Sequence[HeldTime]) -> Iterator[Goal]:
    """Yield how long callers are held."""
    for held in times:
        yield goal(held.name, held.seconds_p50, "seconds", held.goal_seconds, at_least=False)


def small_goals(small: SmallFigures) -> Iterator[Goal]:
    """Yield look-ups, room in the pool, and memory over many calls."""
    exists = small.exists_seconds_p50
    yield goal("exists of 10,000 hashes", exists, "seconds", EXISTS_SECONDS, at_least=False)
    factor = small.used_nbytes / small.stored_nbytes
    yield goal("room per byte stored", factor, "factor", POOL_FACTOR, at_least=False)
    if small.resident_before_nbytes is not None and small.resident_after_nbytes is not None:
        grown = small.resident_after_nbytes - small.resident_before_nbytes
        name = f"growth over {small.cycles} cycles"
        yield goal(name, grown, "nbytes", GROWTH_NBYTES, at_least=False)
