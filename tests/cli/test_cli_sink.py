import enum
import io
import json
import math
import sys
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, ClassVar

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text

from ems_cli.render.as_json import plain, report_json
from ems_cli.render.sink import Sink, report_console
from ems_cli.render.text import one_line, visible


class Verdict(enum.Enum):
    PASS = enum.auto()
    FAIL = enum.auto()


class Kind(str, enum.Enum):
    MLA = "MLA"


@dataclass(frozen=True)
class Inner:
    seconds: float


@dataclass(frozen=True)
class Report:
    value: Any


@dataclass(frozen=True)
class Versioned:
    schema: ClassVar[int] = 7
    inner: Inner


class Terminal(io.StringIO):
    def isatty(self):
        return True


def table_of(text):
    table = Table("column")
    table.add_row(text)
    return table


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (3, 3),
        (0.25, 0.25),
        (math.inf, None),
        (math.nan, None),
        ("text", "text"),
        ((1, (2, 3)), [1, [2, 3]]),
        ({3, 1, 2}, [1, 2, 3]),
        ({Verdict.PASS: 1}, {"pass": 1}),
        (Verdict.FAIL, "fail"),
        (Kind.MLA, "MLA"),
        (Inner(0.5), {"seconds": 0.5}),
        (PurePosixPath("a/b"), "a/b"),
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.int64(7), 7),
        (np.bool_(False), False),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([1.0, np.nan]), [1.0, None]),
        (b"raw", TypeError),
        (object(), TypeError),
        (Inner, TypeError),
        ({1: "a", "1": "b"}, TypeError),
    ],
)
def test_a_field_becomes_what_json_knows(value, expected):
    if expected is TypeError:
        with pytest.raises(TypeError):
            report_json(Report(value))
        return
    assert json.loads(report_json(Report(value))) == {"schema": 1, "value": expected}


def test_real_numbers_stay_numbers_of_python():
    assert type(plain(np.float64(0.5))) is float
    assert type(plain(np.int32(5))) is int


def test_a_report_may_have_its_own_schema_number():
    assert json.loads(report_json(Versioned(Inner(1.5)))) == {
        "schema": 7,
        "inner": {"seconds": 1.5},
    }


def test_json_is_plain_ascii():
    assert report_json(Report("größe")).isascii()


def test_a_report_goes_to_stdout_as_text(capsys):
    Sink().emit(Report(5), lambda report: f"value {report.value}")
    assert capsys.readouterr() == ("value 5\n", "")


def test_a_table_is_written_at_80_columns_without_colour_or_markup(capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    Sink().emit(Report("[red]x[/red] :smile: " * 9), lambda report: table_of(report.value))
    lines = capsys.readouterr().out.splitlines()
    assert {len(line) for line in lines} == {80}
    assert "[red]x[/red] :smile:" in lines[3]


def test_columns_decides_the_width(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    Sink().emit(Report("word " * 30), lambda report: table_of(report.value))
    assert {len(line) for line in capsys.readouterr().out.splitlines()} == {40}


def test_a_width_of_nothing_is_none(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "0")
    Sink().emit(Report("word " * 30), lambda report: table_of(report.value))
    assert {len(line) for line in capsys.readouterr().out.splitlines()} == {80}


@pytest.mark.parametrize("refused", [True, False])
def test_no_color_is_honoured_on_a_terminal(monkeypatch, refused):
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if refused:
        monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stdout", Terminal())
    Sink().emit(Report(0), lambda _: Text("PASS", style="green"))
    assert ("\x1b[32m" in sys.stdout.getvalue()) is not refused


def test_json_is_chosen_once_for_every_report(capsys):
    Sink(as_json=True).emit(Report(5), lambda _: "never")
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "value": 5}


def test_a_warning_is_heard_even_when_quiet(capsys):
    sink = Sink(quiet=True)
    sink.note("a note")
    sink.warn("a warning")
    assert capsys.readouterr() == ("", "a warning\n")


def test_a_closed_stderr_does_not_fail_a_note(monkeypatch):
    class Closed(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    monkeypatch.setattr(sys, "stderr", Closed())
    Sink().note("nobody hears this")


@pytest.mark.parametrize(
    ("stream", "quiet", "shown"),
    [(Terminal, False, True), (Terminal, True, False), (io.StringIO, False, False)],
)
def test_progress_is_for_a_terminal_that_wants_it(monkeypatch, stream, quiet, shown):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", stream())
    with Sink(quiet=quiet).progress("copying", total=3) as advance:
        advance(3)
    assert ("copying" in sys.stderr.getvalue()) is shown


def test_a_console_for_tests_has_the_width_it_is_given():
    file = io.StringIO()
    report_console(file, width=20).print(table_of("a" * 50))
    assert {len(line) for line in file.getvalue().splitlines()} == {20}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain [bold]text", "plain [bold]text"),
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\rb\nc\x00", "a\\rb\\nc\\x00"),
        ("größe 大", "größe 大"),
        ("\u202eevil", "\\u202eevil"),
    ],
)
def test_control_characters_become_visible(text, shown):
    assert visible(text) == shown


def test_one_line_is_one_line():
    assert one_line(" first\n  second\tthird\n") == "first second third"
