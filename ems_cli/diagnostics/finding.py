"""What a check of a machine found: the value, what it should be, and how to mend it."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Outcome(enum.Enum):
    """How a check of a machine ended."""

    PASS = "PASS"  # noqa: S105 - an outcome, no password
    WARN = "WARN"
    FAIL = "FAIL"
    SKIP = "SKIP"


@dataclass(frozen=True, slots=True)
class Finding:
    """One check."""

    name: str
    outcome: Outcome
    found: str
    wanted: str
    """The threshold; empty where the check was skipped."""
    fix: str
    """What to do, in one line; empty when there is nothing to mend."""


def passed(name: str, found: str, wanted: str) -> Finding:
    """Return a check that found what it wanted."""
    return Finding(name, Outcome.PASS, found, wanted, "")


def warned(name: str, found: str, wanted: str, fix: str) -> Finding:
    """Return a check of what works, but perhaps not as it should."""
    return Finding(name, Outcome.WARN, found, wanted, fix)


def failed(name: str, found: str, wanted: str, fix: str) -> Finding:
    """Return a check of what cannot work."""
    return Finding(name, Outcome.FAIL, found, wanted, fix)


def skipped(name: str, why: str) -> Finding:
    """Return a check that has nothing to look at."""
    return Finding(name, Outcome.SKIP, why, "", "")


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Return how many checks ended how."""
    outcomes = [finding.outcome for finding in findings]
    return {outcome.value: outcomes.count(outcome) for outcome in Outcome}
