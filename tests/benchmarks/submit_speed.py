"""How long calls of the SDK hold their caller's thread, beside what they should take.

    python tests/benchmarks/submit_speed.py [--rounds 30]

Medians of calls in turn, in milliseconds; what other programs take of the processors is in them.
A call that submits is waited for after its time has been taken.
"""
# ruff: noqa: E402, T201 - the runtime is simulated before torch is imported; it prints a table

import argparse
import statistics
import time

from ems import simulator

simulator.ensure()

import numpy as np
import torch

from ems import CcConfig_v1, CcFuture, CcKvOption, Ems, EmsConfig, KvBufferWrapper

BLOCKS, BLOCK_SIZE = 1024, 128
TOKENS = BLOCKS * BLOCK_SIZE
KEYS, BUFFERS_OF_KEY, BUFFER_NBYTES = 1000, 100, 16
LOOKED_FOR = 10_000
OPTION = CcKvOption(timeout=120_000)


def initialised():
    config = CcConfig_v1(rank_id=0, device_id=0, model_id="submit speed")
    Ems.init(EmsConfig(cc_config_v1=config, pool="memory://?capacity=64MiB&segment=64MiB"))
    plane = torch.zeros(BLOCKS, BLOCK_SIZE, 1, 16, dtype=torch.float16, device="npu:0")
    cc = Ems.get_cc()
    cc.register_kvcache([[plane]])
    return cc, plane


def cases(cc, plane):
    """Return name, goal in milliseconds, and the call."""
    slots, hashes, offsets = np.arange(TOKENS), list(range(BLOCKS)), [BLOCK_SIZE] * BLOCKS
    slot_list, token_list = slots.tolist(), (slots % 50_000).tolist()
    keys = [f"vllm@tenant@pp0@tp1@0@{at}" for at in range(KEYS)]
    addresses = iter(range(plane.data_ptr(), plane.data_ptr() + plane.nbytes, BUFFER_NBYTES))
    values = [
        [KvBufferWrapper(next(addresses), BUFFER_NBYTES) for _ in range(BUFFERS_OF_KEY)]
        for _ in range(KEYS)
    ]
    looked_for = [at * 7919 - (1 << 62) for at in range(LOOKED_FOR)]
    return [
        ("save, slots as a list", 6, lambda: cc.async_save(slot_list, hashes, offsets, OPTION)),
        ("save, slots as an array", 1, lambda: cc.async_save(slots, hashes, offsets, OPTION)),
        (
            "save, token ids",
            20,
            lambda: cc.async_save(slot_mapping=slots, token_ids=token_list, option=OPTION),
        ),
        ("save, 100,000 buffers", 20, lambda: cc.async_save(OPTION, keys, values)),
        ("load, 100,000 buffers", 20, lambda: cc.async_load(OPTION, keys, values)),
        ("exists, 10,000 hashes", 10, lambda: cc.exists(looked_for, OPTION)),
    ]


def measured(call):
    """Return the milliseconds that a call held its caller."""
    start = time.perf_counter()
    result = call()
    held = time.perf_counter() - start
    if isinstance(result, CcFuture):
        result.result()
    return held * 1e3


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    todo = cases(*initialised())
    times = {name: [] for name, _, _ in todo}
    for turn in range(rounds + 1):
        for name, _, call in todo:
            held = measured(call)
            if turn:  # the first one warms up
                times[name].append(held)
    print(f"{'':26}{'median':>9}{'goal':>7}{'best':>9}  ms, {rounds} calls each")
    for name, goal, _ in todo:
        median, best = statistics.median(times[name]), min(times[name])
        verdict = "" if median <= goal else "  over"
        print(f"{name:26}{median:9.2f}{goal:7}{best:9.2f}{verdict}")
    Ems.shutdown()


if __name__ == "__main__":
    main()
