"""JSON Schemas of reports, derived from the dataclasses that `as_json` writes."""

import ast
import collections.abc
import dataclasses
import enum
import inspect
import itertools
import textwrap
import types
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from ems_cli.render.as_json import SCHEMA, plain

_DRAFT: Final = "https://json-schema.org/draft/2020-12/schema"
_ERROR: Final = {
    "type": "object",
    "description": "What is written instead of a report when there is none.",
    "properties": {
        "schema": {"const": SCHEMA},
        "error": {
            "type": "object",
            "properties": {
                "code": {
                    "type": "string",
                    "description": "EMS_..., the code of the library; or USAGE, INTERRUPTED, BUG.",
                },
                "message": {"type": "string"},
            },
            "required": ["code", "message"],
            "additionalProperties": False,
        },
        "exit_code": {"type": "integer", "minimum": 1},
    },
    "required": ["schema", "error", "exit_code"],
    "additionalProperties": False,
}
_SIMPLE: Final = {
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    str: {"type": "string"},
    type(None): {"type": "null"},
}
_LISTS: Final = (tuple, list, set, frozenset, collections.abc.Sequence)
_MAPPINGS: Final = (dict, collections.abc.Mapping)


def schema_of(title: str, reports: Sequence[type]) -> dict[str, Any]:
    """Return the schema of a command's JSON: one of `reports`, or an error."""
    definitions: dict[str, Any] = {}
    roots = [_root(report, definitions) for report in reports]
    definitions["Error"] = _ERROR
    return {
        "$schema": _DRAFT,
        "title": title,
        "oneOf": [*roots, {"$ref": "#/$defs/Error"}],
        "$defs": definitions,
    }


def _root(report: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    made = _object(report, definitions)
    number = {"type": "integer", "description": "Grows when the fields' meaning changes."}
    made["properties"] = {"schema": number, **made["properties"]}
    made["required"] = list(dict.fromkeys(["schema", *made["required"]]))
    return {"title": report.__name__, **made}


def _of_dataclass(kind: Any, definitions: dict[str, Any]) -> dict[str, str]:
    name = kind.__name__
    reference = {"$ref": f"#/$defs/{name}"}
    if name in definitions:
        return reference
    definitions[name] = {}  # before its fields, which may be of the same kind
    definitions[name] = _object(kind, definitions)
    return reference


def _object(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    hints, notes = get_type_hints(kind), _field_notes(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    properties = {}
    for name in names:
        note = {"description": notes[name]} if name in notes else {}
        properties[name] = {**_of(hints[name], definitions), **note}
    text = _described(kind)
    return {
        "type": "object",
        **({"description": text} if text else {}),
        "properties": properties,
        "required": names,
        "additionalProperties": False,
    }


def _of(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of what `plain` makes of a value of this type."""
    if hint in _SIMPLE:
        return dict(_SIMPLE[hint])
    if hint is Any:
        return {}
    if dataclasses.is_dataclass(hint):
        return dict(_of_dataclass(hint, definitions))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return {"enum": [plain(member) for member in hint]}
    if isinstance(hint, type) and issubclass(hint, PurePath):
        return {"type": "string"}
    return _of_generic(hint, definitions)


def _of_generic(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin, arguments = get_origin(hint) or hint, get_args(hint)
    if origin is Literal:
        return {"enum": [plain(value) for value in arguments]}
    if origin in {Union, types.UnionType}:
        return {"anyOf": [_of(argument, definitions) for argument in arguments]}
    if origin in _MAPPINGS:
        values = _of(arguments[1], definitions) if arguments else {}
        return {"type": "object", "additionalProperties": values}
    if origin in _LISTS:
        if origin is tuple and arguments and arguments[-1] is not Ellipsis:
            items = [_of(argument, definitions) for argument in arguments]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        return {"type": "array", "items": _of(arguments[0], definitions) if arguments else {}}
    raise TypeError(f"{hint!r} has no form in JSON")


def _described(kind: type) -> str:
    """Return the docstring's first sentence or two, unless dataclass made it up."""
    text = inspect.getdoc(kind) or ""
    return "" if text.startswith(f"{kind.__name__}(") else _one_paragraph(text)


def _field_notes(kind: type) -> dict[str, str]:
    """Return the strings that stand below the fields of a class, and of those it is made from."""
    notes: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(base)))
        except (OSError, TypeError, SyntaxError):  # no source here: a schema without notes
            continue
        statement = tree.body[0]
        body = statement.body if isinstance(statement, ast.ClassDef) else []
        for field, note in itertools.pairwise(body):
            if (
                isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(note, ast.Expr)
                and isinstance(note.value, ast.Constant)
                and isinstance(note.value.value, str)
            ):
                notes[field.target.id] = _one_paragraph(inspect.cleandoc(note.value.value))
    return notes


def _one_paragraph(text: str) -> str:
    return " ".join(text.split("\n\n", 1)[0].split())
