"""The long runs: what the tests show with a few rounds, with very many.

    python -m ems.simulator tests/long/run.py [NAME …] [--amount N] [--seed N]

Each run is a module NAME_run.py of this folder with `UNIT` (what it counts), `AMOUNT` (how many
a long run makes) and `run(amount, seed)`, which returns what was shown in a line and raises
AssertionError otherwise. Without names all of them run, one after the other.
"""
# ruff: noqa: T201 - a program that prints

import argparse
import datetime as dt
import importlib
import platform
import sys
import time
import traceback

RUNS = ("history", "faults", "streams", "kills", "fuzz", "calls", "sanitizers", "soak")


def main():
    """Run what is asked for; exit with 1 where something was not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(RUNS))
    parser.add_argument("--amount", type=int, help="how many, instead of the run's own amount")
    parser.add_argument("--seed", type=int, default=time.time_ns() % 2**32)
    asked = parser.parse_args()
    unknown = set(asked.names) - set(RUNS)
    if unknown:
        parser.error(f"no such run: {', '.join(sorted(unknown))}; there are {', '.join(RUNS)}")
    print(
        f"{dt.datetime.now(dt.timezone.utc):%Y-%m-%d}, {platform.platform()}, seed {asked.seed}",
        flush=True,
    )
    well = [_one(name, asked.amount, asked.seed) for name in asked.names or RUNS]
    sys.exit(0 if all(well) else 1)


def _one(name, amount, seed):
    module = importlib.import_module(f"{name}_run")
    amount = amount or module.AMOUNT
    print(f"{name}: {amount:,} {module.UNIT} …", flush=True)
    began = time.monotonic()
    try:
        shown = module.run(amount, seed)
    except AssertionError:
        traceback.print_exc()
        shown = None
    minutes = (time.monotonic() - began) / 60
    print(f"{name}: {shown or 'FAILED'}; {minutes:.1f} min", flush=True)
    return shown is not None


if __name__ == "__main__":
    main()
