"""python -m ems.simulator SCRIPT|-m MODULE|-c CODE ARGS...: Python on the simulated runtime."""

import os
import sys

from ems import simulator

USAGE = "usage: python -m ems.simulator SCRIPT|-m MODULE|-c CODE ARGS..."


def main() -> None:
    """Replace this process by Python with the same arguments; it finds the simulated runtime."""
    arguments = sys.argv[1:]
    if not arguments:
        print(USAGE, file=sys.stderr)  # noqa: T201 - a command's usage error
        raise SystemExit(2)
    simulator.environment(os.environ)
    os.execv(sys.executable, [sys.executable, *arguments])  # noqa: S606 - the very purpose


if __name__ == "__main__":
    main()
