"""What `ems-cli verify` found: the steps, and the first fault of each that failed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from ems_cli.diagnostics.check import Verdict
from ems_cli.diagnostics.shape import ShapeSummary
from ems_cli.diagnostics.verify_faults import Fault

Ended = Literal["complete", "interrupted"]


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """What is verified, and how often."""

    rounds: int
    seed: int
    """Decides everything that is chosen at random; the same one repeats a run."""
    pool: str | None
    """URL; None: one in this process, or in files where processes share it."""
    processes: int
    """Processes that load what others saved; 1: none but this one."""
    faults: bool
    """Whether copies are made slow, and made to fail."""


@dataclass(frozen=True, slots=True)
class StepReport:
    """How one step ended."""

    name: str
    round: int
    """Counted from 1."""
    where: str
    """The rank and its NPU, or the processes."""
    verdict: Verdict
    compared_elements: int
    compared_nbytes: int
    seconds: float
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class RankReport:
    """One rank that took part."""

    label: str
    device: str
    device_name: str
    shape: ShapeSummary


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """Everything `ems-cli verify` found."""

    simulated: bool
    labels: tuple[str, ...]
    ended: Ended
    verdict: Verdict
    settings: VerifySettings
    versions: Mapping[str, str]
    ranks: tuple[RankReport, ...]
    steps: tuple[StepReport, ...]
    passed_steps: int
    failed_steps: int
    compared_elements: int
    compared_nbytes: int
    notes: tuple[str, ...]
    """What was left out, and why."""
