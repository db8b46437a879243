import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trial_app
from typer.testing import CliRunner

from ems_cli.app import app as product

GOLDEN = Path(__file__).parent / "golden"
TRIAL = [sys.executable, trial_app.__file__]
PRODUCT = [sys.executable, "-m", "ems_cli"]
ROOT = Path(importlib.util.find_spec("ems_cli").origin).parents[1]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "80"}


def run(*arguments, app=trial_app.app, **environment):
    runner = CliRunner()
    return runner.invoke(app, arguments, prog_name="ems-cli", env={"COLUMNS": "80", **environment})


def process(command, *arguments, **options):
    return subprocess.run(
        [*command, *arguments], env=ENVIRONMENT, check=False, text=True, timeout=60, **options
    )


@pytest.mark.parametrize(
    ("app", "arguments", "golden"),
    [(product, [], "help.txt"), (trial_app.app, ["measure"], "help_of_a_command.txt")],
)
def test_the_help_looks_like_this_at_80_columns(app, arguments, golden):
    result = run(*arguments, "--help", app=app)
    assert result.stdout == (GOLDEN / golden).read_text(encoding="utf-8")
    assert (result.exit_code, result.stderr) == (0, "")
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_every_help_names_the_exit_codes():
    for command in ([], ["measure"], ["fail"]):
        assert "  70  a bug in this program" in run(*command, "-h").stdout


@pytest.mark.parametrize("module", ["torch", "numpy", "rich", "importlib.metadata"])
def test_help_does_not_import(module):
    code = (
        "import sys, ems_cli.__main__ as cli\n"
        "sys.argv = ['ems-cli', '--help']\n"
        "try:\n    cli.main()\n"
        f"finally:\n    print({module!r} in sys.modules, file=sys.stderr)"
    )
    result = process([sys.executable, "-c", code], capture_output=True)
    assert (result.returncode, result.stderr) == (0, "False\n")


def test_no_module_imports_click_which_typer_carries_with_it():
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "ems_cli").rglob("*.py")]
    assert sources
    assert not any(re.search(r"^\s*(import|from) click", text, re.MULTILINE) for text in sources)


def test_no_arguments_show_the_help_and_are_wrong_usage():
    result = run()
    assert result.exit_code == 2
    assert "Usage: ems-cli [OPTIONS] COMMAND" in result.stderr


@pytest.mark.parametrize("arguments", [["measure", "--json"], ["--json", "measure"]])
def test_json_counts_before_and_after_the_command(arguments):
    result = run(*arguments)
    assert json.loads(result.stdout) == {"schema": 1, "token_nbytes": 131072, "devices": [0]}


@pytest.mark.parametrize("arguments", [["measure", "--quiet"], ["-q", "measure"]])
def test_quiet_silences_notes_but_not_the_report(arguments):
    result = run(*arguments)
    assert (result.stdout, result.stderr) == ("131072 bytes per token\n", "")


def test_notes_go_to_stderr():
    result = run("measure", "--pool-size", "1.5GiB")
    assert result.stdout == "131072 bytes per token\n"
    assert result.stderr == "the pool has 1610612736 bytes\n"


def test_the_options_of_the_cache_reach_the_shape():
    result = run("measure", "--layers", "2", "--heads", "1", "--head-size", "4", "--dtype", "int8")
    assert result.stdout == "16 bytes per token\n"


