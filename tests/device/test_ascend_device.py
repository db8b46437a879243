import ctypes
import threading
import time
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch_npu
from bounded import PATIENCE, within

from ems import device as device_layer
from ems.common.exception import DeviceFailed, EmsErrorCode, PoolUnavailable
from ems.device import acl, ascend
from ems.device.ascend import AscendDevice, PinnedMemory
from ems.device.base import Direction, StillMoving
from ems.layout.copy_plan import Spans
from ems.simulator.control import counter, knobs

NBYTES = 256
LOOP = {"FAIL_LAUNCH": "1:207000"}
"""The next launch says "not supported", as a batch does where the product lacks it."""


OPENED = []
"""Channels that are to be closed."""


class Bench:
    """Some spans of device memory on one NPU, as many of pinned memory, and a channel."""

    def __init__(self, index, *, direction=Direction.OUT, count=8):
        self.device = AscendDevice(index)
        self.memory = PinnedMemory(index)
        self.host = self.memory.allocate(count * NBYTES)
        shape = (count, NBYTES)
        self.tensor = torch.randint(0, 256, shape, dtype=torch.uint8).to(f"npu:{index}")
        ctypes.memset(self.host, 0, count * NBYTES)
        starts = np.arange(count, dtype=np.uint64) * np.uint64(NBYTES)
        self.spans = Spans(
            np.uint64(self.tensor.data_ptr()) + starts,
            np.uint64(self.host) + starts[::-1],
            np.full(count, NBYTES, np.uint64),
        )
        self.direction = direction
        self.channel = self.device.open_channel(direction)
        OPENED.append(self.channel)

    def start(self):
        return self.channel.start(self.spans)

    def copy(self):
        """Copy once, as the pipeline does."""
        copy = self.start()
        until(copy.done)
        copy.check()

    def host_rows(self):
        """Return the pinned memory, its rows in the order of the tensor's."""
        raw = ctypes.string_at(self.host, self.tensor.numel())
        return np.frombuffer(raw, np.uint8).reshape(tuple(self.tensor.shape))[::-1].copy()

    def is_copied(self):
        return bool((self.host_rows() == self.tensor.cpu().numpy()).all())


def until(condition):
    """Poll until a condition holds."""
    limit = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < limit, "it does not happen"
        time.sleep(1e-4)


def on_thread(scenario, *arguments, **keywords):
    """Run on a thread, which a channel binds to its device, and return what it returns."""

    def run():
        try:
            return scenario(*arguments, **keywords)
        finally:
            # a stream that has failed fails every later synchronisation of its device
            while OPENED:
                OPENED.pop().close()

    return within(run)


@pytest.mark.parametrize("direction", Direction, ids=lambda direction: direction.value)
@pytest.mark.parametrize("faults", [{}, LOOP], ids=["batch", "one by one"])
def test_every_span_is_copied(direction, faults):
    def scenario():
        bench = Bench(1, direction=direction)
        wanted = bench.tensor.cpu().numpy()
        if direction is Direction.IN:
            ctypes.memmove(bench.host, wanted[::-1].tobytes(), wanted.size)
            bench.tensor.zero_()
            torch.npu.synchronize()
        before = counter("copies")
        with knobs(**faults):
            bench.copy()
        bench.copy()
        assert bench.is_copied()
        assert (bench.tensor.cpu().numpy() == wanted).all()
        assert not bench.device.lost
        return counter("copies") - before

    copies = on_thread(scenario)
    assert copies >= (16 if faults else 2)


def test_a_batch_that_is_not_supported_is_not_tried_again():
    def scenario():
        bench = Bench(1)
        with knobs(**LOOP):
            bench.copy()
        with knobs(FAIL_LAUNCH="10000"):
            launches = counter("launches")
            bench.copy()
            return counter("launches") - launches

    assert on_thread(scenario) >= 8


