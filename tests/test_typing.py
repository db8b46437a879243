"""The SDK's types, as mypy sees them: real calls pass, and what each wrong one is refused for."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
PATIENCE = 600
"""Seconds: without a cache mypy reads all of torch's types first."""

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mypy") is None, reason="mypy is not installed"
)
ERROR = re.compile(r"(?P<file>\w+\.py):(?P<line>\d+): error: .*\[(?P<kind>[\w-]+)\]$")


@pytest.fixture(scope="module")
def errors(pytestconfig):
    """Return file, line and kind of everything that mypy finds."""
    finished = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--config-file=", f"--cache-dir={pytestconfig.cache.mkdir('mypy')}"),
            *("--follow-imports=silent", "--ignore-missing-imports", "--python-version=3.10"),
            *map(str, sorted((HERE / "typing").glob("*.py"))),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
        cwd=HERE.parent,
    )
    assert finished.returncode in {0, 1}, f"{finished.stdout}\n{finished.stderr}"
    found = [ERROR.search(line) for line in finished.stdout.splitlines() if ": error: " in line]
    assert all(found), finished.stdout
    return {(each["file"], int(each["line"]), each["kind"]) for each in found}


def test_real_calls_are_accepted(errors):
    assert not {each for each in errors if each[0] == "sdk_usage.py"}


def test_wrong_calls_are_refused_each_for_its_own_reason(errors):
    lines = (HERE / "typing" / "sdk_misuse.py").read_text(encoding="utf-8").splitlines()
    promised = {
        ("sdk_misuse.py", number, line.rpartition("# ")[2])
        for number, line in enumerate(lines, 1)
        if "  # " in line
    }
    assert len(promised) > 10
    assert errors - {each for each in errors if each[0] == "sdk_usage.py"} == promised


def test_the_package_says_that_it_has_types():
    spec = importlib.util.find_spec("ems")
    assert (Path(spec.origin).parent / "py.typed").exists()
