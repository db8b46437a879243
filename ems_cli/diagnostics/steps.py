"""What a probe told before it ended, and how it ended."""

import json
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ems_cli.diagnostics.surroundings import Ran

_FEW_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps that a probe has done, in order."""

    steps: tuple[Mapping[str, Any], ...]
    ran: Ran

    @classmethod
    def of(cls, ran: Ran) -> "Steps":
        """Return what a probe told; lines that others wrote to its stdout are passed over."""
        steps = []
        for line in ran.out.splitlines():
            try:
                step = json.loads(line)
            except ValueError:
                continue
            if isinstance(step, dict) and "step" in step:
                steps.append(step)
        return cls(tuple(steps), ran)

    def facts(self, name: str) -> Mapping[str, Any] | None:
        """Return what a step told; None where it was not reached."""
        return next((step for step in self.steps if step["step"] == name), None)

    def all(self, name: str) -> list[Mapping[str, Any]]:
        """Return what all steps of that name told."""
        return [step for step in self.steps if step["step"] == name]

    def end(self) -> str:
        """Return how the probe ended, to follow a noun."""
        error = self.facts("error")
        if error is not None:
            return f"failed: {error['text']}"
        if self.ran.code is None:
            return "did not end and was killed"
        if self.ran.code < 0:
            return f"crashed: {_signal_name(-self.ran.code)}"
        last = " ".join(self.ran.err.split())[-_FEW_CHARACTERS:]
        return f"ended with code {self.ran.code}{': ' if last else ''}{last}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
