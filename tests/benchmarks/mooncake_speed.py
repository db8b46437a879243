"""Speed of the engine beside raw Mooncake, in one run: `python tests/benchmarks/mooncake_speed.py`.

Both do the same with their own cluster, in turns: 64 objects from registered memory, and back. The
engine's figures hold all that it adds: look-ups, headers, checksums, threads. Medians of rounds.
"""

import argparse
import mmap
import os
import statistics
import sys
import time
from contextlib import ExitStack
from ctypes import addressof, c_char, memset
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
os.environ.setdefault("MC_LOG_LEVEL", "ERROR")  # read by the import of mooncake

from contracts.host_memory import MappedMemory
from contracts.mooncake_cluster import cluster
from mooncake.store import MooncakeDistributedStore

from ems.pool.base import Held, Place, PoolKey
from ems.pool.registry import open_pool

ENTRIES = 64
MIB = 1 << 20


class Raw:
    """Mooncake's own calls, from memory registered once."""

    def __init__(self, trial, segment_nbytes, nbytes):
        self.store = MooncakeDistributedStore()
        master = f"127.0.0.1:{trial.port}"
        arguments = ("127.0.0.1", "P2PHANDSHAKE", segment_nbytes, 0, "tcp", "", master)
        assert self.store.setup(*arguments) == 0
        self._pages = mmap.mmap(-1, ENTRIES * nbytes)
        self._export = c_char.from_buffer(self._pages)
        base = addressof(self._export)
        memset(base, 7, ENTRIES * nbytes)
        assert self.store.register_buffer(base, ENTRIES * nbytes) == 0
        self.places = [base + at * nbytes for at in range(ENTRIES)]
        self.sizes = [nbytes] * ENTRIES

    def save(self, keys):
        start = time.perf_counter()
        codes = self.store.batch_put_from(keys, self.places, self.sizes)
        seconds = time.perf_counter() - start
        assert codes == [0] * ENTRIES, codes
        return seconds

    def load(self, keys):
        start = time.perf_counter()
        codes = self.store.batch_get_into(keys, self.places, self.sizes)
        seconds = time.perf_counter() - start
        assert codes == self.sizes, codes
        return seconds

    def remove(self, keys):
        self.store.batch_remove(keys, True)


class Ours:
    """The engine."""

    def __init__(self, trial, segment_nbytes, nbytes, *, checksum):
        staging = ENTRIES * (nbytes + 4096) + MIB
        url = f"{trial.url}&staging={staging}&checksum={checksum}"
        if segment_nbytes:
            url += f"&segment={segment_nbytes}"
        self.pool = open_pool(url, MappedMemory())
        self.pool.check_health(deadline=time.monotonic() + 10)
        self.tokens = [128] * ENTRIES
        self.sizes = [nbytes] * ENTRIES

    def save(self, keys):
        deadline = time.monotonic() + 30
        start = time.perf_counter()
        places = self.pool.reserve(keys, self.tokens, self.sizes, deadline=deadline)
        seconds = time.perf_counter() - start
        assert all(isinstance(place, Place) for place in places)
        for place in places:
            memset(place.address, 7, place.nbytes)
        start = time.perf_counter()
        self.pool.commit(places)
        return seconds + time.perf_counter() - start

    def load(self, keys):
        deadline = time.monotonic() + 30
        start = time.perf_counter()
        held = self.pool.acquire(keys, self.tokens, deadline=deadline)
        self.pool.release(held)
        seconds = time.perf_counter() - start
        assert all(isinstance(one, Held) for one in held)
        return seconds

    def remove(self, keys):
        self.pool.remove(keys)


def measure(nbytes, *, own_segment, checksum, rounds):
    """Return, by side and direction, the seconds of each round."""
    segment_nbytes = max(64 * MIB, 3 * ENTRIES * nbytes)
    seconds = {(side, way): [] for side in ("raw", "ours") for way in ("save", "load")}
    with ExitStack() as stack:
        trials = [
            stack.enter_context(cluster(segment_nbytes=segment_nbytes, node=not own_segment))
            for _ in range(2)
        ]
        own_nbytes = segment_nbytes * own_segment
        sides = {
            "raw": Raw(trials[0], own_nbytes, nbytes),
            "ours": Ours(trials[1], own_nbytes, nbytes, checksum=checksum),
        }
        for turn in range(rounds + 1):
            keys = [PoolKey(f"speed-{turn}-{at}") for at in range(ENTRIES)]
            for name, side in sorted(sides.items(), reverse=turn % 2):
                for way in ("save", "load"):
                    took = getattr(side, way)(keys)
                    if turn:
                        seconds[name, way].append(took)
                side.remove(keys)
        sides["ours"].pool.close()
        sides["raw"].store.close()
    return seconds


def main():
    """Print one line per size and set-up."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    for own_segment in (False, True):
        for checksum in ("on", "off"):
            for nbytes in (MIB, 4 * MIB):
                seconds = measure(nbytes, own_segment=own_segment, checksum=checksum, rounds=rounds)
                report(nbytes, seconds, own_segment=own_segment, checksum=checksum)


def report(nbytes, seconds, *, own_segment, checksum):
    """Print GB/s of both sides and their ratio; the best rounds are those that noise spared."""
    whole = ENTRIES * nbytes / 1e9
    where = "own segment" if own_segment else "other process"
    print(f"{ENTRIES} × {nbytes >> 20} MiB, {where}, checksum {checksum}")  # noqa: T201 - what it is for
    for way in ("save", "load"):
        raw, ours = (seconds[side, way] for side in ("raw", "ours"))
        medians = [whole / statistics.median(one) for one in (raw, ours)]
        best = [whole / min(one) for one in (raw, ours)]
        print(  # noqa: T201
            f"  {way}  raw {medians[0]:5.2f} ({best[0]:5.2f}) GB/s  "
            f"ours {medians[1]:5.2f} ({best[1]:5.2f})  "
            f"ours / raw {medians[1] / medians[0]:4.2f} ({best[1] / best[0]:4.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
