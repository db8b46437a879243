"""What the suite's figures should be, and whether they are."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from ems_cli.diagnostics.bench import LOAD, RAW_IN, RAW_OUT, SAVE, Operation
from ems_cli.diagnostics.submission import HeldTime
from ems_cli.diagnostics.suite_small import SmallFigures

EXISTS_SECONDS: Final = 10e-3
POOL_FACTOR: Final = 1.05
GROWTH_NBYTES: Final = 8 << 20

Unit = Literal["share", "seconds", "nbytes", "factor"]


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


def goal(name: str, value: float, unit: Unit, limit: float | None, *, at_least: bool) -> Goal:
    """Return a figure with its verdict."""
    met = None if limit is None else (value >= limit if at_least else value <= limit)
    return Goal(name, value, unit, limit, at_least, met)


def share_goals(
    name: str, operations: Mapping[str, Operation], least: float | None
) -> Iterator[Goal]:
    """Yield the shares of the raw copy in one call that waiting calls reach."""
    for operation in (SAVE, LOAD):
        share = operations[operation].figures.one_stream_share
        if share is not None:
            what = f"{operation} against raw copy, 64 blocks, {name}"
            yield goal(what, share, "share", least, at_least=True)


def latency_goals(name: str, operations: Mapping[str, Operation]) -> Iterator[Goal]:
    """Yield what a call of one block takes beyond the raw copy of it."""
    for operation, raw in ((SAVE, RAW_OUT), (LOAD, RAW_IN)):
        more = operations[operation].figures.seconds_p50 - operations[raw].figures.seconds_p50
        what = f"{operation} minus raw copy, 1 block, {name}"
        yield goal(what, more, "seconds", None, at_least=False)


def held_goals(times: Sequence[HeldTime]) -> Iterator[Goal]:
    """Yield how long callers are held."""
    for held in times:
        yield goal(held.name, held.seconds_p50, "seconds", held.goal_seconds, at_least=False)


def small_goals(small: SmallFigures) -> Iterator[Goal]:
    """Yield look-ups, room in the pool, and memory over many calls."""
    exists = small.exists_seconds_p50
    yield goal("exists of 10,000 hashes", exists, "seconds", EXISTS_SECONDS, at_least=False)
    factor = small.used_nbytes / small.stored_nbytes
    yield goal("bytes of the pool per byte stored", factor, "factor", POOL_FACTOR, at_least=False)
    if small.resident_before_nbytes is not None and small.resident_after_nbytes is not None:
        grown = small.resident_after_nbytes - small.resident_before_nbytes
        name = f"growth of the process over {small.cycles} cycles"
        yield goal(name, grown, "nbytes", GROWTH_NBYTES, at_least=False)
