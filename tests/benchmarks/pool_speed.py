"""How fast lmdb:// saves and loads, beside plain LMDB with the same copies overlapped.

    python -m ems.simulator tests/benchmarks/pool_speed.py [--entries 64] [--rounds 15] [--url lmdb://…]

In each round, in turn, so that what else the computer does hits both alike: the engine, through
the SDK, and a loop by hand that copies one slice between NPU and host while it puts or gets the
one before, as single LMDB values, with neither checksums nor an order of eviction.

On a computer with an NPU leave out `-m ems.simulator`.
"""
# ruff: noqa: T201 - a program that prints

import argparse
import itertools
import shutil
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import lmdb
import numpy as np
import torch

from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig, device
from ems.device.base import Direction
from ems.layout.copy_plan import Spans

MIB = 1 << 20
BLOCK_SIZE = 16
PLANE_NBYTES = 64 << 10
SLICE_NBYTES = 8 * MIB
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


class ByHand:
    """The least that saving and loading through LMDB can be."""

    def __init__(self, case, path, planes):
        self.case = case
        ascend = device.load()
        self.npu = ascend.AscendDevice(0)
        self.channels = {way: self.npu.open_channel(way) for way in Direction}
        self.memory = ascend.PinnedMemory(0)
        self.address = self.memory.allocate(2 * SLICE_NBYTES)
        self.staging = np.ctypeslib.as_array(
            (np.ctypeslib.ctypes.c_uint8 * (2 * SLICE_NBYTES)).from_address(self.address)
        )
        self.planes = np.array([plane.data_ptr() for plane in planes], np.uint64)
        nbytes = 8 * case.nbytes + 64 * MIB
        path.mkdir()
        self.env = lmdb.open(
            str(path),
            map_size=nbytes,
            writemap=True,
            map_async=True,
            sync=False,
            metasync=False,
            meminit=False,
            readahead=False,
        )

    def spans(self, at, first):
        """The copies of the `at`th slice, from or to blocks that start at `first`."""
        each = SLICE_NBYTES // self.case.entry_nbytes
        blocks = np.arange(first + at * each, first + (at + 1) * each, dtype=np.uint64)
        span = np.uint64(PLANE_NBYTES)
        npu = self.planes[None, :] + blocks[:, None] * span
        start = self.address + at % 2 * SLICE_NBYTES
        host = np.uint64(start) + np.arange(npu.size, dtype=np.uint64) * span
        return Spans(npu.ravel(), host, np.full(npu.size, span))

    def values(self, at):
        """The staged memory and name of each entry of a slice."""
        each = SLICE_NBYTES // self.case.entry_nbytes
        start = at % 2 * SLICE_NBYTES
        for index in range(each):
            low = start + index * self.case.entry_nbytes
            yield at * each + index, self.staging[low : low + self.case.entry_nbytes]

    def save(self, turn):
        channel = self.channels[Direction.OUT]
        slices = self.case.nbytes // SLICE_NBYTES
        copy = channel.start(self.spans(0, 0))
        for at in range(slices):
            finish(copy)
            if at + 1 < slices:
                copy = channel.start(self.spans(at + 1, 0))
            self.put(at, turn)

    def put(self, at, turn):
        with self.env.begin(write=True) as txn:
            for number, value in self.values(at):
                txn.put(b"%d %d" % (turn % 3, number), value.data)

    def load(self, turn):
        channel = self.channels[Direction.IN]
        copies = []
        for at in range(self.case.nbytes // SLICE_NBYTES):
            if len(copies) == 2:
                finish(copies.pop(0))
            self.get(at, turn)
            copies.append(channel.start(self.spans(at, self.case.entries)))
        for copy in copies:
            finish(copy)

    def get(self, at, turn):
        with self.env.begin(buffers=True) as txn:
            for number, value in self.values(at):
                found = txn.get(b"%d %d" % (turn % 3, number))
                np.copyto(value, np.frombuffer(found, np.uint8))

    def close(self):
        for channel in self.channels.values():
            channel.close()
        self.env.close()
        del self.staging
        self.memory.free(self.address)


def finish(copy):
    while not copy.done():
        time.sleep(20e-6)
    copy.check()


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


def measure(case, url, rounds, scratch):
    seconds = {}
    kv = case.cache()
    planes = [plane for layer in kv for plane in layer]
    by_hand = ByHand(case, scratch / f"by-hand-{case.entry_nbytes}", planes)
    with running(url) as cc:
        cc.register_kvcache(kv)
        engine = Engine(case, cc)
        for turn, what in itertools.product(range(rounds), ("save", "load")):
            for name, way in (("by hand", by_hand), ("engine", engine)):
                took = seconds_of(getattr(way, what), turn)
                if turn >= rounds // 3:  # before that files and caches warm up
                    seconds.setdefault((what, name), []).append(took)
            if what == "load":
                check(planes, case)
    by_hand.close()
    return seconds


def check(planes, case):
    for plane in planes[:2]:
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
