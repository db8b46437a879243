"""A command takes option groups: dataclasses whose fields become its options."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints

import typer

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.render.text import one_line


def with_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Let `command` take option groups: its parameter of a dataclass type becomes its fields.

    The wrapper has the signature that Typer reads; it builds the groups again for the call, and
    turns `BadInput` into the usage error it is.
    """
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, Any] = {name: hint for name, hint in hints.items() if is_dataclass(hint)}

    @functools.wraps(command)
    def call(**given: Any) -> None:
        for name, group in groups.items():
            given[name] = group(**{field.name: given.pop(field.name) for field in fields(group)})
        try:
            command(**given)
        except BadInput as error:
            place = f"\n{error.pointer}" if error.pointer else ""
            raise typer.BadParameter(
                one_line(str(error)) + place, param_hint=f"'{error.option}'"
            ) from error

    call.__signature__ = _flat_signature(command, hints)  # type: ignore[attr-defined]
    return call


def _flat_signature(command: Callable[..., None], hints: dict[str, Any]) -> inspect.Signature:
    flat: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        hint = hints[parameter.name]
        if is_dataclass(hint):
            flat += _parameters_of(hint)
        else:
            kept = parameter.replace(annotation=hint, kind=inspect.Parameter.KEYWORD_ONLY)
            flat.append(kept)
    return inspect.Signature(flat)


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=field.default,
            annotation=hints[field.name],
        )
        for field in fields(group)
    ]
