import ctypes
import threading
import time

import pytest
from runtime_calls import (
    DEVICE_TO_HOST,
    HOST_TO_DEVICE,
    PARAM_INVALID,
    acl,
    answer,
    created,
    device_bytes,
    done,
    gate,
    new_event,
    new_stream,
    on_device,
    output_of,
    pinned,
    write_device,
)

from ems.simulator import control

CONTENT = b"abcdefgh"
SYNCHRONIZE_TIMEOUT = 507046
NOT_READY, COMPLETE = 1, 0
NO_STREAM = 107017
HOUR_US = 3_600_000_000


@pytest.fixture(autouse=True)
def device():
    done("aclrtSetDevice", 0)


@pytest.fixture
def stream():
    with new_stream() as stream:
        yield stream


@pytest.fixture
def memory():
    with on_device(8) as p:
        write_device(p, bytes(8))
        yield p


@pytest.fixture
def host():
    with pinned(CONTENT) as p:
        yield p


def copy_in(memory, host, stream):
    done("aclrtMemcpyAsync", memory, 8, host, 8, HOST_TO_DEVICE, stream)


def status_of(stream):
    return answer("aclrtStreamQuery", stream)


def is_done(event):
    return answer("aclrtQueryEventStatus", event) == 1


def test_a_copy_on_a_stream_does_not_wait_for_what_is_before_it(memory, host, stream):
    with gate(stream):
        copy_in(memory, host, stream)
        assert status_of(stream) == NOT_READY
        assert device_bytes(memory, 8) == bytes(8)
    assert status_of(stream) == COMPLETE
    assert device_bytes(memory, 8) == CONTENT


def test_streams_do_not_wait_for_each_other(memory, host, stream):
    with new_stream() as other, gate(stream):
        copy_in(memory, host, other)
        done("aclrtSynchronizeStream", other)
        assert status_of(stream) == NOT_READY
        assert device_bytes(memory, 8) == CONTENT


def test_a_stream_waits_for_an_event_of_another(memory, host, stream):
    with new_stream() as other, new_event() as event, pinned(bytes(8)) as result:
        with gate(stream):
            copy_in(memory, host, stream)
            done("aclrtRecordEvent", event, stream)
            done("aclrtStreamWaitEvent", other, event)
            done("aclrtMemcpyAsync", result, 8, memory, 8, DEVICE_TO_HOST, other)
            assert status_of(other) == NOT_READY
        done("aclrtSynchronizeStream", other)
        assert ctypes.string_at(result, 8) == CONTENT


def test_an_event_is_done_when_its_record_has_run(stream):
    with new_event() as event:
        assert is_done(event)
        with gate(stream):
            done("aclrtRecordEvent", event, stream)
            assert not is_done(event)
        assert is_done(event)


def test_a_wait_is_for_the_newest_record_at_its_time(stream):
    with new_stream() as other, new_event() as event:
        done("aclrtRecordEvent", event, other)
        done("aclrtStreamWaitEvent", other, event)
        with gate(stream):
            done("aclrtRecordEvent", event, stream)
            done("aclrtSynchronizeStream", other)


def test_an_event_may_be_destroyed_while_it_is_queued(stream):
    event = created("aclrtCreateEvent")
    with gate(stream):
        done("aclrtRecordEvent", event, stream)
        done("aclrtDestroyEvent", event)
    assert acl("aclrtSynchronizeEvent", event) == NO_STREAM


def test_the_time_between_events_is_that_of_their_records(stream):
    milliseconds = ctypes.c_float(-1)
    with new_event() as first, new_event() as last:
        between = ("aclrtEventElapsedTime", ctypes.byref(milliseconds), first, last)
        assert acl(*between) == 107006
        done("aclrtRecordEvent", first, stream)
        done("aclrtRecordEvent", last, stream)
        done("aclrtSynchronizeStream", stream)
        done(*between)
    assert milliseconds.value >= 0


def test_synchronising_gives_up_after_its_timeout(stream):
    with gate(stream):
        code = acl("aclrtSynchronizeStreamWithTimeout", stream, 1)
        assert code == SYNCHRONIZE_TIMEOUT
        assert acl("aclrtSynchronizeDeviceWithTimeout", 1) == SYNCHRONIZE_TIMEOUT
    done("aclrtSynchronizeStreamWithTimeout", stream, 60_000)


def test_a_stream_belongs_to_its_device(memory, host, stream):
    done("aclrtSetDevice", 1)
    assert acl("aclrtSynchronizeStream", stream) == 107003
    assert acl("aclrtMemcpyAsync", memory, 8, host, 8, HOST_TO_DEVICE, stream) == 107003


