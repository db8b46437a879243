"""What `--json-schema` promises, and what `--json` writes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal

import pytest
import typer
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from ems_cli.app import COMMANDS, app
from ems_cli.commands.outputs import OUTPUTS
from ems_cli.render.as_json import report_json
from ems_cli.render.json_schema import schema_of

SMALL = ["--layers", "2", "--heads", "2", "--head-size", "16", "--block-size", "8"]
TRACE = [
    {"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]},
    {"timestamp": 9, "input_length": 30, "output_length": 1, "hash_ids": [1, 3]},
]


def run(*arguments):
    return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})


def schema(*command):
    result = run(*command, "--json-schema")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    Draft202012Validator.check_schema(found)
    return found


def problems(text, found):
    return [
        f"{error.json_path}: {error.message}"
        for error in Draft202012Validator(found).iter_errors(json.loads(text))
    ]


@pytest.fixture
def files(tmp_path, monkeypatch):
    monkeypatch.setenv("EMS_RUN_DIR", str(tmp_path / "run"))
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in TRACE), encoding="utf-8")
    saved = tmp_path / "saved.json"
    saved.write_text(run("register", *SMALL, "--json").stdout, encoding="utf-8")
    return {"TRACE": str(trace), "SAVED": str(saved)}


SUCCESSES = [
    ("register", [*SMALL, "--slot", "3"]),
    ("bench", [*SMALL, "--blocks", "8", "--runs", "2"]),
    ("bench", [*SMALL, "--blocks", "8", "--runs", "2", "--in-flight", "1,2"]),
    ("verify", SMALL),
    ("plan", ["--model", "qwen3-32b", "--bandwidth", "20GB/s"]),
    ("replay", ["TRACE", "--block-tokens", "16"]),
    ("inspect", []),
    ("inspect hash", ["SAVED", "SAVED"]),
    ("inspect namespace", ["SAVED", "SAVED"]),
    ("inspect plan", [*SMALL, "--blocks", "1,2,5"]),
    ("inspect file", ["SAVED"]),
]


@pytest.mark.parametrize(("command", "arguments"), SUCCESSES, ids=lambda value: str(value)[:30])
def test_the_json_of_a_command_keeps_its_schema(command, arguments, files):
    words = command.split()
    typed = words if command != "inspect file" else words[:1]
    result = run(*typed, "--json", *(files.get(each, each) for each in arguments))
    assert result.exit_code in {0, 1, 3}
    assert problems(result.stdout, schema(*words)) == []


FAILURES = [
    ["register", "--layers", "0"],
    ["register", "--devices", "npu:99"],
    ["bench", "--heads", "7", "--tp", "3"],
    ["verify", "--blocks", "1"],
    ["verify", "--pool", "nowhere://"],
    ["plan", "--model", "none-of-that-name"],
    ["replay", "no-such-file"],
    ["replay"],
    ["inspect", "--pid", "999999999"],
    ["inspect", "hash", "no-such-file", "nor-this"],
    ["inspect", "plan", "--slots", "x"],
]


@pytest.mark.parametrize("arguments", FAILURES, ids=" ".join)
def test_the_json_of_a_failure_keeps_the_same_schema(arguments, files):
    del files
    words = arguments[:2] if " ".join(arguments[:2]) in OUTPUTS else arguments[:1]
    result = run(*arguments, "--json")
    assert result.exit_code in {2, 3}
    assert problems(result.stdout, schema(*words)) == []
    assert json.loads(result.stdout)["error"]["message"]


def test_every_command_has_a_schema():
    names = set()
    for command in COMMANDS:
        if not isinstance(command, typer.Typer):
            names.add(command.__name__)
            continue
        of_group = f"{command.info.name}"
        if command.registered_callback is not None:
            names.add(of_group)
        names |= {f"{of_group} {entry.name}" for entry in command.registered_commands}
    assert names - set(OUTPUTS) == set()


@pytest.mark.parametrize("command", OUTPUTS)
def test_a_schema_needs_no_device_and_no_other_argument(command):
    assert schema(*command.split())["$defs"]["Error"]["required"] == [
        "schema",
        "error",
        "exit_code",
    ]


class Kind(Enum):
    TEXT = "a text"
    NUMBER = 3


@dataclass(frozen=True)
class Inner:
    nbytes: int
    """Bytes of it."""
    of: "Inner | None" = None


@dataclass(frozen=True)
class Outer:
    """Everything that a report may hold.

    And more words.
    """

    name: str
    kind: Kind
    way: Literal["there", "back"]
    pair: tuple[int, str]
    many: tuple[Inner, ...]
    some: Sequence[float]
    by_name: Mapping[str, Inner]
    by_number: dict[int, bool]
    path: Path | None
    anything: Any


OUTER = Outer(
    "x",
    Kind.NUMBER,
    "back",
    (1, "y"),
    (Inner(1, Inner(2)),),
    [0.5],
    {"a": Inner(3)},
    {1: True},
    None,
    {"b": [1]},
)


def test_every_type_of_a_report_has_a_schema():
    made = schema_of("trial", [Outer])
    assert problems(report_json(OUTER), made) == []
    outer = made["oneOf"][0]
    assert outer["description"] == "Everything that a report may hold."
    assert made["$defs"]["Inner"]["properties"]["nbytes"] == {
        "type": "integer",
        "description": "Bytes of it.",
    }
    assert outer["properties"]["kind"] == {"enum": ["a text", "number"]}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 1),
        ("kind", "other"),
        ("way", "up"),
        ("pair", [1]),
        ("pair", [1, "y", 2]),
        ("many", [{"nbytes": "1", "of": None}]),
        ("many", [{"nbytes": 1}]),
        ("some", ["x"]),
        ("by_number", {"1": 1}),
        ("unknown", 1),
    ],
)
def test_what_is_not_of_a_field_s_type_breaks_the_schema(field, value):
    report = {**json.loads(report_json(OUTER)), field: value}
    assert problems(json.dumps(report), schema_of("trial", [Outer])) != []


def test_what_has_no_form_in_json_has_no_schema():
    @dataclass
    class Odd:
        value: complex

    with pytest.raises(TypeError, match="complex"):
        schema_of("trial", [Odd])
