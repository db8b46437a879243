"""The code blocks of README.md, and the commands whose output it shows.

Run as a program this writes the commands' output into README.md anew.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).parent.parent / "README.md"
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<content>.*?)^```$", re.DOTALL | re.MULTILINE)
_SHOWN_LINES = 60
_CUT = "…"
_TIME = r"(?:ns|µs|ms|s)\b"


class Block(NamedTuple):
    language: str
    content: str


def blocks():
    """All fenced blocks, in order."""
    return [Block(**match.groupdict()) for match in _BLOCK.finditer(README.read_text())]


def command_of(block):
    """The command line and the output of a block that shows a terminal."""
    first, _, output = block.content.partition("\n")
    return first.removeprefix("$ "), output


def run(command):
    """What a command prints on stdout, in a terminal of 80 columns."""
    words = shlex.split(command)
    words[0] = str(Path(sys.executable).parent / words[0])
    env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1"}
    done = subprocess.run(words, capture_output=True, text=True, env=env, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def skeletons(output):
    """The lines of an output without what differs between runs: figures, bars, doubts."""
    lines = []
    doubts = False
    for line in output.splitlines():
        doubts = line.startswith("- ") or (doubts and line.startswith("  "))
        if not doubts and (skeleton := _skeleton(line)):
            lines.append(skeleton)
    return lines


def _skeleton(line):
    line = re.sub("HOST BUSY|TOO FEW SAMPLES", "", line)
    line = re.sub(r"0x[0-9a-f]+", "0x#", line)
    line = re.sub(r"\d+(?:\.\d+)?", "#", line)
    line = re.sub(rf"# {_TIME}", "# time", line)
    line = re.sub(r"[█▓▒░▁▂▃▄▅▆▇·─▏▎▍▌▋▊▉▚]+", " ", line)
    return " ".join(line.split())


def shown(output):
    """An output as the README shows it: at most a page of it."""
    lines = [line.rstrip() for line in output.splitlines()]
    if len(lines) > _SHOWN_LINES:
        lines = [*lines[:_SHOWN_LINES], _CUT]
    return "".join(f"{line}\n" for line in lines)


def _rewritten(match):
    block = Block(**match.groupdict())
    if block.language != "console":
        return match[0]
    command, _ = command_of(block)
    return f"```console\n$ {command}\n{shown(run(command))}```"


if __name__ == "__main__":
    README.write_text(_BLOCK.sub(_rewritten, README.read_text()))
