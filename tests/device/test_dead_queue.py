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


LONG_WORK = (
    REGISTERED
    + """
cc, kv = boot("npu:1")
torch.npu.synchronize(1)
for way in (cc.async_save, cc.async_load):  # each is the first call of its direction
    with knobs(DELAY="*=1500000"):
        kv[0][0].fill_(1)
        print(way(sl(0), [1], [BS], CcKvOption(timeout=60000)).result())
print("health", Ems.check_health())
"""
)


def test_a_first_request_behind_long_work_on_another_npu_than_the_first_is_no_dead_queue():
    printed = run_script(LONG_WORK).stdout.splitlines()
    assert printed == ["CcResult(success=1, total=1)"] * 2 + ["health True"]
