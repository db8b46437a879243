import pytest
from scripts import REGISTERED, run_script

DEAD = (
    REGISTERED
    + """
cc, kv = boot()
assert cc.save(sl(0), [1], [BS]).success == 1
with knobs(FAIL_LAUNCH="1"):
    try:
        kv[0][0].fill_(1)
        time.sleep(0.3)
    except RuntimeError:
        pass
try:  # the first record tells torch's caller of the refusal, the next are dropped without a word
    torch.npu.Event().record(torch.npu.current_stream("npu:0"))
except RuntimeError:
    pass
print("save", code_of(lambda: cc.save(sl(1), [2], [BS], CcKvOption(timeout=0))))
print("load", code_of(lambda: cc.load(sl(2), [1], [BS], CcKvOption(timeout=0))))
print("save with a time-out", code_of(lambda: cc.save(sl(1), [3], [BS], CcKvOption(timeout=60000))))
print("health", Ems.check_health())
Ems.shutdown()
print("shut down")
"""
)


@pytest.mark.parametrize("mode", ["1", "2"])
def test_a_dead_queue_of_torch_ends_every_request_also_without_a_time_out(mode):
    printed = run_script(DEAD, TASK_QUEUE_ENABLE=mode).stdout.splitlines()
    assert printed == [
        "save EMS_INTERNAL_ERROR",
        "load EMS_INTERNAL_ERROR",
        "save with a time-out EMS_INTERNAL_ERROR",
        "health False",
        "shut down",
    ]
