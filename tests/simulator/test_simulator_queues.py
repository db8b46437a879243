"""What depends on settings that torch_npu reads once: each test has processes of its own."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.multiprocessing
import torch_streams
from runtime_calls import output_of, run_python

STREAM_CHECKS = [name for name in dir(torch_streams) if name.startswith("check_")]


@pytest.mark.parametrize("mode", ["0", "1", "2"])
def test_streams_and_events_of_torch_work_in_every_queue_mode(mode):
    code = "import runpy, torch_streams; runpy.run_path(torch_streams.__file__, None, '__main__')"
    told = output_of(code, TASK_QUEUE_ENABLE=mode)
    assert len(told.splitlines()) == len(STREAM_CHECKS)


def test_torch_is_out_of_memory_when_a_device_is_full():
    output_of(
        """
        import torch
        kept = []
        try:
            while True:
                kept.append(torch.empty(100 << 20, dtype=torch.uint8, device="npu:0"))
        except torch.OutOfMemoryError:
            pass
        assert len(kept) == 10
        assert torch.npu.memory_stats()["num_ooms"] == 1
        kept.clear()
        torch.npu.empty_cache()
        assert torch.npu.mem_get_info(0) == (1 << 30, 1 << 30)
        torch.empty(900 << 20, dtype=torch.uint8, device="npu:0")
        """,
        EMS_SIM_MEMORY="1G",
        EMS_SIM_ACCOUNT="tests-full-of-torch",
    )


def test_expandable_segments_of_torch_grow_and_shrink():
    output_of(
        """
        import torch
        assert torch.npu.device_count() == 2
        kept = [torch.full((100 << 20,), i, dtype=torch.uint8, device="npu:1") for i in range(4)]
        assert [int(each[12345]) for each in kept] == [0, 1, 2, 3]
        both = torch.cat(kept[:2])
        assert int(both[-1]) == 1
        del kept, both
        torch.npu.empty_cache()
        assert torch.npu.mem_get_info(1) == (1 << 30, 1 << 30)
        """,
        EMS_SIM_MEMORY="1G",
        EMS_SIM_ACCOUNT="tests-segments",
        ASCEND_RT_VISIBLE_DEVICES="2,5",
        PYTORCH_NPU_ALLOC_CONF="expandable_segments:True",
    )


def test_a_refused_launch_makes_the_queue_of_torch_drop_all_that_follows():
    # how torch_npu behaves: why the library asks for more than an event to become done
    output_of(
        """
        import torch
        from ems.simulator import control
        source = torch.arange(8.0).pin_memory()
        there = torch.zeros(8, device="npu:0")
        torch.npu.synchronize()
        with control.knobs(FAIL_LAUNCH="1"):
            refusal = None
            for _ in range(100):  # torch tells with this call, or with one of the next
                try:
                    there.copy_(source, non_blocking=True)
                    torch.npu.synchronize()
                except RuntimeError as error:
                    refusal = error
                    break
            assert refusal
        event = torch.npu.Event()
        try:
            event.record()
        except RuntimeError:
            event.record()
        copies = control.counter("copies")
        assert torch.npu.current_stream().query()
        assert not event.query()
        assert control.counter("copies") == copies
        assert torch.ones(2, device="npu:1").tolist() == [1, 1]
        import os
        os._exit(0)
        """
    )


def test_without_the_queue_a_refused_launch_is_raised_at_the_call():
    output_of(
        """
        import torch
        from ems.simulator import control
        source = torch.arange(8.0).pin_memory()
        there = torch.zeros(8, device="npu:0")
        torch.npu.synchronize()
        refusal = None
        with control.knobs(FAIL_LAUNCH="1"):
            try:
                there.copy_(source, non_blocking=True)
            except RuntimeError as error:
                refusal = str(error)
        assert "injected refusal of launch 1" in refusal, refusal
        there.copy_(source, non_blocking=True)
        assert there.tolist() == source.tolist()
        """,
        TASK_QUEUE_ENABLE="0",
    )


def test_a_copy_that_fails_on_a_stream_is_raised_by_each_synchronise():
    output_of(
        """
        import torch
        from ems.simulator import control
        there, source = torch.empty(8, device="npu:0"), torch.zeros(8).pin_memory()
        side, event = torch.npu.Stream(), torch.npu.Event()
        torch.npu.synchronize()
        def raises(synchronize):
            try:
                synchronize()
            except RuntimeError as error:
                return "injected failure" in str(error)
            return False
        with control.knobs(FAIL_COPY="1"), torch.npu.stream(side):
            there.copy_(source, non_blocking=True)
            event.record(side)
            event.synchronize()
        assert event.query()
        assert raises(side.synchronize)
        assert raises(side.synchronize)
        assert raises(torch.npu.synchronize)
        torch.npu.current_stream().synchronize()
        assert there.copy_(source).tolist() == [0] * 8
        """
    )


def test_torch_says_which_settings_were_not_understood():
    status, _, errors = run_python(
        "import torch; torch.zeros(1, device='npu:0')", EMS_SIM_DELAY="much"
    )
    assert status != 0
    assert "ems.simulator: EMS_SIM_DELAY=much is not understood" in errors
    assert "RuntimeError" in errors


def test_a_process_ends_with_copies_in_flight():
    told = output_of(
        """
        import torch
        source = torch.zeros(1 << 18).pin_memory()
        there = torch.empty(1 << 18, device="npu:0")
        for _ in range(50):
            there.copy_(source, non_blocking=True)
        print("leaves")
        """,
        EMS_SIM_COPY_LATENCY_US="2000",
    )
    assert told == "leaves\n"


def change_shared_tensor(asked, told):
    tensor = asked.get()
    told.put((tensor[:3].tolist(), str(tensor.device)))
    tensor.fill_(9)
    torch.npu.synchronize(1)
    told.put("changed")
    asked.get()


def test_a_tensor_is_shared_with_a_spawned_process():
    context = torch.multiprocessing.get_context("spawn")
    asked, told = context.Queue(), context.Queue()
    process = context.Process(target=change_shared_tensor, args=(asked, told))
    process.start()
    tensor = torch.arange(1000.0, device="npu:1")
    torch.npu.synchronize(1)
    asked.put(tensor)
    assert told.get(timeout=100) == ([0, 1, 2], "npu:1")
    assert told.get(timeout=100) == "changed"
    assert tensor.cpu()[:3].tolist() == [9, 9, 9]
    asked.put(None)
    process.join(timeout=100)
    assert process.exitcode == 0


def test_a_script_that_knows_nothing_of_the_simulator_runs_on_it(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import torch\n"
        "print(torch.zeros((2, 4), device='npu:1', dtype=torch.float16).sum().item())\n"
    )
    command = [sys.executable, "-m", "ems.simulator", str(script)]
    run = subprocess.run(command, cwd=Path("/"), capture_output=True, text=True, check=True)
    assert run.stdout == "0.0\n"
