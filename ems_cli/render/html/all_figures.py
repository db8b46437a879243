"""Every field of a report, as tables: whatever the JSON says is on the page, too."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ems.common.units import format_nbytes
from ems_cli.render.as_json import plain
from ems_cli.render.html.markup import Child, Markup, element
from ems_cli.render.html.page import pairs, section, table

_SHORT: Final = 6
"""Rows of a table, or fields, that are shown without being asked for."""


def all_figures(report: Any) -> Markup:
    """Return the section with all that the JSON of a report holds."""
    return section("All figures", list(_fields(plain(report))))


def _fields(fields: Mapping[str, Any]) -> Iterator[Markup]:
    simple = {name: value for name, value in fields.items() if _is_simple(value)}
    if simple:
        yield pairs((_named(name), _shown(name, value)) for name, value in simple.items())
    for name, value in fields.items():
        if name not in simple and value:
            yield _folded(name, value)


def _folded(name: str, value: Any) -> Markup:
    inner: Child
    if isinstance(value, Mapping):
        inner = list(_fields(value))
        count = len(value)
    else:
        inner = list(_items(name, value))
        count = len(value)
    summary = element("summary", f"{_named(name)} ({count})")
    return element("details", summary, inner)


def _items(name: str, items: Sequence[Any]) -> Iterator[Markup]:
    if not all(isinstance(item, Mapping) for item in items):
        yield table(["", _named(name)], [[str(at), _shown(name, each)]
                                         for at, each in enumerate(items)])  # fmt: skip
        return
    rows = [dict(_flat(item)) for item in items]
    if all(_is_simple(value) for row in rows for value in row.values()):
        columns = list(dict.fromkeys(key for row in rows for key in row))
        yield table(
            [_named(column) for column in columns],
            [[_shown(column, row.get(column)) for column in columns] for row in rows],
        )
        return
    for at, item in enumerate(items):
        title = next((str(item[key]) for key in _TITLES if item.get(key) is not None), str(at))
        yield element("details", element("summary", title), list(_fields(item)))


def _flat(item: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a row, and those one level below, which is most of a raw run."""
    for name, value in item.items():
        if isinstance(value, Mapping):
            yield from ((f"{name} {inner}", each) for inner, each in value.items())
        else:
            yield name, value


_TITLES: Final = ("device", "label", "name", "layer")


def _is_simple(value: Any) -> bool:
    if isinstance(value, list):
        return len(value) <= _SHORT and all(not isinstance(item, (list, dict)) for item in value)
    return not isinstance(value, (list, dict)) or not value


def _named(name: str) -> str:
    return name.replace("_", " ")


def _shown(name: str, value: Any) -> str:
    """Return a value as the JSON has it, and in a readable unit."""
    if value is None or isinstance(value, str):
        return value or "–"
    if isinstance(value, (list, dict)):
        return ", ".join(_shown(name, item) for item in value) or "–"
    exact = json.dumps(value)
    return exact if isinstance(value, bool) else exact + _unit(name, value)


def _unit(name: str, value: float) -> str:
    """Return the unit that a field's name tells, and the value in a readable one."""
    if name.endswith("nbytes"):
        return " B" if value < _KIB else f" B ({format_nbytes(round(value))})"
    if name.endswith("bytes_per_second"):
        return f" B/s ({value / 1e9:.3g} GB/s)"
    if name.endswith("seconds") or "seconds_" in name:
        return " s"
    return f" ({value:#x})" if name in _ADDRESSES and isinstance(value, int) else ""


_KIB: Final = 1024
_ADDRESSES: Final = {"address", "end", "start"}
