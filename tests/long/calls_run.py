"""Random calls of the SDK, in random order: they end in results or in failures of the SDK."""

import sys
from pathlib import Path

_TESTS = Path(__file__).parent.parent
sys.path += [str(_TESTS), str(_TESTS / "sdk")]

from sdk_calls import make_calls  # noqa: E402 - the paths must be known

from ems import Ems  # noqa: E402

UNIT, AMOUNT = "calls", 100_000


def run(amount, seed):
    """Make that many calls; return how many succeeded.

    Raises:
        AssertionError: see `make_calls`.
    """
    try:
        succeeded = make_calls(amount, str(seed))
    finally:
        Ems.shutdown()
    return f"{succeeded:,} succeeded, the others were refused"
