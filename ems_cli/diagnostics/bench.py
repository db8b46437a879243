"""What a benchmark of saves and loads found: raw times are kept, all else is derived."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from ems_cli.diagnostics.measure import BUSY_SHARE, FEW_SAMPLES, percentile
from ems_cli.diagnostics.shape import ShapeSummary

MEMCPY, RAW_OUT, RAW_IN = "memcpy", "raw_copy_out", "raw_copy_in"
SAVE, LOAD, ASYNC_SAVE, ASYNC_LOAD = "save", "load", "async_save", "async_load"
OPERATIONS = (MEMCPY, RAW_OUT, RAW_IN, SAVE, LOAD, ASYNC_SAVE, ASYNC_LOAD)
CEILINGS: Mapping[str, str] = {
    SAVE: RAW_OUT,
    LOAD: RAW_IN,
    ASYNC_SAVE: RAW_OUT,
    ASYNC_LOAD: RAW_IN,
}
"""What each operation of the library is compared with."""

Ended = Literal["complete", "interrupted", "failed"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What is measured, and how often."""

    blocks_per_call: int
    in_flight: int
    """Calls of one run: one after another when they wait, all at once when they do not."""
    miss_ratio: float
    """Share of each load's blocks, its last ones, that were never saved."""
    sequential: bool
    """Blocks that follow each other in memory, instead of random ones."""
    verify: bool
    runs: int | None
    """None: enough for the percentiles, within some seconds."""
    pool: str | None
    """URL; None: a pool in this process, just large enough."""
    seed: int = 0

    @property
    def hits_per_call(self) -> int:
        """Blocks of each load that were saved."""
        return self.blocks_per_call - round(self.blocks_per_call * self.miss_ratio)


@dataclass(frozen=True, slots=True)
class Run:
    """One timed run of one operation; raw values."""

    seconds: float
    """From the first call until all bytes have arrived."""
    submit_seconds: float | None
    """Of it, on the caller's thread until the calls had returned; None for waiting calls."""
    requested_blocks: int
    moved_blocks: int
    missed_blocks: int
    failed_blocks: int
    nbytes: int
    """Bytes that have really arrived."""
    ceiling_bytes_per_second: float | None = None
    """Of the raw copy next to this run."""

    @property
    def bytes_per_second(self) -> float:
        """Bytes that arrived in a second."""
        return self.nbytes / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Figures:
    """Derived from the runs, warm-up left out."""

    runs: int
    requested_blocks: int
    moved_blocks: int
    missed_blocks: int
    failed_blocks: int
    nbytes: int
    nbytes_per_run: int
    seconds_p50: float
    seconds_p90: float
    seconds_p99: float
    seconds_max: float
    seconds_mean: float
    submit_seconds_p50: float | None
    transfer_seconds_p50: float | None
    """From the last call's return to the end."""
    bytes_per_second: float
    """Median over the runs."""
    ceiling_share: float | None
    """Median over the runs of this rate by that of the raw copy next to it."""


@dataclass(frozen=True, slots=True)
class Operation:
    """All runs of one operation."""

    cold: tuple[Run, ...]
    """The warm-up: first touches of memory, counted nowhere else."""
    runs: tuple[Run, ...]
    figures: Figures


@dataclass(frozen=True, slots=True)
class SpanFacts:
    """The copies that one run is made of."""

    spans: int
    smallest_nbytes: int
    median_nbytes: int
    largest_nbytes: int


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether loaded blocks hold what was saved, byte by byte, in all layers and planes."""

    verified_blocks: int
    wrong_blocks: int
    first_wrong: str | None


@dataclass(frozen=True, slots=True)
class DeviceBench:
    """What was measured on one NPU."""

    device: str
    device_name: str
    shape: ShapeSummary
    registration_seconds: float
    pool_capacity_nbytes: int
    span_facts: SpanFacts
    operations: Mapping[str, Operation]
    verification: Verification | None
    """None: nothing was verified."""
    others_cpu_share: float | None
    """Share of the host's processors that other processes used meanwhile."""
    labels: tuple[str, ...]
    reasons: tuple[str, ...]
    """Why figures are low or doubtful, in sentences."""


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Everything `ems-cli bench` measured."""

    simulated: bool
    labels: tuple[str, ...]
    ended: Ended
    failure: str | None
    verified: bool
    """Every loaded block of every measured run was compared, and none was wrong."""
    versions: Mapping[str, str]
    processors: int
    settings: Settings
    devices: tuple[DeviceBench, ...]

    @property
    def has_problem(self) -> bool:
        """Whether bytes were wrong, or blocks failed."""
        return any(
            (device.verification is not None and device.verification.wrong_blocks)
            or any(operation.figures.failed_blocks for operation in device.operations.values())
            for device in self.devices
        )


def operation_of(cold: Sequence[Run], runs: Sequence[Run]) -> Operation:
    """Return an operation with its figures; there is at least one run."""
    return Operation(tuple(cold), tuple(runs), figures_of(runs))


def figures_of(runs: Sequence[Run]) -> Figures:
    """Return the figures of at least one run."""
    seconds = [run.seconds for run in runs]
    submits = [run.submit_seconds for run in runs if run.submit_seconds is not None]
    transfers = [run.seconds - run.submit_seconds for run in runs if run.submit_seconds is not None]
    shares = [
        run.bytes_per_second / run.ceiling_bytes_per_second
        for run in runs
        if run.ceiling_bytes_per_second
    ]
    nbytes = sum(run.nbytes for run in runs)
    return Figures(
        runs=len(runs),
        requested_blocks=sum(run.requested_blocks for run in runs),
        moved_blocks=sum(run.moved_blocks for run in runs),
        missed_blocks=sum(run.missed_blocks for run in runs),
        failed_blocks=sum(run.failed_blocks for run in runs),
        nbytes=nbytes,
        nbytes_per_run=nbytes // len(runs),
        seconds_p50=percentile(seconds, 50),
        seconds_p90=percentile(seconds, 90),
        seconds_p99=percentile(seconds, 99),
        seconds_max=max(seconds),
        seconds_mean=sum(seconds) / len(seconds),
        submit_seconds_p50=percentile(submits, 50) if submits else None,
        transfer_seconds_p50=percentile(transfers, 50) if transfers else None,
        bytes_per_second=median(run.bytes_per_second for run in runs),
        ceiling_share=median(shares) if shares else None,
    )


def labels_of(
    *, simulated: bool, verified: bool, runs: int, others_cpu_share: float | None
) -> tuple[str, ...]:
    """Return what must stand beside every figure."""
    labels = {
        "SIMULATED": simulated,
        "UNVERIFIED": not verified,
        "TOO FEW SAMPLES": runs < FEW_SAMPLES,
        "HOST BUSY": others_cpu_share is not None and others_cpu_share > BUSY_SHARE,
    }
    return tuple(label for label, holds in labels.items() if holds)
