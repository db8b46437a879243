"""Files that describe a cache: what `register --json` wrote, or a process left of itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ems.telemetry.run_dir import LiveDescription, descriptions
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.process_figures import ProcessFigures, process_figures
from ems_cli.diagnostics.typed import check_types, of_this_version

_MOST_NBYTES: Final = 64 << 20
_FILE: Final = "FILE"

Kind = Literal["process", "registration"]


@dataclass(frozen=True, slots=True)
class Document:
    """A description and where it came from."""

    name: str
    kind: Kind
    content: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SavedTensors:
    """Tensors that look alike, in a saved registration."""

    name: str
    layers: str
    tensors: int
    shape: tuple[int, ...]
    dtype: str
    npu_format: str


@dataclass(frozen=True, slots=True)
class SavedCheck:
    """A check that did not pass when the registration was saved."""

    name: str
    verdict: str
    found: str
    fix: str


@dataclass(frozen=True, slots=True)
class SavedDevice:
    """One NPU of a saved registration."""

    device: str
    device_name: str
    kvcache_type: str
    layers: int
    num_blocks: int
    block_size: int
    token_nbytes: int
    nbytes: int
    tensors: tuple[SavedTensors, ...]
    checks: int
    not_passed: tuple[SavedCheck, ...]
    refusal: str | None


@dataclass(frozen=True, slots=True)
class SavedReport:
    """Everything `ems-cli inspect FILE` shows."""

    file: str
    kind: Kind
    simulated: bool | None
    verdict: str | None
    versions: Mapping[str, str | None]
    process: ProcessFigures | None
    devices: tuple[SavedDevice, ...]


def read_document(name: str, run_dir: Path) -> Document:
    """Return the description in the file `name`, or of the process with that pid.

    Raises:
        BadInput: there is neither, or the file holds something else.
    """
    path = Path(name)
    if not path.exists() and name.isascii() and name.isdigit():
        return Document(f"pid {name}", "process", _of_pid(int(name), run_dir).content)
    content = _read(path)
    if isinstance(content, dict):
        if {"pid", "namespace", "counters"} <= content.keys():
            return Document(name, "process", content)
        if isinstance(content.get("devices"), list) and "verdict" in content:
            return Document(name, "registration", content)
    raise BadInput(
        f"{name} is neither a report of ems-cli register nor the description of a process",
        option=_FILE,
    )


def saved_report(document: Document, now: float) -> SavedReport:
    """Return what is in a file.

    Raises:
        BadInput: it lacks what this version writes.
    """
    content = document.content
    with of_this_version(document.name, option=_FILE):
        if document.kind == "process":
            process = process_figures(content, file=Path(document.name), state="saved", now=now)
            return SavedReport(document.name, "process", None, None, process.packages, process, ())
        devices = tuple(_device(device) for device in content["devices"])
        report = SavedReport(
            document.name,
            "registration",
            bool(content["simulated"]),
            str(content["verdict"]),
            dict(content["versions"]),
            None,
            devices,
        )
        check_types(report)
        return report


def _of_pid(pid: int, run_dir: Path) -> LiveDescription:
    for found in descriptions(run_dir):
        if found.content["pid"] == pid:
            return found
    raise BadInput(
        f"no file {str(pid)!r}, and no process of that pid has left a description in {run_dir}",
        option=_FILE,
    )


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > _MOST_NBYTES:
            raise BadInput(f"{path} is too large for a description", option=_FILE)
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", option=_FILE) from error
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is no JSON: {error}", option=_FILE) from error


def _device(device: Mapping[str, Any]) -> SavedDevice:
    shape, checks = device["shape"], device["checks"]
    return SavedDevice(
        device["device"],
        device["device_name"],
        shape["kvcache_type"],
        shape["num_layers"],
        shape["num_blocks"],
        shape["block_size"],
        shape["token_nbytes"],
        shape["nbytes"],
        tuple(
            SavedTensors(
                layout["name"],
                layout["layers"],
                layout["tensors"],
                tuple(layout["shape"]),
                layout["dtype"],
                layout["npu_format"],
            )
            for layout in device["layouts"]
        ),
        len(checks),
        tuple(
            SavedCheck(check["name"], check["verdict"], check["found"], check["fix"])
            for check in checks
            if check["verdict"] != "PASS"
        ),
        device["refusal"],
    )
