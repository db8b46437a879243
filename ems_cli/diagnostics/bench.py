"""What a benchmark of saves and loads found: raw times are kept, all else is derived."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from ems_cli.diagnostics.bench_compare import Comparison
from ems_cli.diagnostics.bench_settings import Settings
from ems_cli.diagnostics.host_noise import HostNoise
from ems_cli.diagnostics.machine import Machine
from ems_cli.diagnostics.shape import ShapeSummary

MEMCPY, RAW_OUT, RAW_IN = "memcpy", "raw_copy_out", "raw_copy_in"
RAW_OUT_TWO, RAW_IN_TWO = "raw_copy_out_two_streams", "raw_copy_in_two_streams"
RAW_BOTH = "raw_copy_both_ways"
SAVE, LOAD, ASYNC_SAVE, ASYNC_LOAD = "save", "load", "async_save", "async_load"
BOTH = "save_and_load"
LIBRARY: Final = (SAVE, LOAD, ASYNC_SAVE, ASYNC_LOAD, BOTH)
"""What goes through the library; BOTH is a save and a load at once, half of the blocks each."""
OPERATIONS: Final = (
    MEMCPY,
    RAW_OUT,
    RAW_OUT_TWO,
    RAW_IN,
    RAW_IN_TWO,
    RAW_BOTH,
    *LIBRARY,
)

Ended = Literal["complete", "interrupted", "failed"]
Ceiling = Literal["one stream", "two streams"]


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
    """Of the raw copy next to this run, in one call on one stream."""
    two_streams_bytes_per_second: float | None = None
    """Of the raw copy next to this run, in two calls on two streams."""
    call_seconds: float | None = None
    """Sum over the calls, from submission to the end, as the library itself noted them."""
    phases: Mapping[str, float] = field(default_factory=dict)
    """Seconds of `call_seconds`, by phase: wait for the caller's work and earlier calls; plan; pool
    (reserve or acquire); start a copy; copy, which is all the time in which bytes move, whatever
    else is done meanwhile; commit (or release); result."""

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
    seconds_p50_low: float | None
    """The true median lies above this in 95 of 100 cases, and below `seconds_p50_high`."""
    seconds_p50_high: float | None
    tight: bool
    """Whether half of that interval is within 3 % of the median."""
    seconds_p90: float
    seconds_p99: float
    seconds_max: float
    seconds_mean: float
    submit_seconds_p50: float | None
    transfer_seconds_p50: float | None
    """From the last call's return to the end."""
    bytes_per_second: float
    """Median over the runs."""
    ceiling: Ceiling | None
    """Which raw copy in this direction is the ceiling: the one with the higher median."""
    ceiling_share: float | None
    """Median over the runs of this rate by that of the ceiling next to it."""
    one_stream_share: float | None
    two_streams_share: float | None
    phase_shares: Mapping[str, float]
    """Of the time of the library's calls, all runs together; "other" is the rest."""


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
    """The first `register_kvcache` of the process on this NPU."""
    registration_again_seconds: float
    """An equal one after it; median of three."""
    pinned_nbytes: int
    pinning_seconds: float
    """Taking so much pinned memory from the host, for the raw copies."""
    pool_capacity_nbytes: int
    span_facts: SpanFacts
    operations: Mapping[str, Operation]
    both_ways_gain: float | None
    """Rate of a save and a load at once by the mean of the rates of one alone."""
    verification: Verification | None
    """None: nothing was verified."""
    others_cpu_share: float | None
    """Share of the host's processors that other processes used meanwhile."""
    labels: tuple[str, ...]
    reasons: tuple[str, ...]
    """Why figures are low or doubtful, in sentences."""


@dataclass(frozen=True, slots=True)
class Together:
    """All NPUs at once against each alone, in turns; asynchronous saves, then loads."""

    devices: tuple[str, ...]
    nbytes_per_device: int
    """Saved and loaded by each NPU in one round: both directions added up."""
    alone_seconds: tuple[tuple[float, ...], ...]
    """By device and round; raw values."""
    together_seconds: tuple[float, ...]
    """By round, until the last NPU had finished; raw values."""
    alone_bytes_per_second: tuple[float, ...]
    """Medians by device."""
    together_bytes_per_second: float
    scaling: float
    """The rate together by the sum of the rates alone; 1 when they do not disturb each other."""


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
    machine: Machine
    noise: HostNoise | None
    """The host before the benchmark."""
    settings: Settings
    devices: tuple[DeviceBench, ...]
    together: Together | None = None
    comparison: Comparison | None = None
    """With an earlier report, if one was given."""

    @property
    def has_problem(self) -> bool:
        """Whether bytes were wrong, blocks failed, or something has become slower."""
        return (self.comparison is not None and self.comparison.regressed) or any(
            (device.verification is not None and device.verification.wrong_blocks)
            or any(operation.figures.failed_blocks for operation in device.operations.values())
            for device in self.devices
        )
