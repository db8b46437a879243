"""The code blocks of README.md, and the commands whose output it shows.

Run as a program this writes the commands' output into README.md anew.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

README = Path(__file__).parent.parent / "README.md"
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?P<content>.*?)^```$", re.DOTALL | re.MULTILINE)
_SHOWN_LINES = 48
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
    with tempfile.TemporaryDirectory() as run_dir:
        env = {**os.environ, "COLUMNS": "80", "NO_COLOR": "1", "EMS_RUN_DIR": run_dir}
        others = two_ranks(env) if command == "ems-cli inspect" else nullcontext()
        with others:
            done = subprocess.run(
                words,
                capture_output=True,
                text=True,
                env=env,
                timeout=300,
                check=False,
                cwd=README.parent,
            )
    assert done.returncode == ("broken" in command), done.stderr
    return done.stdout


@contextmanager
def two_ranks(env):
    """Two processes that save and load on their NPUs until this ends."""
    python = Path(sys.executable).parent / "python"  # one name, whatever pytest was started by
    started = []
    try:
        for rank in range(2):
            words = [str(python), "-m", "ems.simulator", "-c", _RANK, str(rank)]
            started.append(subprocess.Popen(words, env=env, stdout=subprocess.PIPE, text=True))
        for process in started:
            assert process.stdout.readline() == "at work\n"
        yield
    finally:
        for process in started:
            process.terminate()
            process.communicate()


_RANK = """
import sys, time
import torch, torch_npu
from ems import CcConfig_v1, Ems, EmsConfig

rank = int(sys.argv[1])
config = CcConfig_v1(rank, rank, "llama-3.1-8b", tp_world_size=2, rank_in_tp_group=rank)
Ems.init(EmsConfig(cc_config_v1=config, pool="memory://?capacity=64MiB&segment=16MiB"))
cc = Ems.get_cc()
cc.register_kvcache(
    [[torch.zeros(16, 16, 4, 128).half().to(f"npu:{rank}") for _ in "KV"] for _ in range(2)]
)
for at in range(8):
    slots = list(range(at * 16, at * 16 + 16))
    cc.save(slots, [at], [16])
    cc.load(slots, [at + at % 2], [16])
    cc.exists([at, at + 1])
time.sleep(1.5)
print("at work", flush=True)
while True:
    time.sleep(1)
"""


def skeleton(output):
    """The words of an output without what differs between runs: figures, bars, doubts, wraps.

    A figure with a digit more wraps the sentence around it at another word, hence no lines; a map
    of memory has more rows where the tensors lie further apart, hence no word twice in a row.
    """
    if output.startswith("Is this computer ready?"):  # what is found is another computer's affair
        return re.findall(r"^(?:PASS|WARN|FAIL|SKIP)  (\S+)", output, re.MULTILINE)
    words = _without_figures(" ".join(" ".join(_without_doubts(output)).split())).split()
    return [word for word, after in zip(words, [*words[1:], ""], strict=True) if word != after]


def _without_doubts(output):
    doubts = False
    for line in output.splitlines():
        doubts = line.startswith("- ") or (doubts and line.startswith("  "))
        if not doubts:
            yield line


def _without_figures(text):
    text = re.sub("HOST BUSY|TOO FEW SAMPLES", "", text)
    text = re.sub(r"0x[0-9a-f]+", "0x#", text)
    text = re.sub(r"\d+(?:\.\d+)?", "#", text)
    text = re.sub(rf"(?:< )?# {_TIME}(?: # {_TIME})*", "# time", text)
    return re.sub(r"[█▓▒░▁▂▃▄▅▆▇·─▏▎▍▌▋▊▉▚]+", " ", text)


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