def test_a_runtime_without_the_batched_copy_copies_one_by_one(monkeypatch):
    def scenario():
        bench = Bench(1)
        monkeypatch.setattr(bench.channel, "_batched", False)
        bench.copy()
        assert bench.is_copied()

    on_thread(scenario)
    assert acl.Acl().has_batched_copy


def test_two_copies_are_under_way_at_once_and_each_is_checked_by_itself():
    def scenario():
        bench = Bench(1)
        with knobs(DELAY="copy_d2h=300000"):
            first, second = bench.start(), bench.start()
            assert not first.done()
        for copy in (first, second):
            until(copy.done)
            copy.check()
        assert bench.is_copied()

    on_thread(scenario)


def test_a_copy_that_failed_is_found_by_the_check_though_its_event_has_completed():
    def scenario():
        bench = Bench(7)
        with knobs(FAIL_COPY="1"):
            copy = bench.start()
            until(copy.done)
            with pytest.raises(DeviceFailed, match="507052") as failed:
                copy.check()
        assert failed.value.status_code() == EmsErrorCode.EMS_INTERNAL_ERROR
        assert not bench.is_copied()
        assert "507052" in bench.device.lost
        return bench

    bench = on_thread(scenario)

    def later():
        with pytest.raises(DeviceFailed, match="is lost"):
            bench.start()
        with pytest.raises(DeviceFailed, match="is lost"):
            bench.channel.start(bench.spans)
        Bench(6).copy()

    on_thread(later)


@pytest.fixture
def unreached(monkeypatch):
    """Have no event be reached: one behind a failure is not, where that stops the stream."""
    monkeypatch.setattr(ascend, "_SUSPECT_AFTER", 0.05)
    monkeypatch.setattr(acl.Acl, "event_complete", lambda *_: False)


@pytest.mark.usefixtures("unreached")
def test_a_copy_that_failed_is_found_though_its_event_is_never_reached():
    def scenario():
        bench = Bench(7)
        with knobs(FAIL_COPY="1"):
            copy = bench.start()
            until(copy.done)
        with pytest.raises(DeviceFailed, match="507052"):
            copy.check()
        assert "507052" in bench.device.lost

    on_thread(scenario)


@pytest.mark.usefixtures("unreached")
def test_a_failure_that_is_told_once_only_is_not_lost_between_done_and_check(monkeypatch):
    told = iter([acl.AclError("aclrtSynchronizeStreamWithTimeout", 507052)])

    def synchronize(*_):
        for failure in told:
            raise failure

    def scenario():
        bench = Bench(6)
        with monkeypatch.context() as patched:
            patched.setattr(acl.Acl, "synchronize_stream", synchronize)
            copy = bench.start()
            until(copy.done)
            with pytest.raises(DeviceFailed, match="507052"):
                copy.check()

    on_thread(scenario)


def test_a_long_copy_is_not_taken_for_a_failed_one(monkeypatch):
    monkeypatch.setattr(ascend, "_SUSPECT_AFTER", 0.05)

    def scenario():
        bench = Bench(5)
        started = time.monotonic()
        with knobs(DELAY="copy_d2h=300000"):
            copy = bench.start()
            until(copy.done)
        assert time.monotonic() - started > 0.2
        copy.check()
        assert bench.is_copied()
        assert not bench.device.lost

    on_thread(scenario)


def test_the_reason_for_which_a_device_was_lost_first_is_kept():
    device = AscendDevice(1)
    device.give_up("first")
    device.give_up("second")
    assert device.lost == "first"


def test_a_refused_launch_is_reported_with_its_call_and_loses_the_device():
    def scenario():
        bench = Bench(6)
        with knobs(FAIL_LAUNCH="1"), pytest.raises(DeviceFailed, match="aclrtMemcpyBatchAsync"):
            bench.start()
        assert bench.device.lost
        with pytest.raises(DeviceFailed, match="is lost"):
            bench.start()

    on_thread(scenario)


def test_a_span_that_is_refused_is_named_by_its_position():
    def scenario():
        bench = Bench(6)
        bench.spans.device[3] = 4096
        with pytest.raises(DeviceFailed, match="span 3 of 8"):
            bench.start()

    on_thread(scenario)


