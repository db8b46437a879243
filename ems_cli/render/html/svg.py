"""Pictures as inline SVG: memory, bars and lines. Colours are those of the page's style."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from ems_cli.render.html.markup import Child, Markup, element

_WIDTH: Final = 900.0
_COLOURS: Final = 4
_CELLS_PER_LINE: Final = 64
_LINE: Final = 18.0
_LEFT: Final = 130.0
_BAR: Final = 20.0
_NAMES: Final = 240.0
_TOPS: Final = (0.02, 0.04, 0.08, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Ends of the axis of shares."""


def colour(number: int) -> str:
    """Return the colour of a plane or a line."""
    return f"var(--p{number % _COLOURS})"


def legend(entries: Sequence[tuple[str, str]]) -> Markup:
    """Return what colours stand for: pairs of a colour and a name."""
    return element(
        "p",
        [
            element("span", element("span", class_="key", style=f"background:{shade}"), name)
            for shade, name in entries
        ],
        class_="legend dim",
    )


def memory(cells: str, *, gap: str, start: int, cell_nbytes: int, title: str) -> Markup:
    """Return a stretch of memory, line by line: a digit per cell names its plane."""
    lines = [cells[at : at + _CELLS_PER_LINE] for at in range(0, len(cells), _CELLS_PER_LINE)]
    width = (_WIDTH - _LEFT) / _CELLS_PER_LINE
    drawn: list[Child] = []
    for number, line in enumerate(lines):
        top = number * _LINE
        address = start + number * _CELLS_PER_LINE * cell_nbytes
        drawn.append(element("text", f"{address:#x}", x=0, y=top + 12))
        at = 0
        for cell, run in groupby(line):
            length = len(list(run))
            fill = "var(--gap)" if cell == gap else colour(int(cell))
            drawn.append(
                element(
                    "rect",
                    x=_LEFT + at * width,
                    y=top + 2,
                    width=length * width - (0 if cell == gap else 0.6),
                    height=_LINE - 4,
                    fill=fill,
                )
            )
            at += length
    return _figure(title, len(lines) * _LINE, drawn)


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a chart."""

    name: str
    value: float
    text: str
    """What stands beside it, with its unit."""
    mark: float | None = None
    """A line across the bar: what it is compared with."""


def bars(rows: Sequence[Bar], *, title: str) -> Markup:
    """Return horizontal bars from zero."""
    most = max([row.value for row in rows] + [row.mark or 0.0 for row in rows], default=0.0) or 1.0
    room = _WIDTH - _NAMES - 130
    drawn: list[Child] = []
    for number, row in enumerate(rows):
        top = number * (_BAR + 6)
        length = row.value / most * room
        drawn += [
            element("text", row.name, x=_NAMES - 8, y=top + 14, text_anchor="end"),
            element("rect", x=_NAMES, y=top, width=max(length, 1.0), height=_BAR, rx=2,
                    fill="var(--bar)"),
            element("text", row.text, x=_NAMES + max(length, (row.mark or 0) / most * room) + 8,
                    y=top + 14, class_="strong"),
        ]  # fmt: skip
        if row.mark is not None:
            place = _NAMES + row.mark / most * room
            drawn.append(
                element("line", x1=place, x2=place, y1=top - 2, y2=top + _BAR + 2,
                        stroke="var(--text)", stroke_width=2)
            )  # fmt: skip
    return _figure(title, len(rows) * (_BAR + 6), drawn)


def histogram(
    values: Sequence[float], *, title: str, low: str, high: str, bins: int = 40
) -> Markup:
    """Return how values are spread; `low` and `high` are the ends of the axis, with their unit."""
    height, width = 90.0, 420.0
    first, last = min(values), max(values)
    step = (last - first) / bins or 1.0
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, int((value - first) / step))] += 1
    most = max(counts)
    cell = width / bins
    drawn: list[Child] = [
        element("rect", x=at * cell + 0.5, y=height - count / most * height,
                width=cell - 1, height=count / most * height, fill="var(--bar)")
        for at, count in enumerate(counts) if count
    ]  # fmt: skip
    drawn += [
        element("line", x1=0, x2=width, y1=height, y2=height, stroke="var(--dim)"),
        element("text", low, x=0, y=height + 14),
        element("text", high, x=width, y=height + 14, text_anchor="end"),
        element("text", f"at most {most} of {len(values)} runs", x=width / 2, y=height + 14,
                text_anchor="middle"),
    ]  # fmt: skip
    return _figure(title, height + 18, drawn, width=width)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: a share at each of the places on the axis."""

    name: str
    shares: Sequence[float]
    dashed: bool = False


def lines(places: Sequence[str], found: Sequence[Line], *, title: str) -> Markup:
    """Return shares, from nothing up, at places that stand evenly apart."""
    most = max(share for line in found for share in line.shares)
    top = next((end for end in _TOPS if most <= end), 1.0)
    height, left = 240.0, 60.0
    room = _WIDTH - left - 40
    step = room / max(1, len(places) - 1)
    drawn: list[Child] = []
    for quarter in range(5):
        y = height - quarter / 4 * height + 10
        drawn += [
            element("line", x1=left, x2=left + room, y1=y, y2=y, stroke="var(--line)"),
            element("text", f"{quarter * top * 25:.3g} %", x=left - 8, y=y + 4, text_anchor="end"),
        ]
    for at, place in enumerate(places):
        drawn.append(element("text", place, x=left + at * step, y=height + 30,
                             text_anchor="middle"))  # fmt: skip
    for number, line in enumerate(found):
        points = [
            (left + at * step, height - share / top * height + 10)
            for at, share in enumerate(line.shares)
        ]
        drawn.append(
            element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points),
                    fill="none", stroke=colour(number), stroke_width=2.5,
                    stroke_dasharray="6 4" if line.dashed else None)
        )  # fmt: skip
        drawn += [element("circle", cx=x, cy=y, r=3.2, fill=colour(number)) for x, y in points]
    keys = legend([(colour(number), line.name) for number, line in enumerate(found)])
    return element("div", keys, _figure(title, height + 36, drawn))


def _figure(title: str, height: float, drawn: Child, *, width: float = _WIDTH) -> Markup:
    picture = element(
        "svg",
        element("title", title),
        drawn,
        viewBox=f"0 -4 {width:g} {height + 8:g}",
        width=width,
        role="img",
        xmlns="http://www.w3.org/2000/svg",
    )
    return element("figure", picture)
