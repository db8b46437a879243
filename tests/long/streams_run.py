"""Saves see what was queued before them, loads disturb nothing that was: round after round.

A kernel on the caller's stream, which is slow, writes a block just before it is saved and writes
over it just after; another reads a block's old content just before it is loaded. On the default
stream, on side streams, on three threads at once, on two devices, in every queue mode.
"""

import ast
import sys
from pathlib import Path

_TESTS = Path(__file__).parent.parent
sys.path.append(str(_TESTS))

from scripts import REGISTERED, run_script  # noqa: E402 - the path must be known

UNIT, AMOUNT = "rounds", 10_000

MODES = {
    "queue 0": {"TASK_QUEUE_ENABLE": "0"},
    "queue 1": {"TASK_QUEUE_ENABLE": "1"},
    "queue 2": {"TASK_QUEUE_ENABLE": "2"},
    "queue per stream": {"PER_STREAM_QUEUE": "1"},
}
PLACES = ("default stream", "side stream", "threads", "npu:1")
_THREADS = 3
_PIECE = 120
"""Rounds of one place in one process."""

_RACES = (
    REGISTERED
    + """
import itertools
from contextlib import nullcontext
from ems.device.ascend import AscendDevice

cc, kv = boot(blocks=16)
other = [[torch.zeros_like(x).to("npu:1") for x in layer] for layer in kv]
hashes = itertools.count(1)

def planes(cache):
    return [plane for layer in cache for plane in layer]

def is_all(cache, block, value):
    return all(bool((plane[block].cpu() == value).all()) for plane in planes(cache))

def moved(call, waits, *arguments):
    # in turn: the synchronous call, and the future of the other
    done = getattr(cc, call)(*arguments) if waits else getattr(cc, "async_" + call)(*arguments)
    done = done if waits else done.result()
    assert done.success == 1, done

def races(cache, stream, count, saved=1, loaded=2):
    '''Return how many of `count` saves were stale, and how many loads came too early.'''
    stale = early = 0
    with nullcontext() if stream is None else torch.npu.stream(stream):
        for turn in range(count):
            value, hash = turn % 1000 + 1, next(hashes)
            for plane in planes(cache):
                plane[saved].fill_(value)        # queued, and slow
            moved("save", turn % 2, sl(saved), [hash], [BS])
            for plane in planes(cache):
                plane[saved].fill_(-1)           # the block may be used again
                plane[loaded].fill_(-2)
            torch.npu.current_stream(cache[0][0].device).synchronize()
            seen = [plane[loaded].clone() for plane in planes(cache)]   # queued, and slow
            moved("load", turn % 2, sl(loaded), [hash], [BS])
            read = [plane[loaded].clone() for plane in planes(cache)]   # right after
            early += not all(bool((old.cpu() == -2).all()) for old in seen)
            stale += not all(bool((new.cpu() == value).all()) for new in read)
            assert is_all(cache, 0, 0)
    return stale, early

def on_threads(count, threads):
    found, failed = [], []
    def race(number):
        try:
            at = 1 + 2 * number
            found.append(races(kv, torch.npu.Stream(), count, at, at + 1))
        except BaseException as error:
            failed.append(error)
    running = [threading.Thread(target=race, args=(number,)) for number in range(threads)]
    for one in running: one.start()
    for one in running: one.join()
    assert not failed, failed
    return tuple(map(sum, zip(*found)))

def everywhere(count):
    cc.register_kvcache(kv)
    found = {
        "default stream": races(kv, None, count),
        "side stream": races(kv, torch.npu.Stream(), count),
        "threads": on_threads(max(4, count // THREADS), THREADS),
    }
    cc.register_kvcache(other)
    found["npu:1"] = races(other, torch.npu.Stream(device="npu:1"), count)
    assert torch.npu.current_device() == 0
    return found

class Finished:
    source = "nobody"
    def finished(self):
        return True

found = {}
with knobs(DELAY="*=%d" % (100 + SEED % 5 * 50)):
    found["sound"] = everywhere(ROUNDS)
AscendDevice.caller_work = lambda self: Finished()
with knobs(DELAY="*=10000,copy_h2d=0,copy_d2h=0"):  # far longer than a thread waits its turn
    found["careless"] = everywhere(4)
Ems.shutdown()
print(found)
"""
)


def races(mode, rounds, seed=4):
    """Race in a process of its own; return (stale, early) by place: sound, and careless."""
    settings = f"ROUNDS, SEED, THREADS = {rounds}, {seed}, {_THREADS}\n"
    return ast.literal_eval(run_script(settings + _RACES, **MODES[mode]).stdout)


def check(found):
    """See that nothing was stale or early, and that whoever does not wait is caught at it."""
    assert found["sound"] == dict.fromkeys(PLACES, (0, 0)), found
    for stale, early in found["careless"].values():
        assert stale > 0, found
        assert early > 0, found


def run(amount, seed):
    """Make so many rounds over all modes and places; return what was seen."""
    made = careless = at = 0
    while made < amount:
        mode = list(MODES)[at % len(MODES)]
        rounds = max(_THREADS, min(_PIECE, -(-(amount - made) // len(PLACES))))
        try:
            found = races(mode, rounds, seed + at)
            check(found)
        except Exception as error:
            raise AssertionError(f"{mode}, seed {seed}, process {at}") from error
        made += rounds * (len(PLACES) - 1) + rounds // _THREADS * _THREADS
        careless += sum(stale + early for stale, early in found["careless"].values())
        at += 1
    return f"{made:,} rounds in {at} processes, none stale, none early; careless: {careless} caught"