def test_nothing_of_a_refused_copy_moves_after_the_refusal():
    def scenario():
        bench = Bench(6)
        bench.channel._batched = False
        with (
            knobs(FAIL_LAUNCH="4", DELAY="copy_d2h=30000"),
            pytest.raises(DeviceFailed, match="aclrtMemcpyAsync"),
        ):
            bench.start()
        seen = bench.host_rows()
        assert (seen[:3] == bench.tensor.cpu().numpy()[:3]).all()
        assert not seen[3:].any()

    on_thread(scenario)


def test_a_refused_copy_that_does_not_drain_says_that_it_may_still_move(monkeypatch):
    monkeypatch.setattr(ascend, "_CHECK_MILLISECONDS", 20)

    def scenario():
        bench = Bench(6)
        bench.channel._batched = False
        streams = counter("streams")
        with knobs(FAIL_LAUNCH="2", DELAY="copy_d2h=500000"), pytest.raises(StillMoving):
            bench.start()
        bench.channel.close()
        assert counter("streams") == streams - 1, "of two streams, one is idle"
        torch.npu.synchronize()

    on_thread(scenario)


def test_a_closed_channel_has_given_its_streams_back():
    def scenario():
        device = AscendDevice(1)
        before = counter("streams")
        channels = [device.open_channel(direction) for direction in Direction]
        assert counter("streams") == before + 4
        for channel in channels:
            channel.close()
        assert counter("streams") == before

    on_thread(scenario)


@pytest.mark.parametrize("nth", [1, 2])
@pytest.mark.parametrize("what", ["create_stream", "create_event"])
def test_a_channel_that_cannot_be_opened_leaves_no_stream_behind(what, nth, monkeypatch):
    create, calls = getattr(acl.Acl, what), []

    def fail_once(runtime):
        calls.append(what)
        if len(calls) == nth:
            raise acl.AclError(what, 207001)
        return create(runtime)

    def scenario():
        device = AscendDevice(1)
        before = counter("streams")
        with pytest.raises(acl.AclError, match="207001"):
            device.open_channel(Direction.OUT)
        assert counter("streams") == before
        device.open_channel(Direction.OUT).close()
        assert counter("streams") == before

    monkeypatch.setattr(acl.Acl, what, fail_once)
    on_thread(scenario)


@contextmanager
def work_under_way(device):
    """Yield a caller's work on npu:1 that takes a while, and the tensor that it fills with ones."""
    x = torch.zeros(64, device="npu:1")
    torch.npu.synchronize(1)
    with knobs(DELAY="*=400000"):
        x.fill_(1)
        work = device.caller_work()
        assert not work.finished()
        yield work, x


def test_the_callers_work_is_finished_when_what_it_had_queued_is_done():
    with work_under_way(AscendDevice(1)) as (work, x):
        until(work.finished)
    assert (x.cpu() == 1).all()


def test_work_on_another_stream_or_of_another_thread_is_not_waited_for():
    device = AscendDevice(1)
    x = torch.zeros(64, device="npu:1")
    torch.npu.synchronize(1)
    side = torch.npu.Stream(device="npu:1")
    with knobs(DELAY="*=300000"):
        with torch.npu.stream(side):
            x.fill_(1)
            of_side = device.caller_work()
        elsewhere = on_thread(device.caller_work)
        assert not of_side.finished()
        until(elsewhere.finished)
        until(of_side.finished)
    assert of_side.source != elsewhere.source


@pytest.fixture
def old_torch_npu(monkeypatch):
    """A torch_npu of 2.7 to 2.9, which has no way to a raw stream but the stream's property."""
    monkeypatch.delattr(torch_npu._C, "_npu_getCurrentRawStreamNoWait")
    monkeypatch.setattr(ascend, "_streams", {})