def test_the_first_trial_needs_only_layers_and_a_block_size():
    assert run("measure", "--layers", "32", "--block-size", "128").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--model", "nope"], "'--model': no file 'nope'"),
        (["--model", "qwen3-32b", "--layers", "3"], "'--layers': the model says this already"),
        (["--tp", "3"], "'--tp': 3 ranks cannot share 8 KV heads"),
        (["--devices", "0,x"], "'--devices': 'x' in '0,x' is not a device"),
        (["--blocks", "0"], "'--blocks': "),
        (["--layers", "many"], "'--layers': "),
        (["--pool-size", "9e18"], "'--pool-size': '9e18' is not a size"),
        (["--pool-size", "-1"], "'--pool-size': '-1' is not a size"),
        (["--nope"], "--nope"),
    ],
)
def test_wrong_usage_is_told_on_stderr_or_as_json_with_exit_code_2(arguments, said):
    text, as_json = run("measure", *arguments), run("measure", *arguments, "--json", "-q")
    assert (text.exit_code, text.stdout) == (2, "")
    assert said in text.stderr
    assert (as_json.exit_code, as_json.stderr) == (2, "")
    report = json.loads(as_json.stdout)
    assert (report["schema"], report["error"]["code"], report["exit_code"]) == (1, "USAGE", 2)
    assert said in report["error"]["message"]


@pytest.mark.parametrize(
    ("value", "told"), [("0", "equal to 1: '0'"), ("x\x1b[31m", r"as an integer: 'x\x1b[31m'")]
)
def test_a_value_that_is_refused_is_told(value, told):
    result = run("plan", "--layers", value, "--json", app=product)
    assert json.loads(result.stdout)["error"]["message"].endswith(told)
    assert told in " ".join(run("plan", "--layers", value, app=product).stderr.split())


def test_json_after_the_separator_is_an_argument():
    result = run("measure", "--", "--json")
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_failure_of_ems_is_one_line_without_control_characters():
    result = run("fail")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr == (
        "Error: no answer from [red]pool[/red] \\x1b[31mat host (EMS_IO_ERROR)\n"
    )


def test_a_failure_of_ems_is_an_object_with_json():
    result = run("fail", "--json", "--how", "ems")
    assert json.loads(result.stdout) == {
        "schema": 1,
        "error": {"code": "EMS_INTERNAL_ERROR", "message": "broken"},
        "exit_code": 3,
    }
    assert (result.exit_code, result.stderr) == (3, "")


def test_a_failure_after_the_report_leaves_stdout_one_document():
    result = run("fail", "--json", "--how", "late-ems")
    assert json.loads(result.stdout)["token_nbytes"] == 1
    assert (result.exit_code, result.stderr) == (3, "Error: broken (EMS_INTERNAL_ERROR)\n")


@pytest.mark.parametrize("how", ["bug", "socket"])
def test_a_bug_shows_its_traceback_and_has_its_own_exit_code(how):
    result = process(TRIAL, "fail", "--how", how, capture_output=True)
    assert (result.returncode, result.stdout) == (70, "")
    assert "Traceback (most recent call last):" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("Error: a bug in ems-cli: ")


def test_a_bug_is_an_object_with_json_and_its_traceback_still_on_stderr():
    result = run("fail", "--how", "bug", "--json")
    assert json.loads(result.stdout)["error"]["code"] == "BUG"
    assert "KeyError: 'unexpected'" in result.stderr


def test_a_command_may_leave_with_the_code_of_a_found_problem():
    assert run("fail", "--how", "found").exit_code == 1


def test_an_interruption_is_said_in_one_line():
    result = run("fail", "--how", "interrupt")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Error: interrupted\n")


def test_an_interruption_after_the_report_keeps_it():
    result = run("fail", "--how", "late-interrupt", "--json")
    assert result.exit_code == 130
    assert json.loads(result.stdout)["schema"] == 1


def test_control_c_ends_a_process_with_130():
    with subprocess.Popen(
        [*TRIAL, "wait"], env=ENVIRONMENT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as child:
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGINT)
        _, stderr = child.communicate(timeout=60)
    assert (child.returncode, stderr) == (130, "Error: interrupted\n")


