"""What needs a process of its own: forks, exits, the vendor's sample, visible devices."""

import os

import pytest
from scripts import REGISTERED, run_python, run_script

from ems import simulator

SAMPLE = """
import torch, torch_npu
from ems import CcConfig, CcKvOption, Ems, EmsConfig, EmsErrorCode, EmsException

config = CcConfig(rank_id=8, device_id=0, model_id="llama2-13b")
Ems.init(EmsConfig(cc_config=config))
cc = Ems.get_cc()
shape, layers = (2, 4, 2, 4), 2
kvcache = [
    [torch.randn(shape, dtype=torch.float16, device="npu:1") for _ in range(2)]
    for _ in range(layers)
]
cc.register_kvcache(kvcache)
option = CcKvOption(timeout=5000)
print(cc.save([0, 1, 2, 3], [1], [4], option))
print(cc.async_load([4, 5, 6, 7], [1], [4], option).result())
assert all(torch.equal(plane[0], plane[1]) for layer in kvcache for plane in layer)
print(torch.npu.current_device())
"""


def test_the_vendors_sample_runs_unchanged_under_the_launcher(tmp_path):
    script = tmp_path / "sample.py"
    script.write_text(SAMPLE)
    bare = {
        name: value
        for name, value in os.environ.items()
        if name != "LD_LIBRARY_PATH" and not name.startswith("ASCEND_")
    }
    finished = run_python("-m", "ems.simulator", script, environment=bare)
    assert finished.stdout.splitlines() == [
        "CcResult(success=1, total=1)",
        "CcResult(success=1, total=1)",
        "0",
    ]
    assert "the tensors are on npu:1, the configured device_id is 0" in finished.stderr


FORK = (
    REGISTERED
    + """
import os

cc, kv = boot()
assert cc.save(sl(0), [11], [BS]).success == 1
set_fault("DELAY", "copy_d2h=1500000")
pending = cc.async_save(sl(1), [12], [BS])

def seen_by_child(call):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            text = repr(call())
        except EmsException as error:
            text = f"{error.status_code().name}: {error}"
        os.write(writing, text.encode())
        os._exit(0)
    os.close(writing)
    started = time.monotonic()
    text = b""
    os.set_blocking(reading, False)
    while not text and time.monotonic() < started + 30:
        try:
            text = os.read(reading, 4096)
        except BlockingIOError:
            time.sleep(0.01)
    if not text:
        os.kill(child, 9)
    os.waitpid(child, 0)
    return text.decode() or "hangs"

for name, call in {
    "exists": lambda: cc.exists([11]),
    "save": lambda: cc.save(sl(1), [13], [BS]),
    "load": lambda: cc.load(sl(1), [11], [BS]),
    "register": lambda: cc.register_kvcache(kv),
    "init": lambda: Ems.init(EmsConfig()),
    "result": lambda: pending.result(),
    "get_result": lambda: cc.get_result(pending),
    "is_ready": lambda: cc.is_ready(pending),
    "pool_stats": lambda: cc.pool_stats(),
    "counters": lambda: cc.counters(),
    "health": lambda: Ems.check_health(),
    "shutdown": lambda: Ems.shutdown(),
}.items():
    print(name, seen_by_child(call))
print("parent", pending.result(), cc.load(sl(2), [11], [BS]), Ems.check_health())
"""
)


def test_a_forked_child_gets_a_clear_error_from_every_call_and_the_parent_goes_on():
    # case 21
    printed = run_script(FORK).stdout.splitlines()
    *children, parent = printed
    by_name = dict(line.split(" ", 1) for line in children)
    assert by_name.pop("health") == "False"
    assert by_name.pop("shutdown") == "None"
    assert set(by_name) == {
        *("exists", "save", "load", "register", "init", "result", "get_result", "is_ready"),
        *("pool_stats", "counters"),
    }
    for text in by_name.values():
        assert text.startswith("EMS_INTERNAL_ERROR"), by_name
        assert "fork" in text
    assert parent == "parent CcResult(success=1, total=1) CcResult(success=1, total=1) True"


EXIT = (
    REGISTERED
    + """
cc, kv = boot()
set_fault("DELAY", "copy_d2h=100000")
futures = [cc.async_save(sl(at), [at], [BS]) for at in range(6)]
print("at the end")
"""
)


def test_the_interpreter_ends_with_work_in_flight():
    finished = run_script(EXIT)
    assert finished.stdout == "at the end\n"
    assert "Traceback" not in finished.stderr


SIGNALLED = (
    REGISTERED
    + """
import signal
import numpy

cc, kv = boot()
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: Ems.shutdown())
signal.alarm(60)

class Slots:
    def __array__(self, dtype=None, copy=None):
        signal.raise_signal(signal.SIGTERM)
        return numpy.array(sl(0))

try:
    cc.save(Slots(), [11], [BS])
except EmsException as error:
    print(error)
cc, kv = boot()
set_fault("DELAY", "copy_d2h=500000")
pending = cc.async_save(sl(0), [11], [BS])
threading.Timer(0.1, signal.pthread_kill, [threading.main_thread().ident, signal.SIGUSR1]).start()
Ems.shutdown()
print(pending.result(), Ems.get_cc())
"""
)


def test_a_signals_handler_may_shut_down_during_any_call():
    submitted, shut_down = run_script(SIGNALLED).stdout.splitlines()
    assert "Ems.shutdown has been called" in submitted
    assert shut_down == "CcResult(success=1, total=1) None"


VISIBLE = """
import torch, torch_npu
from ems import CcConfig_v1, Ems, EmsConfig, EmsException
try:
    Ems.init(EmsConfig(cc_config_v1=CcConfig_v1(rank_id=0, device_id=2, model_id="m")))
except EmsException as error:
    print(error.status_code().name, error)
Ems.init(EmsConfig(cc_config_v1=CcConfig_v1(rank_id=8, device_id=1, model_id="m")))
cc = Ems.get_cc()
cc.register_kvcache([[torch.zeros(4, 4, 1, 8, device="npu:1")]])
print(cc.save([0, 1, 2, 3], [1], [4]))
"""


def test_device_ids_count_the_visible_devices_and_a_refusal_says_which_these_are():
    # case 23
    refused, saved = run_script(VISIBLE, ASCEND_RT_VISIBLE_DEVICES="4,5").stdout.splitlines()
    assert refused.startswith("EMS_INVALID_ARGUMENT device_id is 2")
    assert "sees 2 NPUs" in refused
    assert "'4,5'" in refused
    assert saved == "CcResult(success=1, total=1)"


NO_CANN = """
import sys
import ems
from ems import CcConfig_v1, Ems, EmsConfig, EmsException
assert "torch" not in sys.modules
for _ in range(2):
    try:
        Ems.init(EmsConfig(cc_config_v1=CcConfig_v1(rank_id=0, device_id=0, model_id="m")))
    except EmsException as error:
        print(error.status_code().name, error)
print(Ems.get_cc(), Ems.check_health())
"""


@pytest.mark.parametrize("error", ["ImportError", "OSError", "RuntimeError"])
def test_a_torch_npu_without_cann_is_one_clear_error(tmp_path, error):
    # case 37
    text = "libhccl.so: cannot open shared object file"
    (tmp_path / "torch_npu.py").write_text(f"raise {error}({text!r})\n")
    path = f"{tmp_path}:{simulator.HOME.parents[2]}"
    finished = run_script(NO_CANN, PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    first, second, last = finished.stdout.splitlines()
    assert first == second
    assert first.startswith("EMS_INTERNAL_ERROR")
    assert text in first
    assert "set_env.sh" in first
    assert last == "None False"
