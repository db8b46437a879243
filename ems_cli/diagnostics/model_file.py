"""A model's configuration: read from a file, or one of a few that are known by name."""

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.model_presets import PRESETS

_MOST_NBYTES = 16 << 20


def model_config(model: str) -> tuple[Mapping[str, Any], str]:
    """Return the configuration that `model` means, and what to call it.

    A path that exists wins over a name; a folder stands for the `config.json` in it.

    Raises:
        BadInput: there is no such file and no such name, or the file cannot be read.
    """
    path = Path(model)
    try:
        path = path / "config.json" if path.is_dir() else path
        exists = path.exists()
    except (OSError, ValueError) as error:  # too long a name, a NUL in it
        raise BadInput(f"{model!r} is no path: {error}", option="--model") from error
    if exists:
        return _read(path), str(path)
    name = _name(model)
    if name in PRESETS:
        return PRESETS[name], f"built-in {name}"
    raise BadInput(_unknown(model, name), option="--model")


def _name(model: str) -> str:
    """Return the model's name without its owner; what is clearly a path stays whole."""
    owner, _, name = model.rpartition("/")
    return model if "/" in owner or owner in (".", "..", "~") else name.lower()


def _unknown(model: str, name: str) -> str:
    close = difflib.get_close_matches(name, PRESETS, n=1)
    meant = f"; did you mean {close[0]}?" if close else ""
    return f"no file {model!r}, and no model of that name among {', '.join(PRESETS)}{meant}"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MOST_NBYTES + 1)
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}", option="--model") from error
    if len(raw) > _MOST_NBYTES:
        raise BadInput(f"{path} is too large for a config.json", option="--model")
    config = _parsed(raw, path)
    if not isinstance(config, dict):
        raise BadInput(f"{path} holds no JSON object", option="--model")
    return config


def _parsed(raw: bytes, path: Path) -> Any:
    try:
        return json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise BadInput(f"{path} is no text: byte {error.start}", option="--model") from error
    except json.JSONDecodeError as error:
        raise BadInput(
            f"{path}, line {error.lineno}, column {error.colno}: {error.msg}", option="--model"
        ) from error
    except (RecursionError, ValueError) as error:  # too deep, or a number with too many digits
        raise BadInput(f"{path} is no JSON that can be read: {error}", option="--model") from error
