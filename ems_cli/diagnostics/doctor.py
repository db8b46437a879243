"""Whether this computer can run EMS: every check, in the order in which a fault shows."""

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any, Final, Literal

from ems.telemetry.run_dir import default_run_dir
from ems_cli.diagnostics import doctor_ems, doctor_host, doctor_npu, doctor_software
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.finding import Finding, Outcome, counts
from ems_cli.diagnostics.steps import Steps
from ems_cli.diagnostics.surroundings import Machine, locked_memory_limit

_PACKAGES: Final = ("ems", "torch", "torch_npu", "numpy", "typer", "rich")
_SIMULATED_NPUS: Final = 8


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """Everything `ems-cli doctor` found."""

    outcome: Outcome
    simulated: bool
    strict: bool
    ended: Literal["complete", "interrupted"]
    counts: Mapping[str, int]
    versions: Mapping[str, str | None]
    findings: tuple[Finding, ...]

    @property
    def healthy(self) -> bool:
        """Whether EMS can run here."""
        return self.outcome is not Outcome.FAIL


class Examination:
    """What checks look at; each is looked at when the first check asks for it."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.environment = machine.environment
        self.user = os.getuid()

    @cached_property
    def runtime(self) -> Steps:
        """Which CANN there is."""
        return Steps.of(self.machine.probe("runtime"))

    @property
    def cann(self) -> str | None:
        """One of real, simulated, absent and broken; None where even that is not known."""
        facts = self.runtime.facts("runtime")
        return None if facts is None else str(facts["state"])

    @cached_property
    def npu(self) -> Steps:
        """How far one comes towards the NPU."""
        # else torch loads torch_npu in its own import, and whose fault it was is not seen
        return Steps.of(self.machine.probe("npu", TORCH_DEVICE_BACKEND_AUTOLOAD="0"))

    @cached_property
    def pool(self) -> Steps:
        """How far an entry comes into the pool and out again."""
        return Steps.of(self.machine.probe("pool", TORCH_DEVICE_BACKEND_AUTOLOAD="0"))

    @cached_property
    def memory(self) -> dict[str, int]:
        """What /proc/meminfo tells."""
        return doctor_host.memory_info(self.machine)

    @cached_property
    def pool_nbytes(self) -> int:
        """Host memory that the pool of a process takes."""
        return doctor_ems.pool_nbytes(self.environment)

    @property
    def run_dir(self) -> Path:
        """Where processes leave their descriptions."""
        given = self.environment.get("EMS_RUN_DIR")
        return Path(given) if given else default_run_dir()

    @property
    def npus(self) -> list[int]:
        """Numbers of the NPUs, as far as that is known without asking CANN."""
        if self.cann in ("absent", "simulated"):
            text = self.environment.get("EMS_SIM_DEVICES", "")
            return list(range(int(text) if text.isdigit() else _SIMULATED_NPUS))
        return doctor_npu.npus_of_driver(self.machine)


def package_versions(names: Collection[str] = _PACKAGES) -> dict[str, str | None]:
    """Return the versions of installed packages; None for what is not installed."""
    found: dict[str, str | None] = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def _has_torch_npu() -> bool:
    return package_versions(["torch_npu"])["torch_npu"] is not None


_Check = Callable[[Examination], Finding]

CHECKS: Final[Mapping[str, _Check]] = {
    "python": lambda _: doctor_software.check_python(),
    "packages": lambda _: doctor_software.check_packages(package_versions(doctor_software.TESTED)),
    "cann": lambda on: doctor_software.check_cann(on.runtime),
    "driver": lambda on: doctor_npu.check_driver(on.machine, cann=on.cann),
    "torch": lambda on: doctor_software.check_import("torch", on.npu, before=None),
    "torch_npu": lambda on: doctor_software.check_import("torch_npu", on.npu, before="torch"),
    "autoload": lambda on: doctor_software.check_autoload(
        on.environment, cann=on.cann, has_torch_npu=_has_torch_npu()
    ),
    "visible-devices": lambda on: doctor_npu.check_visible_devices(
        on.environment.get("ASCEND_RT_VISIBLE_DEVICES"), on.npus
    ),
    "devices": lambda on: doctor_npu.check_devices(on.npu),
    "device-memory": lambda on: doctor_npu.check_device_memory(on.npu),
    "memory": lambda on: doctor_host.check_memory(on.memory, on.pool_nbytes),
    "container": lambda on: doctor_host.check_container(
        doctor_host.cgroup_memory(on.machine), on.pool_nbytes
    ),
    "shm": lambda on: doctor_host.check_shm(on.machine.root / "dev/shm"),
    "locked-memory": lambda on: doctor_host.check_locked_memory(
        locked_memory_limit(), on.pool_nbytes, cann=on.cann
    ),
    "huge-pages": lambda on: doctor_host.check_huge_pages(on.memory),
    "pool-url": lambda on: doctor_ems.check_pool_url(on.environment),
    "pool": lambda on: doctor_ems.check_pool(on.pool),
    "run-dir": lambda on: doctor_ems.check_run_dir(on.run_dir, on.user),
    "log-dir": lambda on: doctor_ems.check_log_dir(on.environment, on.user),
    "hash-seed": lambda on: doctor_software.check_hash_seed(on.environment),
    "task-queue": lambda on: doctor_software.check_task_queue(on.environment),
    "simulator": lambda on: doctor_ems.check_simulator(
        on.environment, cann=on.cann, said=lambda: on.npu.ran.err
    ),
}
"""Every check by its name."""


def chosen_checks(only: Collection[str], skip: Collection[str]) -> list[str]:
    """Return the names of the checks to make.

    Raises:
        BadInput: a name is none of a check, or none is left.
    """
    for option, names in (("--only", only), ("--skip", skip)):
        for name in names:
            if name not in CHECKS:
                raise BadInput(
                    f"{name!r} is no check; there are {', '.join(CHECKS)}", option=option
                )
    chosen = [name for name in CHECKS if (not only or name in only) and name not in skip]
    if not chosen:
        raise BadInput("no check is left", option="--skip")
    return chosen


def examine(
    machine: Machine,
    names: Collection[str],
    *,
    strict: bool = False,
    advance: Callable[[int], Any] = lambda _: None,
) -> DoctorReport:
    """Return what the checks `names` find on `machine`; with `strict` a warning is a failure."""
    examination = Examination(machine)
    findings = []
    ended: Literal["complete", "interrupted"] = "complete"
    try:
        for name in names:
            findings.append(CHECKS[name](examination))
            advance(1)
    except KeyboardInterrupt:
        ended = "interrupted"
    found = {finding.outcome for finding in findings}
    outcome = Outcome.PASS
    if Outcome.FAIL in found or (strict and Outcome.WARN in found):
        outcome = Outcome.FAIL
    elif Outcome.WARN in found:
        outcome = Outcome.WARN
    simulated = "runtime" in vars(examination) and examination.cann in ("absent", "simulated")
    return DoctorReport(
        outcome, simulated, strict, ended, counts(findings), package_versions(), tuple(findings)
    )