def test_destroying_a_stream_waits_for_what_is_queued(memory, host):
    stream = created("aclrtCreateStream")
    copy_in(memory, host, stream)
    done("aclrtDestroyStream", stream)
    assert device_bytes(memory, 8) == CONTENT
    assert acl("aclrtSynchronizeStream", stream) == NO_STREAM
    assert acl("aclrtDestroyStream", stream) == NO_STREAM


def test_destroying_a_stream_by_force_drops_what_is_queued(memory, host):
    stream = created("aclrtCreateStream")
    with new_event() as event, control.knobs(DELAY=f"copy_h2d={HOUR_US}"):
        copy_in(memory, host, stream)
        done("aclrtMemsetAsync", memory, 8, 1, 8, stream)
        done("aclrtRecordEvent", event, stream)
        done("aclrtDestroyStreamForce", stream)
        done("aclrtSynchronizeEvent", event)
    assert b"\1" not in device_bytes(memory, 8)


def test_streams_and_their_threads_are_counted():
    streams, threads = control.counter("streams"), control.counter("threads")
    with new_stream() as stream, new_stream(), gate(stream):
        assert control.counter("streams") == streams + 2
        assert control.counter("threads") <= threads + 1
    assert control.counter("streams") == streams
    assert control.counter("threads") == threads


def test_an_operation_can_be_late(memory, host, stream):
    with new_stream() as other, control.knobs(DELAY=f"copy_h2d={HOUR_US}"):
        copy_in(memory, host, stream)
        done("aclrtMemsetAsync", memory, 8, 1, 8, other)
        done("aclrtSynchronizeStream", other)
        assert status_of(stream) == NOT_READY
        assert device_bytes(memory, 8) == b"\1" * 8


def test_a_stream_can_be_late(memory, host, stream):
    number = answer("aclrtStreamGetId", stream)
    with new_stream() as other, control.knobs(DELAY=f"stream:{number}={HOUR_US}"):
        done("aclrtMemsetAsync", memory, 8, 1, 8, stream)
        copy_in(memory, host, other)
        done("aclrtSynchronizeStream", other)
        assert status_of(stream) == NOT_READY
        assert device_bytes(memory, 8) == CONTENT


def test_every_operation_can_be_late_but_events_are_not(memory, host, stream):
    with new_event() as event, control.knobs(DELAY=f"*={HOUR_US}"):
        done("aclrtRecordEvent", event, stream)
        done("aclrtSynchronizeEvent", event)
        copy_in(memory, host, stream)
        assert status_of(stream) == NOT_READY


def test_no_stream_means_the_default_stream_of_the_device(memory, host):
    copy_in(memory, host, None)
    done("aclrtSynchronizeStream", None)
    assert device_bytes(memory, 8) == CONTENT


def test_a_stream_can_be_told_to_stop_after_a_failure(stream):
    done("aclrtSetStreamFailureMode", stream, 1)
    assert acl("aclrtSetStreamFailureMode", stream, 2) == PARAM_INVALID


def test_a_full_stream_makes_the_launch_wait():
    launched = output_of(
        """
        import threading, time
        from runtime_calls import *
        done("aclrtSetDevice", 0)
        launched = []
        def launch(stream, p):
            done("aclrtSetDevice", 0)
            for _ in range(3):
                done("aclrtMemsetAsync", p, 8, 1, 8, stream)
                launched.append(1)
        with new_stream() as stream, on_device(8) as p:
            with gate(stream):
                thread = threading.Thread(target=launch, args=(stream, p))
                thread.start()
                while len(launched) < 2:
                    time.sleep(0.001)
                time.sleep(0.1)
                print(len(launched))
            thread.join()
            print(len(launched))
        """,
        EMS_SIM_STREAM_DEPTH="3",
    )
    assert launched.split() == ["2", "3"]


def test_synchronising_the_device_waits_for_all_of_its_streams(stream):
    finished = threading.Event()

    def synchronize():
        done("aclrtSetDevice", 0)
        done("aclrtSynchronizeDevice")
        finished.set()

    with new_stream() as other, gate(other):
        done("aclrtRecordEvent", created("aclrtCreateEvent"), stream)
        waiting = threading.Thread(target=synchronize)
        waiting.start()
        time.sleep(0.05)
        assert not finished.is_set()
    waiting.join()
    assert finished.is_set()


def test_failures_of_streams_may_be_told_once():
    codes = output_of(
        """
        from runtime_calls import *
        done("aclrtSetDevice", 0)
        with new_stream() as stream, on_device(8) as p, pinned(bytes(8)) as host:
            done("aclrtMemcpyAsync", p, 8, host, 8, 1, stream)
            print(*(acl("aclrtSynchronizeStream", stream) for _ in range(2)))
            done("aclrtMemcpyAsync", p, 8, host, 8, 1, stream)
            done("aclrtSynchronizeStream", stream)
        """,
        EMS_SIM_STICKY="0",
        EMS_SIM_FAIL_COPY="1",
    )
    assert codes.split() == ["507052", "0"]
