"""Values that come from a file, held against the types of the dataclass that they fill."""

import types
from collections.abc import Generator, Hashable, Mapping
from contextlib import contextmanager
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Final, Literal, Union, cast, get_args, get_origin, get_type_hints

from ems.common.exception import shown
from ems_cli.diagnostics.bad_input import BadInput

UNREADABLE: Final = (
    *(KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError),
    RecursionError,
)
"""What reading a document of another version, or a damaged one, may raise."""

_LIMIT: Final = 1 << 63


@contextmanager
def of_this_version(name: str, *, option: str) -> Generator[None, None, None]:
    """Turn whatever a document lacks into the error that blames its file.

    Raises:
        BadInput: the block raised one of `UNREADABLE`.
    """
    try:
        yield
    except BadInput:
        raise
    except UNREADABLE as error:
        raise BadInput(f"{name} is of another version of ems: {error!r:.80}", option=option) from (
            error
        )


def check_types(report: Any) -> None:
    """Return if every field of a dataclass instance is what its annotation says.

    Integers fit into 64 bits and other numbers are finite: all that is worked out from them, is.

    Raises:
        TypeError: one is not; the field is named.
    """
    for name, hint in _hints_of(cast("Hashable", type(report))):
        value = getattr(report, name)
        if not _fits(value, hint):
            raise TypeError(f"{name} is {shown(value)}")


@cache
def _hints_of(kind: Hashable) -> tuple[tuple[str, Any], ...]:
    dataclass: Any = kind
    hints = get_type_hints(dataclass)
    return tuple((field.name, hints[field.name]) for field in fields(dataclass))


def _fits(value: Any, hint: Any) -> bool:
    origin, members = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, one) for one in members)
    if origin is Literal:
        return value in members
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(one, members[0]) for one in value)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(name, members[0]) and _fits(one, members[1]) for name, one in value.items()
        )
    return _is_one(value, hint)


def _is_one(value: Any, hint: Any) -> bool:
    if hint is Any:
        return True
    if is_dataclass(hint):
        if type(value) is not hint:
            return False
        check_types(value)
        return True
    if hint is int:
        return type(value) is int and -_LIMIT < value < _LIMIT
    if hint is float:
        return type(value) in (int, float) and abs(value) < _LIMIT  # nan is less than nothing
    return isinstance(value, type(None) if hint is None else hint)
