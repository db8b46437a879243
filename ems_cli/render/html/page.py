"""The page around a report: its head, its style, its labels and its verdict."""

from collections.abc import Iterable, Sequence
from typing import Final

from ems_cli.render.html.markup import Child, Markup, element

_STYLE: Final = """
:root { color-scheme: light dark; --ground: #f6f7f9; --card: #fff; --text: #1c2430;
  --dim: #5a6675; --line: #d9dee5; --good: #0b7a4b; --warn: #8a5a00; --bad: #b3261e;
  --good-ground: #e3f5ec; --warn-ground: #fdf1d7; --bad-ground: #fce8e6;
  --p0: #2f6fde; --p1: #e07b39; --p2: #2a9d8f; --p3: #9b5de5; --gap: #e3e7ec; --bar: #2f6fde; }
@media (prefers-color-scheme: dark) { :root { --ground: #11161d; --card: #19212b; --text: #e4e9f0;
  --dim: #98a5b5; --line: #2d3948; --good: #55d39a; --warn: #f0b95a; --bad: #ff8a80;
  --good-ground: #12372a; --warn-ground: #3d2f10; --bad-ground: #45201e;
  --p0: #6ea3ff; --p1: #f2a068; --p2: #58c9bb; --p3: #c19bff; --gap: #2b3542; --bar: #6ea3ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; }
main { max-width: 66rem; margin: 0 auto; padding: 1.5rem 1.25rem 3rem; }
header { display: flex; flex-wrap: wrap; align-items: center; gap: .6rem; margin-bottom: .4rem; }
h1 { font-size: 1.55rem; margin: 0; } h2 { font-size: 1.15rem; margin: 0 0 .7rem; }
h3 { font-size: .98rem; margin: 1.3rem 0 .4rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem;
  padding: 1.1rem 1.25rem; margin: 1rem 0; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .28rem .9rem .28rem 0; vertical-align: top;
  border-bottom: 1px solid var(--line); }
tbody > tr:last-child > * { border-bottom: 0; }
th { color: var(--dim); font-weight: 600; } td.number, th.number { text-align: right;
  white-space: nowrap; }
code, .code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: .86em; }
p { margin: .45rem 0; } .dim { color: var(--dim); } ul { margin: .4rem 0; padding-left: 1.2rem; }
.badge { display: inline-block; padding: .08rem .55rem; border-radius: 1rem; font-weight: 700;
  font-size: .78rem; letter-spacing: .02em; white-space: nowrap; border: 1px solid currentColor; }
.PASS { color: var(--good); background: var(--good-ground); }
.WARN, .label { color: var(--warn); background: var(--warn-ground); }
.FAIL { color: var(--bad); background: var(--bad-ground); }
.banner { border: 1px solid currentColor; border-radius: .5rem; padding: .55rem .9rem;
  margin: .8rem 0; font-weight: 600; }

.legend > span { margin-right: 1.1rem; } .badge + .badge { margin-left: .3rem; }
.many { display: grid; grid-template-columns: repeat(auto-fill, minmax(26rem, 1fr)); gap: 0 2rem; }
.key { display: inline-block; width: .8em; height: .8em;
  border-radius: 2px; margin-right: .4em; vertical-align: -.05em; }
svg { display: block; max-width: 100%; height: auto; } svg text { fill: var(--dim);
  font: 11px ui-monospace, "DejaVu Sans Mono", monospace; }
svg .strong { fill: var(--text); } figure { margin: .6rem 0; }
details { margin: .5rem 0; } summary { cursor: pointer; color: var(--dim); font-weight: 600; }
details details { margin-left: 1rem; }
@media print { :root { color-scheme: light; --ground: #fff; --card: #fff; --text: #000;
  --dim: #444; --line: #bbb; --good: #06603a; --warn: #6b4500; --bad: #8f1a14;
  --good-ground: #fff; --warn-ground: #fff; --bad-ground: #fff;
  --p0: #2f6fde; --p1: #e07b39; --p2: #2a9d8f; --p3: #9b5de5; --gap: #e3e7ec; --bar: #2f6fde; }
  * { -webkit-print-color-adjust: exact; print-color-adjust: exact; }
  body { font-size: 10.5pt; } main { max-width: none; padding: 0; }
  section { border-radius: 0; border-width: 1px 0 0; padding: .7rem 0; }
  tr, figure, .banner { break-inside: avoid; } h2, h3 { break-after: avoid; }
  table { font-size: 8.5pt; } .scroll { overflow: visible; }
  details:not([open]) { display: none; } }
"""


def page(
    title: str,
    *,
    labels: Iterable[str],
    verdict: str | None,
    versions: Iterable[tuple[str, str]],
    body: Iterable[Child],
) -> str:
    """Return a whole document that needs nothing from elsewhere."""
    shown = list(labels)
    head = element(
        "head",
        Markup('<meta charset="utf-8">'),
        Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
        # a report needs nothing from elsewhere, and what is in it can ask for nothing
        Markup(
            '<meta http-equiv="Content-Security-Policy" '
            "content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        ),
        element("title", title),
        Markup(f"<style>{_STYLE}</style>"),
    )
    top = element(
        "header",
        element("h1", title),
        [] if verdict is None else badge(verdict),
        [element("span", label, class_="badge label") for label in shown],
    )
    versioned = ", ".join(f"{name} {version}" for name, version in versions)
    simulated = element(
        "div",
        "SIMULATED: there was no NPU. No figure on this page says anything about hardware.",
        class_="banner label",
    )
    main = element(
        "main",
        top,
        element("p", versioned, class_="dim"),
        simulated if "SIMULATED" in shown else [],
        body,
    )
    return f'<!DOCTYPE html>\n<html lang="en">{head}{element("body", main)}</html>\n'


def badge(verdict: str) -> Markup:
    """Return a verdict as a coloured badge."""
    return element("span", verdict, class_=f"badge {verdict}")


def section(title: Child, *children: Child) -> Markup:
    """Return a card of the page."""
    return element("section", element("h2", title), *children)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Child]], *, right: Iterable[str] = ()
) -> Markup:
    """Return a table; the columns named in `right` hold numbers."""
    numbers = set(right)
    classes = ["number" if column in numbers else None for column in columns]
    head = [element("th", name, class_=kind) for name, kind in zip(columns, classes, strict=True)]
    body = [
        element(
            "tr",
            [element("td", cell, class_=kind) for cell, kind in zip(row, classes, strict=True)],
        )
        for row in rows
    ]
    made = element("table", element("thead", element("tr", head)), element("tbody", body))
    return element("div", made, class_="scroll")


def pairs(rows: Iterable[tuple[str, Child]]) -> Markup:
    """Return names and what they are, one below the other."""
    made = [element("tr", element("th", name), element("td", value)) for name, value in rows]
    return element("div", element("table", made), class_="scroll")


def bullets(lines: Iterable[str]) -> Markup:
    """Return sentences as a list."""
    return element("ul", [element("li", line) for line in lines])


def dim(text: str) -> Markup:
    """Return a remark."""
    return element("p", text, class_="dim")
