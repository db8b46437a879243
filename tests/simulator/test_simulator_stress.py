import os
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "ems" / "simulator" / "src"
RUNTIME = (
    *(
        "account",
        "batches",
        "copies",
        "counters",
        "devices",
        "events",
        "faults",
        "foreign",
        "memory",
    ),
    *("pinned", "ranges", "report", "settings", "streams", "unsimulated", "virtual", "workers"),
)
COMPILER = shlex.split(os.environ.get("CC") or shutil.which("cc") or "")


@pytest.mark.skipif(not COMPILER, reason="no C compiler")
@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_threads_neither_race_nor_leak(tmp_path, sanitizer):
    flags = ["-g", "-O1", "-std=gnu11", "-pthread", f"-fsanitize={sanitizer}", f"-I{SOURCES}"]
    flags.append("-fno-sanitize-recover=all")
    files = [Path(__file__).with_name("stress.c"), *(SOURCES / f"{name}.c" for name in RUNTIME)]
    program = tmp_path / "stress"
    build = subprocess.run(
        [*COMPILER, *flags, "-o", program, *files, "-lm"], capture_output=True, check=False
    )
    if b"cannot find" in build.stderr:
        pytest.skip(f"this compiler has no {sanitizer} sanitizer")
    assert build.returncode == 0, build.stderr.decode()
    environment = {
        **os.environ,
        "EMS_SIM_STREAM_DEPTH": "4",
        "EMS_SIM_ACCOUNT": f"{os.getpid()}-stress",
    }
    run = subprocess.run([program], capture_output=True, check=False, env=environment, timeout=120)
    assert (run.returncode, run.stdout) == (0, b"done\n"), run.stderr.decode()
