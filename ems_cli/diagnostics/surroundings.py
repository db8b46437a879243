"""The computer as checks see it; a test gives them another one."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_TEXT_NBYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Ran:
    """A child process that was run."""

    code: int | None
    """Exit code, negative for a signal; None when it took too long and was killed."""
    out: str
    err: str


Run = Callable[[Sequence[str], Mapping[str, str], float], Ran]
"""Runs a command with an environment, for so many seconds at most."""


def run_child(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> Ran:
    """Run `command` and return what it wrote; a child that hangs is killed."""
    with subprocess.Popen(  # noqa: S603 - commands of this program
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as child:
        try:
            out, err = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            out, err = child.communicate()
            return Ran(None, out, err)
    return Ran(child.returncode, out, err)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where facts come from."""

    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    root: Path = Path("/")
    """Everything under /proc, /sys and /dev is looked for below it."""
    run: Run = run_child
    which: Callable[[str], str | None] = shutil.which
    python: str = sys.executable
    timeout_seconds: float = 120.0

    def text(self, path: str) -> str | None:
        """Return what a small file holds; None where there is none or it cannot be read."""
        try:
            with (self.root / path).open(encoding="utf-8", errors="replace") as file:
                return file.read(_TEXT_NBYTES)
        except OSError:
            return None

    def number(self, path: str) -> int | None:
        """Return the number that a file holds; None for none."""
        text = (self.text(path) or "").strip()
        return int(text) if text.isdigit() else None

    def probe(self, what: str, **changes: str) -> Ran:
        """Run one of `ems_cli.diagnostics.probe` in a process of its own."""
        command = [self.python, "-m", "ems_cli.diagnostics.probe", what]
        return self.run(command, {**self.environment, **changes}, self.timeout_seconds)


def locked_memory_limit() -> int | None:
    """Return the bytes that this process may lock; None for no limit."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft
