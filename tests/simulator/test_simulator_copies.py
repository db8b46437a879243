import ctypes

import pytest
from runtime_calls import (
    COPY_FAILED,
    DEVICE,
    DEVICE_TO_DEVICE,
    DEVICE_TO_HOST,
    HOST,
    HOST_TO_DEVICE,
    NO_SPAN,
    PARAM_INVALID,
    TO_DEVICE,
    TO_HOST,
    acl,
    allocate,
    answer,
    attribute,
    batch,
    device_bytes,
    done,
    gate,
    new_event,
    new_stream,
    on_device,
    pinned,
    recent_error,
    write_device,
)

from ems.simulator import control

CONTENT = bytes(range(64))


@pytest.fixture(autouse=True)
def device():
    done("aclrtSetDevice", 0)


@pytest.fixture
def stream():
    with new_stream() as stream:
        yield stream


@pytest.fixture
def memory():
    with on_device(len(CONTENT)) as p:
        write_device(p, bytes(len(CONTENT)))
        yield p


@pytest.fixture
def host():
    with pinned(CONTENT) as p:
        yield p


def spans_of(dst, src, count=4):
    size = len(CONTENT) // count
    return [(dst + i * size, src + i * size, size) for i in range(count)]


def test_bytes_come_back_as_they_went(memory):
    with on_device(len(CONTENT)) as other:
        write_device(memory, CONTENT)
        done("aclrtMemcpy", other, 64, memory, 64, DEVICE_TO_DEVICE)
        assert device_bytes(other, 64) == CONTENT


def test_bytes_go_from_device_to_device(memory):
    write_device(memory, CONTENT)
    done("aclrtSetDevice", 3)
    with on_device(64) as other:
        done("aclrtMemcpy", other, 64, memory, 64, DEVICE_TO_DEVICE)
        assert device_bytes(other, 64) == CONTENT


def test_a_batch_moves_every_span_as_one_copy(memory, host, stream):
    copies, spans = control.counter("copies"), control.counter("spans")
    moved = control.counter("bytes_h2d")
    assert batch(spans_of(memory, host), [TO_DEVICE], stream) == (0, NO_SPAN)
    done("aclrtSynchronizeStream", stream)
    assert control.counter("copies") == copies + 1
    assert control.counter("spans") == spans + 4
    assert control.counter("bytes_h2d") == moved + 64
    assert device_bytes(memory, 64) == CONTENT


def test_a_batch_without_a_stream_has_moved_when_the_call_returns(memory, host):
    assert batch(spans_of(memory, host), [TO_DEVICE]) == (0, NO_SPAN)
    assert device_bytes(memory, 64) == CONTENT


def test_a_batch_with_pageable_memory_has_moved_when_the_call_returns(memory, stream):
    write_device(memory, CONTENT)
    target = ctypes.create_string_buffer(64)
    code, _ = batch(spans_of(ctypes.addressof(target), memory), [TO_HOST], stream)
    assert code == 0
    assert target.raw == CONTENT


def test_attributes_hold_from_their_span_on(memory, host, stream):
    with on_device(16) as other:
        spans = [(memory, host, 16), (memory + 16, host + 16, 16), (other, memory + 32, 16)]
        attributes = [TO_DEVICE, attribute(DEVICE, DEVICE)]
        assert batch(spans, attributes, stream, first_spans=(0, 2)) == (0, NO_SPAN)
        assert batch(spans, attributes, stream, first_spans=(0, 1)) == (PARAM_INVALID, 1)


@pytest.mark.parametrize("first_spans", [(1,), (0, 0), (0, 4), (0, 1, 1)])
def test_attributes_must_begin_with_the_first_span_and_ascend(memory, host, first_spans):
    attributes = [TO_DEVICE] * len(first_spans)
    code, failed_span = batch(spans_of(memory, host), attributes, first_spans=first_spans)
    assert (code, failed_span) == (PARAM_INVALID, NO_SPAN)


def test_a_batch_needs_an_attribute(memory, host):
    assert batch(spans_of(memory, host), [], first_spans=()) == (PARAM_INVALID, NO_SPAN)


@pytest.mark.parametrize(
    "wrong", [TO_HOST, attribute(DEVICE, HOST, device=1), attribute(DEVICE, DEVICE)]
)
def test_an_attribute_that_does_not_say_where_the_bytes_lie_is_refused(memory, host, wrong):
    assert batch(spans_of(memory, host), [wrong]) == (PARAM_INVALID, 0)


def test_a_refused_span_is_named_and_nothing_has_moved(memory, host, stream):
    spans = spans_of(memory, host)
    spans[2] = (memory + 64, host, 16)
    assert batch(spans, [TO_DEVICE], stream) == (PARAM_INVALID, 2)
    done("aclrtSynchronizeStream", stream)
    assert device_bytes(memory, 64) == bytes(64)


def test_a_copy_of_another_kind_than_asked_for_is_refused(memory, host):
    assert acl("aclrtMemcpy", memory, 64, host, 64, DEVICE_TO_HOST) == PARAM_INVALID


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 65), (1, 64), (64, 1), (-1, 1)])
def test_a_copy_that_leaves_the_allocation_is_refused(memory, host, offset, nbytes):
    code = acl("aclrtMemcpy", host, 100, memory + offset, nbytes, DEVICE_TO_HOST)
    assert code == PARAM_INVALID
    assert "not in live device memory" in recent_error()


def test_a_copy_larger_than_its_room_is_refused(memory, host):
    assert acl("aclrtMemcpy", memory, 63, host, 64, HOST_TO_DEVICE) == PARAM_INVALID


def test_freed_memory_is_neither_read_nor_soon_given_out_again(host):
    freed = allocate(64)
    done("aclrtFree", freed)
    assert acl("aclrtMemcpy", host, 64, freed, 64, DEVICE_TO_HOST) == PARAM_INVALID
    with on_device(64) as other:
        assert other != freed


def test_memory_freed_while_its_copy_is_queued_fails_the_stream(host, stream):
    freed = allocate(64)
    with gate(stream):
        done("aclrtMemcpyAsync", host, 64, freed, 64, DEVICE_TO_HOST, stream)
        done("aclrtFree", freed)
    assert acl("aclrtSynchronizeStream", stream) == PARAM_INVALID


def test_a_pageable_source_may_change_as_soon_as_the_call_returned(memory, stream):
    source = ctypes.create_string_buffer(CONTENT, 64)
    with gate(stream):
        done("aclrtMemcpyAsync", memory, 64, source, 64, HOST_TO_DEVICE, stream)
        ctypes.memset(source, 0, 64)
    assert device_bytes(memory, 64) == CONTENT


def test_a_copy_of_no_bytes_does_nothing(memory, host):
    done("aclrtMemcpy", memory, 0, host, 0, HOST_TO_DEVICE)


def test_a_fill_sets_every_byte(memory, stream):
    done("aclrtMemsetAsync", memory, 64, 7, 64, stream)
    done("aclrtSynchronizeStream", stream)
    assert device_bytes(memory, 64) == b"\7" * 64
    assert acl("aclrtMemset", memory, 65, 7, 65) == PARAM_INVALID


def test_a_failed_batch_has_moved_half_of_its_spans(memory, host, stream):
    with control.knobs(FAIL_COPY="1"):
        assert batch(spans_of(memory, host), [TO_DEVICE], stream) == (0, NO_SPAN)
        assert acl("aclrtSynchronizeStream", stream) == COPY_FAILED
    assert device_bytes(memory, 64) == CONTENT[:32] + bytes(32)


def test_a_failed_copy_marks_its_stream_for_good(memory, host, stream):
    with control.knobs(FAIL_COPY="1"):
        done("aclrtMemcpyAsync", memory, 64, host, 64, HOST_TO_DEVICE, stream)
        for _ in range(2):
            assert acl("aclrtSynchronizeStream", stream) == COPY_FAILED
            assert "injected failure of copy 1" in recent_error()
    launch = ("aclrtMemcpyAsync", memory, 64, host, 64, HOST_TO_DEVICE)
    assert acl(*launch, stream) == COPY_FAILED
    assert acl("aclrtSynchronizeDevice") == COPY_FAILED
    with new_stream() as other:
        done(*launch, other)
        done("aclrtSynchronizeStream", other)
    assert device_bytes(memory, 64) == CONTENT


def test_a_destroyed_stream_takes_its_failure_with_it(memory, host):
    with new_stream() as stream, control.knobs(FAIL_COPY="1"):
        done("aclrtMemcpyAsync", memory, 64, host, 64, HOST_TO_DEVICE, stream)
        assert acl("aclrtSynchronizeDevice") == COPY_FAILED
    done("aclrtSynchronizeDevice")


def test_what_was_queued_behind_a_failed_copy_does_not_run(memory, host, stream):
    with control.knobs(FAIL_COPY="1"):
        with gate(stream):
            done("aclrtMemsetAsync", memory, 64, 1, 64, stream)
            for value in (2, 3):
                done("aclrtMemcpyAsync", memory, 64, host, 64, HOST_TO_DEVICE, stream)
                done("aclrtMemsetAsync", memory, 64, value, 64, stream)
        assert acl("aclrtSynchronizeStream", stream) == COPY_FAILED
    assert device_bytes(memory, 64) == b"\1" * 64


def test_an_event_behind_a_failed_copy_becomes_done(memory, host, stream):
    with new_event() as event, control.knobs(FAIL_COPY="1"):
        done("aclrtMemcpyAsync", memory, 64, host, 64, HOST_TO_DEVICE, stream)
        done("aclrtRecordEvent", event, stream)
        done("aclrtSynchronizeEvent", event)
        assert answer("aclrtQueryEventStatus", event) == 1
        assert acl("aclrtSynchronizeStream", stream) == COPY_FAILED
        done("aclrtRecordEvent", event, stream)
        done("aclrtSynchronizeEvent", event)


def test_a_failed_copy_without_a_stream_is_told_once(memory, host):
    copy = ("aclrtMemcpy", memory, 64, host, 64, HOST_TO_DEVICE)
    with control.knobs(FAIL_COPY="2:507899"):
        assert [acl(*copy) for _ in range(3)] == [0, 507899, 0]


def test_every_nth_copy_can_fail(memory, host):
    copy = ("aclrtMemcpy", memory, 64, host, 64, HOST_TO_DEVICE)
    with control.knobs(FAIL_COPY="every:2"):
        assert [acl(*copy) for _ in range(4)] == [0, COPY_FAILED, 0, COPY_FAILED]


def test_a_refused_launch_leaves_the_stream_as_it_was(memory, host, stream):
    copy = ("aclrtMemcpyAsync", memory, 64, host, 64, HOST_TO_DEVICE, stream)
    with control.knobs(FAIL_LAUNCH="2:507899"):
        assert [acl(*copy) for _ in range(3)] == [0, 507899, 0]
        assert "injected refusal of launch 2" in recent_error()
    with control.knobs(FAIL_LAUNCH="1"):
        assert batch(spans_of(memory, host), [TO_DEVICE], stream) == (507000, NO_SPAN)
    done("aclrtSynchronizeStream", stream)


def test_a_copy_may_be_late_and_slow_and_still_be_right(memory, host, stream):
    limits = {"GBPS": "1", "GBPS_H2D": "0.001", "GBPS_D2H": "2", "GBPS_D2D": "3"}
    with control.knobs(COPY_LATENCY_US="100", **limits):
        done("aclrtMemcpyAsync", memory, 64, host, 64, HOST_TO_DEVICE, stream)
        done("aclrtSynchronizeStream", stream)
        assert device_bytes(memory, 64) == CONTENT
