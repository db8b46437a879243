"""Tests of the SDK on a simulated CANN runtime that is built with sanitizers.

The runtime is built into a scratch folder, with AddressSanitizer and with ThreadSanitizer, and the
tests of `FILES` run on it. Python and torch are not instrumented: leaks are not looked for, and
what torch_npu hands from thread to thread in ways that a sanitizer does not see is suppressed.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

UNIT = "rounds of tests under each sanitizer"
AMOUNT = 1

ROOT = Path(__file__).parents[2]
FILES = ("tests/sdk/test_blocks_come_back.py",)
_PATIENCE = 1200
"""Seconds for one round; it takes some ten on an idle computer."""
_BUILD = """
import sys
sys.path.insert(0, "ems/simulator")
from pathlib import Path
import _build
_build.FLAGS = [flag for flag in _build.FLAGS if flag != "-s"]  # reports name functions
_build.build(sys.argv[2:], Path(sys.argv[1]))
"""
_OPTIONS = {
    "address": ("ASAN_OPTIONS", "detect_leaks=0:handle_segv=0"),
    "thread": ("TSAN_OPTIONS", "ignore_noninstrumented_modules=1:exitcode=0"),
}
_SUPPRESSED = "race:libtorch_npu.so\nrace:libtorch\nrace:libc10\nrace:libpython\n"


def run(amount, seed):
    """Run the tests under each sanitizer.

    Raises:
        AssertionError: a test failed, or a sanitizer has something to report.
    """
    compiler = shlex.split(os.environ.get("CC") or shutil.which("cc") or "")
    assert compiler, "there is no C compiler"
    del seed  # the tests have none
    for sanitizer in _OPTIONS:
        with tempfile.TemporaryDirectory() as scratch:
            _built(compiler, sanitizer, Path(scratch))
            for _ in range(amount):
                _tested(compiler, sanitizer, Path(scratch))
    return f"{', '.join(FILES)}: nothing to report under {' and '.join(_OPTIONS)}"


def _built(compiler, sanitizer, place):
    flags = ["-g", "-fno-omit-frame-pointer", f"-fsanitize={sanitizer}"]
    command = [sys.executable, "-c", _BUILD, str(place), *compiler, *flags]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr


def _tested(compiler, sanitizer, place):
    reports, suppressed = place / "reports", place / "suppressed"
    reports.mkdir(exist_ok=True)
    suppressed.write_text(_SUPPRESSED)
    name, options = _OPTIONS[sanitizer]
    options += f":log_path={reports / 'report'}"
    if sanitizer == "thread":
        options += f":suppressions={suppressed}"
    home = ROOT / "ems" / "simulator" / "home"
    # libstdc++ as well: what sanitizers intercept of it must be there when they begin
    preloaded = [_library(compiler, f"lib{sanitizer[0]}san.so"), _library(compiler, "libstdc++.so")]
    environment = {
        **os.environ,
        name: options,
        "LD_PRELOAD": " ".join(preloaded),
        "LD_LIBRARY_PATH": str(place),
        "ASCEND_HOME_PATH": str(home),
        "ASCEND_OPP_PATH": str(home / "opp"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=_PATIENCE,
    )
    told = "\n".join(path.read_text() for path in reports.iterdir())
    assert (done.returncode, told) == (0, ""), f"{sanitizer}:\n{told}\n{done.stdout}\n{done.stderr}"


def _library(compiler, name):
    command = [*compiler, f"-print-file-name={name}"]
    path = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(path).is_absolute(), f"this compiler has no {name}"
    return path
