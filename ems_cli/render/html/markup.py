"""HTML and SVG made of elements: every text is escaped where it becomes part of one."""

import html
from collections.abc import Iterable
from typing import TypeAlias

from ems_cli.render.text import visible


class Markup(str):
    """Text that is markup already."""

    __slots__ = ()


Child: TypeAlias = "Markup | str | Iterable[Child]"


def element(tag: str, *children: Child, **attributes: str | float | None) -> Markup:
    """Return an element; an attribute of None is left out, `class_` is class, `_` becomes `-`."""
    named = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{html.escape(visible(_number(value)))}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{named}>{joined(children)}</{tag}>")


def joined(children: Iterable[Child]) -> Markup:
    """Return children one after the other; what is no markup is escaped."""
    parts = []
    for child in children:
        if isinstance(child, Markup):
            parts.append(str(child))
        elif isinstance(child, str):
            parts.append(html.escape(visible(child)))
        else:
            parts.append(str(joined(child)))
    return Markup("".join(parts))


def _number(value: str | float) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
