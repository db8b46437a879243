"""One thing that was looked at: what was found, what should be, and what to do."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Verdict(enum.Enum):
    """How a check ended."""

    PASS = "PASS"  # noqa: S105 - a verdict, no password
    WARN = "WARN"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Check:
    """One check of a diagnosis."""

    name: str
    verdict: Verdict
    found: str
    wanted: str
    """The threshold."""
    fix: str = ""
    """What to do about it; empty when it passed."""


def passed(name: str, found: str, wanted: str) -> Check:
    """Return a check that found what it wanted."""
    return Check(name, Verdict.PASS, found, wanted)


def worst(checks: Iterable[Check]) -> Verdict:
    """Return the worst verdict among `checks`; PASS for none."""
    order = list(Verdict)
    return max((check.verdict for check in checks), key=order.index, default=Verdict.PASS)
