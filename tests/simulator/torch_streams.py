"""Streams and events through torch; test_simulator_queues.py runs it in each queue mode.

Order is enforced by gates, tasks that keep a stream busy: nothing here depends on time.
"""

import threading

import torch
from runtime_calls import Gate, done

COUNT = 1 << 14
NUMBERS = torch.arange(COUNT, dtype=torch.float32)


def gate_on(stream):
    torch.npu.set_device(stream.device)
    return Gate(stream.npu_stream)


def check_a_non_blocking_copy_returns_before_it_has_run():
    stream, event = torch.npu.current_stream(), torch.npu.Event()
    source, target = NUMBERS.pin_memory(), torch.zeros(COUNT).pin_memory()
    gate = gate_on(stream)
    there = torch.empty(COUNT, device="npu:0").copy_(source, non_blocking=True)
    target.copy_(there, non_blocking=True)
    event.record()
    assert not event.query()
    assert not stream.query()
    assert not target.any()
    gate.open()
    event.synchronize()
    assert event.query()
    assert torch.equal(target, source)


def check_streams_do_not_wait_for_each_other():
    blocked, free = torch.npu.Stream(), torch.npu.Stream()
    target = torch.zeros(COUNT).pin_memory()
    there = NUMBERS.to("npu:0")
    gate = gate_on(blocked)
    with torch.npu.stream(free):
        target.copy_(there, non_blocking=True)
    free.synchronize()
    assert torch.equal(target, NUMBERS)
    assert not blocked.query()
    gate.open()
    blocked.synchronize()


def check_an_event_orders_two_streams():
    first, second, event = torch.npu.Stream(), torch.npu.Stream(), torch.npu.Event()
    source, target = NUMBERS.pin_memory(), torch.zeros(COUNT).pin_memory()
    there = torch.zeros(COUNT, device="npu:0")
    torch.npu.synchronize()
    gate = gate_on(first)
    with torch.npu.stream(first):
        there.copy_(source, non_blocking=True)
        event.record(first)
    second.wait_event(event)
    with torch.npu.stream(second):
        target.copy_(there, non_blocking=True)
    assert not second.query()
    gate.open()
    second.synchronize()
    assert torch.equal(target, source)


def check_a_stream_waits_for_a_stream():
    first, second = torch.npu.Stream(), torch.npu.Stream()
    there, target = torch.zeros(COUNT, device="npu:0"), torch.zeros(COUNT).pin_memory()
    torch.npu.synchronize()
    gate = gate_on(first)
    with torch.npu.stream(first):
        there.fill_(7)
    second.wait_stream(first)
    with torch.npu.stream(second):
        target.copy_(there, non_blocking=True)
    done_event = second.record_event()
    assert not done_event.query()
    gate.open()
    done_event.synchronize()
    assert (target == 7).all()


def check_time_between_events():
    first, last = torch.npu.Event(enable_timing=True), torch.npu.Event(enable_timing=True)
    first.record()
    torch.ones(COUNT, device="npu:0")
    last.record()
    torch.npu.synchronize()
    assert first.elapsed_time(last) >= 0


def check_pageable_memory_may_change_after_the_call():
    source, target = NUMBERS.clone(), torch.zeros(COUNT)
    there = torch.empty(COUNT, device="npu:0")
    there.copy_(source, non_blocking=True)
    source.zero_()
    target.copy_(there, non_blocking=True)
    assert torch.equal(target, NUMBERS)


def check_pinned_memory_is_not_used_again_while_a_copy_runs():
    stream = torch.npu.current_stream()
    there = torch.empty(COUNT, device="npu:0")
    torch.npu.synchronize()
    gate = gate_on(stream)
    source = NUMBERS.pin_memory()
    there.copy_(source, non_blocking=True)
    address = source.data_ptr()
    del source
    other = torch.zeros(COUNT).pin_memory()
    assert other.data_ptr() != address
    gate.open()
    assert torch.equal(there.cpu(), NUMBERS)


def check_device_memory_is_kept_for_the_streams_that_use_it():
    stream = torch.npu.Stream()
    memory = NUMBERS.to("npu:0")
    target = torch.zeros(COUNT).pin_memory()
    gate = gate_on(stream)
    with torch.npu.stream(stream):
        target.copy_(memory, non_blocking=True)
    memory.record_stream(stream)
    del memory
    torch.zeros(COUNT, device="npu:0")
    gate.open()
    stream.synchronize()
    assert torch.equal(target, NUMBERS)


def check_each_thread_has_its_device():
    seen = []

    def use(device):
        torch.npu.set_device(device)
        numbers = torch.full((100,), float(device), device="npu")
        stream = torch.npu.Stream()
        stream.wait_stream(torch.npu.current_stream())
        with torch.npu.stream(stream):
            target = torch.empty(100, pin_memory=True).copy_(numbers + 1, non_blocking=True)
        stream.synchronize()
        seen.append((device, torch.npu.current_device(), str(numbers.device), float(target[99])))

    threads = [threading.Thread(target=use, args=(device,)) for device in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [(i, i, f"npu:{i}", i + 1.0) for i in range(8)]


def check_devices_and_their_streams_are_entered_and_left():
    stream = torch.npu.Stream(device=2)
    with torch.npu.stream(stream):
        assert torch.npu.current_device() == 2
        numbers = torch.ones(5, device="npu:2")
    stream.synchronize()
    assert torch.npu.current_device() == 0
    with torch.npu.device(3):
        assert str(torch.empty(4, device="npu").device) == "npu:3"
    assert torch.npu.current_device() == 0
    assert numbers.cpu().tolist() == [1] * 5


def check_a_raw_copy_on_a_stream_of_torch_is_in_order():
    stream = torch.npu.current_stream()
    there, target = NUMBERS.to("npu:0"), torch.zeros(COUNT).pin_memory()
    there.add_(1)
    nbytes = 4 * COUNT
    # reading npu_stream waits until what is queued has been launched
    where = (target.data_ptr(), nbytes, there.data_ptr(), nbytes, 2, stream.npu_stream)
    done("aclrtMemcpyAsync", *where)
    stream.synchronize()
    assert torch.equal(target, NUMBERS + 1)


if __name__ == "__main__":
    for name, check in list(globals().items()):
        if name.startswith("check_"):
            torch.npu.set_device(0)
            check()
            print(name.removeprefix("check_"))  # noqa: T201 - what the test counts
