"""Whatever comes from outside: it is understood, or refused in one line; nothing else happens.

An example is one input, made from the seed and its number alone: `example(seed, number)` makes it
again. What holds for each: it ends, in a result that is sound or in the error that is documented;
the error has a text that is one line at the terminal and names what it is about; and no more
memory is asked for than the input is worth.
"""

import logging
import random
import resource
import signal
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

_TESTS = Path(__file__).parent.parent
sys.path += [str(_TESTS / room) for room in (".", "sdk", "layout", "cli")]

import fuzz_files  # noqa: E402 - the paths must be known
import fuzz_layout  # noqa: E402
import fuzz_records  # noqa: E402
import fuzz_texts  # noqa: E402
from sdk_calls import make_calls  # noqa: E402

from ems import Ems  # noqa: E402
from ems_cli.diagnostics.bad_input import BadInput  # noqa: E402
from ems_cli.render.text import one_line  # noqa: E402

UNIT = "examples"
AMOUNT = 1_000_000

_SDK_CALLS = 20
"""One example in so many is a call of the SDK on the simulated NPU."""
_CPU_SECONDS = 20
"""What one example may take of a processor; most take less than a thousandth."""
_MEMORY_NBYTES = 1 << 30
"""What an example may map; inputs are far smaller, and sizes in them are not to be believed."""
_TEXT = 1000
"""Characters of an error text, beside the path of a file."""


class Fuzz:
    """All targets, with the folder and the pool that some of them need."""

    def __init__(self, seed):
        self.seed = seed
        self.refused, self.understood = Counter(), Counter()
        self._stack = ExitStack()
        room = self._stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm"))
        entries = fuzz_records.LmdbEntries(room)
        self._stack.enter_context(closing(entries))
        self._targets = {
            **fuzz_layout.TARGETS,
            **fuzz_texts.TARGETS,
            **fuzz_records.TARGETS,
            **fuzz_files.Files(Path(room)).targets(),
            entries: (2, ()),
        }
        self._weights = [weight for weight, _ in self._targets.values()]
        self._calls = list(self._targets)
        self._room = room

    def close(self):
        """Remove what the targets needed."""
        self._stack.close()

    def example(self, number):
        """Try one input.

        Raises:
            AssertionError: something happened that must not; the text tells the example.
        """
        made = random.Random(f"{self.seed} {number}")  # noqa: S311 - nothing is secret here
        [target] = made.choices(self._calls, self._weights)
        name = getattr(target, "__name__", type(target).__name__)
        try:
            understood = self._judged(target, made)
        except Exception as failure:
            raise AssertionError(
                f"seed {self.seed!r}, example {number}, {name}: {type(failure).__name__}: {failure}"
            ) from failure
        (self.understood if understood else self.refused)[name] += 1

    def _judged(self, target, made):
        signal.setitimer(signal.ITIMER_VIRTUAL, _CPU_SECONDS)
        try:
            return target(made)
        except self._targets[target][1] as failure:
            self._check(failure)
            return False
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _check(self, failure):
        """See that an error can be shown, and does not repeat all of a long input."""
        text = str(failure)
        if isinstance(failure, BadInput):  # as the command line shows it
            assert failure.option
            text = one_line(text)
        assert text
        assert text.isprintable(), repr(text)
        assert len(text) - len(self._room) <= _TEXT, f"{len(text)} characters: {text[:200]}"


def run(amount, seed):
    """Try that many inputs.

    Raises:
        AssertionError: see `Fuzz.example`.
    """
    calls = amount // _SDK_CALLS
    with closing(Fuzz(str(seed))) as fuzz, _bounded():
        for number in range(amount - calls):
            fuzz.example(number)
    try:
        succeeded = make_calls(calls, str(seed))
    finally:
        Ems.shutdown()
    for name in fuzz.understood | fuzz.refused:
        most = amount // 50
        assert fuzz.understood[name] or fuzz.understood[name] + fuzz.refused[name] < most, name
    return (
        f"{fuzz.understood.total():,} inputs understood, {fuzz.refused.total():,} refused, "
        f"{succeeded:,} of {calls:,} calls of the SDK succeeded"
    )


@contextmanager
def _bounded():
    """Refuse memory beyond what there is and a little; a hang ends in an AssertionError."""
    mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    before = signal.signal(signal.SIGVTALRM, _hung)
    log = logging.getLogger("ems.pool.lmdb")
    level = log.level
    log.setLevel(logging.ERROR)  # damaged entries are what is looked for
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _MEMORY_NBYTES, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
        signal.signal(signal.SIGVTALRM, before)
        log.setLevel(level)


def _hung(*_):
    raise AssertionError(f"it has not ended after {_CPU_SECONDS} s of a processor")