@pytest.mark.parametrize(
    "what",
    [
        "class Late:\n    def __del__(self):\n        raise KeyboardInterrupt\nLate()",
        "import signal\nsignal.raise_signal(signal.SIGINT)",
    ],
    ids=["in a finalizer", "at any other time"],
)
def test_control_c_is_not_lost(what):
    code = (
        "import time, ems_cli.app as place, ems_cli.__main__ as cli\n"
        f"def wait():\n    exec({what!r})\n    time.sleep(50)\n"
        "place.app = place.create_app([wait, wait])\n"
        "cli.sys.argv[1:] = ['wait']\n"
        "cli.main()"
    )
    result = process([sys.executable, "-c", code], capture_output=True)
    assert (result.returncode, result.stderr) == (130, "Error: interrupted\n")


def test_control_c_while_the_commands_are_imported_is_one_line():
    code = (
        "import sys, ems_cli.__main__ as cli\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'ems_cli.app':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "cli.main()"
    )
    result = process([sys.executable, "-c", code], capture_output=True)
    assert (result.returncode, result.stderr) == (130, "Error: interrupted\n")


@pytest.mark.parametrize("arguments", [["plan"], ["plan", "--json"], ["plan", "--help"], ["-h"]])
def test_a_stdout_that_is_closed_is_one_line(arguments):
    result = process(["sh", "-c", 'exec "$@" >&-', "sh", *PRODUCT], *arguments, stderr=-1)
    assert result.returncode == 3
    assert re.fullmatch(r"Error: the \w+ could not be written: Bad file .*\n", result.stderr)


def test_a_stderr_that_is_closed_leaves_the_exit_code():
    result = process(["sh", "-c", 'exec "$@" 2>&-', "sh", *PRODUCT], "plan", "--layers", "0")
    assert result.returncode == 2


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("arguments", [["talk", "--lines", "100000"], ["talk"], ["talk", "--help"]])
def test_a_closed_pipe_ends_quietly(arguments, unbuffered, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "PYTHONUNBUFFERED", unbuffered)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        result = process(TRIAL, *arguments, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


def test_a_watch_that_nobody_reads_any_more_ends_as_other_commands_do(tmp_path, monkeypatch):
    monkeypatch.setitem(ENVIRONMENT, "EMS_RUN_DIR", str(tmp_path))
    reader, writer = os.pipe()
    os.close(reader)
    try:
        watch = ["inspect", "--watch", "0.1"]
        result = process(PRODUCT, *watch, stdout=writer, stderr=subprocess.PIPE)
    finally:
        os.close(writer)
    assert (result.returncode, result.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full to be full")
def test_a_full_disk_is_one_line():
    with Path("/dev/full").open("w") as full:
        result = process(TRIAL, "talk", stdout=full, stderr=subprocess.PIPE)
    assert result.returncode == 3
    assert result.stderr == (
        "Error: the report could not be written: No space left on device (EMS_INTERNAL_ERROR)\n"
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full to be full")
@pytest.mark.parametrize("what", ["--help", "--json-schema"])
def test_a_full_disk_is_no_bug_of_a_help_or_a_schema(what):
    with Path("/dev/full").open("w") as full:
        result = process(PRODUCT, "plan", what, stdout=full, stderr=subprocess.PIPE)
    assert (result.returncode, "Traceback" in result.stderr) == (3, False)


def test_an_encoding_without_the_letters_of_a_path_is_no_failure():
    ascii_only = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    result = subprocess.run(
        [*PRODUCT, "größe"], env=ascii_only, check=False, capture_output=True, timeout=60
    )
    assert result.returncode == 2
    assert b"Traceback" not in result.stderr


@pytest.mark.parametrize("arguments", [["--version"], ["--version", "--json"]])
def test_the_version_is_a_report(arguments):
    result = run(*arguments, app=product)
    assert result.exit_code == 0
    if "--json" in arguments:
        assert list(json.loads(result.stdout)) == ["schema", "version"]
    else:
        assert result.stdout.startswith("ems-cli ")


def test_completion_offers_the_commands():
    asked = {**ENVIRONMENT, "_EMS_CLI_COMPLETE": "complete_bash", "COMP_WORDS": "ems-cli m"}
    result = subprocess.run(
        TRIAL,
        env={**asked, "COMP_CWORD": "1"},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout.split()) == (0, ["measure"])
