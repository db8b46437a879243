"""Whether a process that saves, loads and asks for ever stays as large as it is.

    python tests/benchmarks/resident_memory.py [--operations 1000000] [--pool URL]

Small blocks under hashes that never come again, in a pool that is full soon: every save evicts.
Prints the resident memory, threads and objects of Python after every tenth of the operations;
exit code 1 where the second half still grows.
"""
# ruff: noqa: E402, T201 - the runtime is simulated before torch is imported; it prints a table

import argparse
import gc
import sys
import time
from pathlib import Path

from ems import simulator

simulator.ensure()

import torch

from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig

BLOCKS, BLOCK_SIZE = 64, 16
OPTION = CcKvOption(timeout=3_600_000)  # the process may be stopped for a while
PARTS = 10
ALLOWED_NBYTES = 2 << 20
"""Growth from the middle to the end; the allocator of C gives and takes about that."""
_PAGE = 4096


def resident():
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def initialised(pool):
    Ems.init(EmsConfig(cc_config_v1=CcConfig_v1(rank_id=0, device_id=0, model_id="rss"), pool=pool))
    layers = [
        [torch.zeros(BLOCKS, BLOCK_SIZE, 2, 16, dtype=torch.float16, device="npu:0")]
        for _ in range(2)
    ]
    cc = Ems.get_cc()
    cc.register_kvcache(layers)
    return cc


def operate(cc, first, count):
    """Save a block, load it elsewhere, ask for it and for another: so many calls in all."""
    source, target = list(range(BLOCK_SIZE)), list(range(BLOCK_SIZE, 2 * BLOCK_SIZE))
    offsets = [BLOCK_SIZE]
    for number in range(first, first + count, 4):
        hashes = [number * 7919 + 1]
        if cc.save(source, hashes, offsets, OPTION).success != 1:
            sys.exit(f"save {number} was not stored")
        if cc.load(target, hashes, offsets, OPTION).success != 1:
            sys.exit(f"load {number} missed")
        cc.exists(hashes, OPTION)
        cc.load(target, [number * 7919 + 2], offsets, OPTION)  # a miss


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--operations", type=int, default=1_000_000)
    parser.add_argument("--pool", default="memory://?capacity=2MiB&segment=2MiB")
    arguments = parser.parse_args()
    cc = initialised(arguments.pool)
    step = arguments.operations // PARTS
    found = [resident()]
    print(f"{'operations':>10}  {'MiB':>8}  {'growth KiB':>10}  {'s':>6}  threads  objects")
    for part in range(PARTS):
        started = time.perf_counter()
        operate(cc, part * step, step)
        found.append(resident())
        print(
            f"{(part + 1) * step:>10}  {found[-1] / 2**20:8.1f}  "
            f"{(found[-1] - found[-2]) / 1024:10.0f}  {time.perf_counter() - started:6.1f}  "
            f"{len(list(Path('/proc/self/task').iterdir())):>7}  {len(gc.get_objects())}",
            flush=True,
        )
    grown = found[-1] - found[PARTS // 2]
    allowed = f"allowed are {ALLOWED_NBYTES >> 10}"
    print(f"grown by {grown / 1024:.0f} KiB from the middle to the end, {allowed}")
    Ems.shutdown()
    return grown > ALLOWED_NBYTES


if __name__ == "__main__":
    sys.exit(main())
