"""A file to attach to a bug report: the doctor's report, versions, environment, processes."""

import io
import json
import platform
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ems.common.secret import MASK, masked
from ems.telemetry.run_dir import descriptions
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.masking import is_secret, masked_deeply, without

_PREFIXES: Final = ("EMS_", "ASCEND_", "TORCH_", "PYTHON")
_OPTION: Final = "--bundle"


def check_name(path: Path) -> None:
    """Refuse a name that says no format, before anything is examined.

    Raises:
        BadInput: it ends in neither .tar.gz, .tgz nor .zip.
    """
    if not path.name.endswith((".tar.gz", ".tgz", ".zip")):
        raise BadInput(f"{path} must end in .tar.gz or .zip", option=_OPTION)


def bundle_files(report: Any, environment: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    """Return what goes into a bundle: texts by the names of their files, without secrets.

    `report` is made of JSON's types.
    """
    contents = {
        "report.json": report,
        "system.json": {
            "python": platform.python_version(),
            "system": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
        },
        "environment.json": shown_environment(environment),
        "processes.json": [
            {"alive": found.alive, **found.content} for found in descriptions(run_dir)
        ],
    }
    return {
        name: without(json.dumps(masked_deeply(content), indent=2) + "\n", environment)
        for name, content in contents.items()
    }


def shown_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that matter, without secrets."""
    return {
        name: MASK if is_secret(name) else masked(value)
        for name, value in sorted(environment.items())
        if name.startswith(_PREFIXES)
    }


def write_bundle(path: Path, files: Mapping[str, str]) -> None:
    """Write `files` into a new archive.

    Raises:
        BadInput: the file is there already, or cannot be written.
    """
    try:
        with path.open("xb") as file:
            if path.name.endswith(".zip"):
                with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                    for name, text in files.items():
                        archive.writestr(f"ems-bundle/{name}", text)
                return
            with tarfile.open(fileobj=file, mode="w:gz") as tar:
                for name, text in files.items():
                    content = text.encode()
                    member = tarfile.TarInfo(f"ems-bundle/{name}")
                    member.size = len(content)
                    member.mode = 0o600
                    tar.addfile(member, io.BytesIO(content))
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}", option=_OPTION) from error
