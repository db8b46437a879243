"""How fast lmdb:// saves and loads, beside plain LMDB with the same copies overlapped.

    python -m ems.simulator tests/benchmarks/pool_speed.py [--entries 64] [--rounds 15] [--url lmdb://…]

In each round, in turn, so that what else the computer does hits both alike: the engine, through
the SDK, and a loop by hand (`ems_cli.diagnostics.suite_by_hand`) that copies one slice between NPU
and host while it puts or gets the one before, as single LMDB values, with neither checksums nor an
order of eviction.

On a computer with an NPU leave out `-m ems.simulator`.
"""
# ruff: noqa: T201 - a program that prints

import argparse
import shutil
import statistics
import tempfile
import time
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig, device
from ems_cli.diagnostics.suite_by_hand import ByHand, Memory, raw_lmdb

MIB = 1 << 20
BLOCK_SIZE = 16
PLANE_NBYTES = 64 << 10
WAYS = ("save", "load")
OPTION = CcKvOption(timeout=120_000)


@dataclass(frozen=True)
class Case:
    """Entries of one size, one block each."""

    entries: int
    entry_nbytes: int

    @property
    def nbytes(self):
        return self.entries * self.entry_nbytes

    def cache(self):
        """Planes for twice as many blocks: the upper half is loaded into."""
        shape = (2 * self.entries, BLOCK_SIZE, 16, 128)
        planes = [
            torch.randn(shape, dtype=torch.float32).to(torch.float16).to("npu:0")
            for _ in range(self.entry_nbytes // PLANE_NBYTES)
        ]
        return list(zip(planes[::2], planes[1::2], strict=True))


class Engine:
    """The same through the SDK."""

    def __init__(self, case, cc):
        self.case = case
        self.cc = cc
        self.slots = list(range(2 * case.entries * BLOCK_SIZE))
        self.tokens = [BLOCK_SIZE] * case.entries
        self.first = 0

    def hashes(self, turn):
        return list(range(turn * self.case.entries, (turn + 1) * self.case.entries))

    def save(self, turn):
        slots = self.slots[: self.case.entries * BLOCK_SIZE]
        assert self.cc.save(slots, self.hashes(turn), self.tokens, OPTION).success == len(
            self.tokens
        )

    def load(self, turn):
        slots = self.slots[self.case.entries * BLOCK_SIZE :]
        assert self.cc.load(slots, self.hashes(turn), self.tokens, OPTION).success == len(
            self.tokens
        )


def seconds_of(call, *arguments):
    start = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - start


@contextmanager
def running(url):
    config = CcConfig_v1(rank_id=0, device_id=0, model_id="pool-speed")
    Ems.init(EmsConfig(cc_config_v1=config, pool=url))
    try:
        yield Ems.get_cc()
    finally:
        Ems.shutdown()


@contextmanager
def by_hand_in(folder, case, registration):
    """Yield the loop by hand, on an LMDB file of its own."""
    ascend = device.load()
    pinned = ascend.PinnedMemory(0)
    memory = Memory(pinned.allocate(case.nbytes), case.nbytes)
    folder.mkdir()
    try:
        with (
            raw_lmdb(folder, 2 * case.nbytes, memory) as store,
            closing(
                ByHand(ascend.AscendDevice(0), store, memory, registration, case.entries)
            ) as by_hand,
        ):
            yield by_hand
    finally:
        pinned.free(memory.address)


def measure(case, url, rounds, scratch):
    """Return, by direction and way, the seconds of each round."""
    seconds = {(what, name): [] for what in WAYS for name in ("by hand", "engine")}
    kv = case.cache()
    with running(url) as cc:
        cc.register_kvcache(kv)
        engine = Engine(case, cc)
        folder = scratch / f"by-hand-{case.entry_nbytes}"
        with by_hand_in(folder, case, cc.registration) as by_hand:
            for turn in range(rounds):
                took = {"by hand": by_hand.trip()}
                took["engine"] = [seconds_of(getattr(engine, what), turn) for what in WAYS]
                check(kv, case)
                if turn >= rounds // 3:  # before that files and caches warm up
                    for name, both in took.items():
                        for what, one in zip(WAYS, both, strict=True):
                            seconds[what, name].append(one)
    return seconds


def check(kv, case):
    for plane in kv[0]:
        assert torch.equal(plane[: case.entries].cpu(), plane[case.entries :].cpu())
        plane[case.entries :].zero_()


def report(case, seconds):
    print(f"{case.entries} entries of {case.entry_nbytes / MIB:g} MiB, medians (best) in GB/s")
    for what in ("save", "load"):
        median, best = {}, {}
        for name in ("by hand", "engine"):
            taken = seconds[what, name]
            median[name] = case.nbytes / statistics.median(taken) / 1e9
            best[name] = case.nbytes / min(taken) / 1e9
        figures = "   ".join(f"{name} {median[name]:.2f} ({best[name]:.2f})" for name in median)
        ratio = median["engine"] / median["by hand"]
        best_ratio = best["engine"] / best["by hand"]
        print(f"  {what}   {figures}   engine / by hand {ratio:.2f} ({best_ratio:.2f})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--entries", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--mib", type=int, nargs="*", default=[1, 4])
    parser.add_argument("--url", help="a pool of 1 GiB of its own in /dev/shm where left out")
    asked = parser.parse_args()
    torch.set_num_threads(1)  # more of them spin for a while after each check, in what comes next
    scratch = Path(tempfile.mkdtemp(prefix="ems-pool-speed-", dir="/dev/shm"))
    try:
        for mib in asked.mib:
            case = Case(asked.entries, mib * MIB)
            url = asked.url or f"lmdb://{scratch}/pool-{mib}?capacity=1GiB"
            report(case, measure(case, url, asked.rounds, scratch))
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
