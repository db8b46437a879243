"""Saves see what was queued before them, loads disturb nothing that was: in every queue mode."""

import ast

import pytest
from scripts import REGISTERED, run_script

ROUNDS = 40

RACES = (
    REGISTERED
    + f"ROUNDS = {ROUNDS}"
    + """
from contextlib import nullcontext
from ems.device.ascend import AscendDevice

cc, kv = boot()
other = [[torch.zeros_like(x).to("npu:1") for x in layer] for layer in kv]
hashes = iter(range(1, 1 << 30))

def planes(cache):
    return [plane for layer in cache for plane in layer]

def is_all(cache, block, value):
    return all(bool((plane[block].cpu() == value).all()) for plane in planes(cache))

def races(cache, stream, count):
    '''Return how many of `count` saves were stale, and how many loads came too early.'''
    stale = early = 0
    with nullcontext() if stream is None else torch.npu.stream(stream):
        for turn in range(count):
            value, hash = turn % 1000 + 1, next(hashes)
            for plane in planes(cache):
                plane[1].fill_(value)            # queued, and slow
            saving = cc.async_save(sl(1), [hash], [BS])
            assert saving.result().success == 1
            for plane in planes(cache):
                plane[1].fill_(-1)               # the block may be used again
                plane[2].fill_(-2)
            torch.npu.current_stream(cache[0][0].device).synchronize()
            seen = [plane[2].clone() for plane in planes(cache)]   # queued, and slow
            loading = cc.async_load(sl(2), [hash], [BS])
            assert loading.result().success == 1
            early += not all(bool((old.cpu() == -2).all()) for old in seen)
            stale += not is_all(cache, 2, value)
            assert is_all(cache, 0, 0)
    return stale, early

def on_thread(call, *arguments):
    box = []
    thread = threading.Thread(target=lambda: box.append(call(*arguments)))
    thread.start()
    thread.join()
    return box[0]

def everywhere(count):
    cc.register_kvcache(kv)
    found = {
        "default stream": races(kv, None, count),
        "side stream": races(kv, torch.npu.Stream(), count),
        "thread": on_thread(lambda: races(kv, torch.npu.Stream(), count)),
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
with knobs(DELAY="*=300"):
    found["sound"] = everywhere(ROUNDS)
AscendDevice.caller_work = lambda self: Finished()
with knobs(DELAY="*=3000,copy_h2d=0,copy_d2h=0"):
    found["careless"] = everywhere(4)
Ems.shutdown()
print(found)
"""
)

MODES = {
    "queue 0": {"TASK_QUEUE_ENABLE": "0"},
    "queue 1": {"TASK_QUEUE_ENABLE": "1"},
    "queue 2": {"TASK_QUEUE_ENABLE": "2"},
    "queue per stream": {"PER_STREAM_QUEUE": "1"},
}


@pytest.mark.parametrize("mode", MODES)
def test_no_save_is_stale_and_no_load_is_early(mode):
    found = ast.literal_eval(run_script(RACES, **MODES[mode]).stdout)
    nothing = dict.fromkeys(["default stream", "side stream", "thread", "npu:1"], (0, 0))
    assert found["sound"] == nothing
    # the proof that the rounds can tell: whoever does not wait for the caller's work is caught
    for stale, early in found["careless"].values():
        assert stale > 0
        assert early > 0