@pytest.mark.usefixtures("old_torch_npu")
def test_an_older_torch_npu_is_asked_for_the_raw_stream_by_its_stream(monkeypatch):
    monkeypatch.setattr(ascend, "_SUSPECT_AFTER", 0.1)
    device = AscendDevice(1)
    with work_under_way(device) as (work, _):
        on_thread(lambda: (device.bind(), until(work.finished)))
    assert work.source == torch.npu.current_stream(1).npu_stream


@pytest.mark.usefixtures("old_torch_npu")
def test_a_stream_that_an_older_torch_npu_does_not_name_has_failed(monkeypatch):
    device = AscendDevice(1)
    ascend._streams.clear()
    monkeypatch.setattr(torch_npu.npu, "current_stream", lambda _: SimpleNamespace(npu_stream=0))
    with pytest.raises(DeviceFailed, match="queue has failed"):
        device.caller_work()
    assert device.lost
    assert not ascend._streams


def test_the_callers_current_device_stays_what_it_was():
    def scenario():
        seen = [torch.npu.current_device()]
        bench_device = AscendDevice(3)
        seen.append(torch.npu.current_device())
        torch.zeros(4, device="npu:3")
        bench_device.caller_work().finished()
        seen.append(torch.npu.current_device())
        torch.npu.set_device(2)
        AscendDevice(4).caller_work().finished()
        seen.append(torch.npu.current_device())
        memory = PinnedMemory(5)
        memory.free(memory.allocate(1 << 20))
        seen.append(torch.npu.current_device())
        return seen

    assert on_thread(scenario) == [0, 0, 0, 2, 2]


def test_pinned_memory_is_aligned_and_given_back():
    def scenario():
        memory = PinnedMemory(1)
        before = counter("pinned_nbytes")
        address = memory.allocate(3 << 20)
        assert address % 4096 == 0
        assert counter("pinned_nbytes") - before >= 3 << 20
        ctypes.memset(address, 1, 3 << 20)
        memory.free(address)
        assert counter("pinned_nbytes") == before

    on_thread(scenario)


def test_pinned_memory_that_the_host_does_not_have_is_refused_with_its_size():
    def scenario():
        with pytest.raises(PoolUnavailable, match=str(1 << 62)):
            PinnedMemory(1).allocate(1 << 62)

    on_thread(scenario)


def test_memory_that_was_not_allocated_is_refused_by_free():
    with pytest.raises(DeviceFailed, match="aclrtFreeHost"):
        PinnedMemory(1).free(12345 << 12)


def test_loading_the_device_layer_gives_the_adapter_and_counts_the_devices():
    assert device_layer.load() is ascend
    assert ascend.device_count() == torch_npu.npu.device_count() > 1


@pytest.mark.parametrize("error", [ImportError, OSError, RuntimeError])
def test_a_torch_npu_that_does_not_load_is_one_failure_with_the_loaders_text(error, monkeypatch):
    class Refusing:
        def find_spec(self, name, path=None, target=None):
            if name == "ems.device.ascend":
                raise error("libhccl.so: cannot open shared object file")

    monkeypatch.setattr("sys.meta_path", [Refusing()])
    monkeypatch.delitem(__import__("sys").modules, "ems.device.ascend")
    monkeypatch.delattr(device_layer, "ascend")
    with pytest.raises(DeviceFailed, match=r"libhccl\.so.*set_env\.sh"):
        device_layer.load()


def test_torch_errors_while_waiting_lose_the_device_and_are_reported_as_ours():
    device = AscendDevice(1)
    work = device.caller_work()

    class Event:
        def query(self):
            raise RuntimeError("the device reported an error")

    work._event = Event()
    with pytest.raises(DeviceFailed, match="the device reported an error"):
        work.finished()
    assert device.lost


def test_threads_that_never_set_a_device_can_ask_whether_work_is_done():
    device = AscendDevice(5)
    torch.zeros(4, device="npu:5").fill_(1)
    work = device.caller_work()
    box = []
    thread = threading.Thread(target=lambda: (until(work.finished), box.append(True)))
    thread.start()
    thread.join(PATIENCE)
    assert box == [True]
