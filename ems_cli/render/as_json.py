"""Reports as JSON, from their own dataclass fields."""

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any, Final

SCHEMA: Final = 1
"""Schema number of a report that has no `schema` of its own, and of every error."""


def report_json(report: Any) -> str:
    """Return `report`, a dataclass instance, as one indented JSON object with `schema` first.

    Raises:
        TypeError: a field holds something that JSON has no form for.
    """
    fields = {"schema": getattr(report, "schema", SCHEMA), **plain(report)}
    # ASCII only, so that a pipe with any encoding takes it
    return json.dumps(fields, indent=2, allow_nan=False)


def error_json(code: str, message: str, *, exit_code: int) -> str:
    """Return a failure as JSON."""
    error = {"code": code, "message": message}
    return json.dumps({"schema": SCHEMA, "error": error, "exit_code": exit_code}, indent=2)


def plain(value: Any) -> Any:
    """Return `value` made of what JSON knows.

    An enum becomes its value if that is a text, else its name in small letters; a number that is
    not finite becomes null; NumPy's arrays and scalars become lists and numbers.

    Raises:
        TypeError: there is no such form for `value`, or two keys of a mapping become one.
    """
    if isinstance(value, enum.Enum):
        return value.value if isinstance(value.value, str) else value.name.lower()
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, PurePath):
        return str(value)
    if type(value).__module__.partition(".")[0] == "numpy":
        return plain(value.tolist())
    return _plain_container(value)


def _plain_container(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = (field.name for field in dataclasses.fields(value))
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        fields = {str(plain(key)): plain(item) for key, item in value.items()}
        if len(fields) < len(value):
            raise TypeError(f"two keys of {value!r} become one in JSON")
        return fields
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in sorted(value)]
    raise TypeError(f"{type(value).__name__} has no form in JSON")
