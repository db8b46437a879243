"""Processes of this host that use the pool, as they describe themselves; none is touched."""

import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ems.telemetry.prometheus import prometheus_text
from ems.telemetry.run_dir import LiveDescription, descriptions
from ems_cli.diagnostics.process_figures import ProcessFigures, process_figures
from ems_cli.diagnostics.typed import UNREADABLE

_PROC: Final = Path("/proc")
_NO_SEED: Final = (
    "PYTHONHASHSEED is not set for pid {}: hashes made by Python's hash() then differ in every "
    "process"
)
_ELSEWHERE: Final = (
    "pid {} is of another host or container that shares this directory: whether it runs cannot be "
    "seen from here, and --prune leaves its file"
)

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class LiveReport:
    """Everything `ems-cli inspect` sees without an argument."""

    run_dir: str
    time: float
    """Seconds since 1970."""
    processes: tuple[ProcessFigures, ...]
    unreadable: tuple[str, ...]
    """Files that are descriptions, but not as this version writes them."""
    pruned: tuple[int, ...]
    """Dead processes whose files were removed just now."""
    notes: tuple[str, ...]


def live_report(
    run_dir: Path, *, pid: int | None = None, prune: bool = False, clock: Clock = time.time
) -> LiveReport:
    """Return what processes have left in `run_dir`; with `prune` the files of dead ones go."""
    now = clock()
    processes, unreadable, pruned = [], [], []
    for found in descriptions(run_dir):
        if pid is not None and found.content.get("pid") != pid:
            continue
        if prune and not found.alive and found.is_of_here:
            with suppress(FileNotFoundError):
                found.path.unlink()
            pruned.append(int(found.content["pid"]))
            continue
        figures = _figures(found, now)
        if figures is None:
            unreadable.append(str(found.path))
        else:
            processes.append(figures)
    return LiveReport(
        str(run_dir),
        now,
        tuple(processes),
        tuple(unreadable),
        tuple(pruned),
        (*notes_on(processes), *_out_of_sight(run_dir)),
    )


def _out_of_sight(run_dir: Path) -> Iterator[str]:
    """Yield why there may be more processes than those that are shown."""
    try:
        files = [path.lstat() for path in run_dir.iterdir() if path.suffix == ".json"]
    except FileNotFoundError:  # nobody has made it, or a file went meanwhile
        return
    except OSError as error:
        yield f"{run_dir} cannot be read: {error.strerror}"
        return
    owners = sorted({one.st_uid for one in files} - {os.getuid()})
    if owners:
        whose = ", ".join(map(str, owners))
        yield f"what user {whose} has left is not shown: ems-cli reads only what its own user wrote"


def notes_on(processes: Iterable[ProcessFigures]) -> tuple[str, ...]:
    """Return what holds for several processes, once."""
    known = list(processes)
    unset = [one.pid for one in known if one.state == "alive" and not one.python_hash_seed]
    far = [one.pid for one in known if one.state == "dead" and one.host != platform.node()]
    notes = ((_NO_SEED, unset), (_ELSEWHERE, far))
    return tuple(text.format(", ".join(map(str, pids))) for text, pids in notes if pids)


def prometheus_report(run_dir: Path, *, pid: int | None = None) -> str:
    """Return the counters of live processes in Prometheus' text format."""
    return prometheus_text(
        (_labels(found.content), found.content["counters"])
        for found in descriptions(run_dir)
        if found.alive and pid in (None, found.content["pid"]) and _figures(found, 0.0)
    )


def description_of(run_dir: Path, pid: int) -> dict[str, Any] | None:
    """Return what a process has left; None where it left nothing."""
    for found in descriptions(run_dir):
        if found.content["pid"] == pid:
            return found.content
    return None


def _figures(found: LiveDescription, now: float) -> ProcessFigures | None:
    try:
        return process_figures(
            found.content,
            file=found.path,
            state="alive" if found.alive else "dead",
            now=now,
            command=command_of(found.content["pid"]) if found.alive else None,
        )
    except UNREADABLE:
        return None


def command_of(pid: int, proc: Path = _PROC) -> str | None:
    """Return the program and script of a process; the other arguments may hold secrets."""
    try:
        words = (proc / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    program, *rest = words
    script = next((word for word in rest if word and not word.startswith("-")), "")
    if "-c" in rest[: rest.index(script) + 1 if script else None]:
        script = "-c …"
    shown = [os.path.basename(word) for word in (program, script) if word]  # noqa: PTH119 - no path
    return " ".join(shown)[:60] or None


def _labels(content: dict[str, Any]) -> dict[str, str]:
    return {
        "pid": str(content["pid"]),
        "rank": str(content["rank_id"]),
        "device": f"npu:{content['device_id']}",
        "model": str(content["namespace"]["model_id"]),
    }
