import ctypes
import mmap
import signal

import pytest
from runtime_calls import (
    PARAM_INVALID,
    acl,
    allocate,
    answer,
    created,
    device_bytes,
    done,
    memory_info,
    new_event,
    on_device,
    output_of,
    recent_error,
    run_python,
    start_python,
    write_device,
)

from ems.simulator import control

MIB = 1 << 20


class PointerAttributes(ctypes.Structure):
    _fields_ = (
        ("device", ctypes.c_uint32),
        ("type", ctypes.c_int32),
        ("page_nbytes", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32 * 4),
    )


def kind_of(p):
    attributes = PointerAttributes()
    done("aclrtPointerGetAttributes", p, ctypes.byref(attributes))
    return ("host", "device", "unregistered")[attributes.type], attributes.device


@pytest.fixture(autouse=True)
def device():
    done("aclrtSetDevice", 5)


@pytest.fixture
def pages():
    with mmap.mmap(-1, 4 * mmap.PAGESIZE) as pages:
        view = ctypes.c_char.from_buffer(pages)
        yield ctypes.addressof(view)
        del view


@pytest.mark.parametrize(
    "touch",
    [
        "ctypes.string_at(p, 1)",
        "ctypes.memset(p, 0, 1)",
        "(ctypes.c_char * 8).from_address(p)[0]",
    ],
)
def test_host_code_that_touches_device_memory_dies(touch):
    status, output, _ = run_python(
        f"""
        import ctypes
        from runtime_calls import *
        done("aclrtSetDevice", 0)
        p = allocate(8)
        print("touches", flush=True)
        {touch}
        print("lives")
        """
    )
    assert (status, output) == (-signal.SIGSEGV, "touches\n")


def test_allocations_take_memory_of_their_device_and_give_it_back():
    free, total = memory_info()
    allocations = control.counter("live_allocations")
    with on_device(3 * MIB):
        assert memory_info() == (free - 4 * MIB, total)
        assert control.counter("live_allocations") == allocations + 1
        done("aclrtSetDevice", 6)
        assert memory_info() == (total, total)
    done("aclrtSetDevice", 5)
    assert memory_info() == (free, total)


def test_a_device_is_out_of_memory_when_it_is_full():
    told = output_of(
        """
        from runtime_calls import *
        done("aclrtSetDevice", 0)
        kept = allocate(600 << 20)
        print(acl("aclrtMalloc", ctypes.byref(ctypes.c_void_p()), 600 << 20, 0), recent_error())
        done("aclrtFree", kept)
        allocate(600 << 20)
        """,
        EMS_SIM_MEMORY="1GiB",
        EMS_SIM_ACCOUNT="tests-full",
    )
    assert told.startswith("207001")
    assert "npu:0 is out of memory: 629145600 bytes asked, 629145600 of 1073741824" in told


def test_only_the_start_of_an_allocation_can_be_freed():
    with on_device(4096) as p:
        assert acl("aclrtFree", p + 1024) == PARAM_INVALID
    assert acl("aclrtFree", p) == PARAM_INVALID
    assert "no allocation starts there" in recent_error()


def test_neighbouring_allocations_are_not_one_block():
    with on_device(4096) as first, on_device(4096) as second:
        low, high = sorted((first, second))
        code = acl("aclrtMemset", low, 1 << 40, 0, high - low + 1)
        assert code == PARAM_INVALID


def test_fresh_memory_can_be_poisoned():
    content = output_of(
        """
        from runtime_calls import *
        done("aclrtSetDevice", 0)
        print(device_bytes(allocate(3), 3).hex())
        """,
        EMS_SIM_POISON="1",
    )
    assert content == "a5a5a5\n"


def test_pinned_memory_is_counted_and_known():
    nbytes = control.counter("pinned_nbytes")
    p = created("aclrtMallocHost", 3 * MIB)
    assert p % (2 * MIB) == 0
    assert kind_of(p + 4 * MIB - 1) == ("host", 0)
    assert control.counter("pinned_nbytes") == nbytes + 4 * MIB
    done("aclrtFreeHost", p)
    assert kind_of(p) == ("unregistered", 0)
    assert control.counter("pinned_nbytes") == nbytes
    assert acl("aclrtFreeHost", p) == PARAM_INVALID


def test_device_memory_is_known_with_its_device():
    with on_device(8) as p:
        assert kind_of(p + 7) == ("device", 5)


def test_registered_memory_is_pinned_until_it_is_unregistered(pages):
    assert kind_of(pages) == ("unregistered", 0)
    assert answer("aclrtHostRegister", pages, 8192, 0, kind=ctypes.c_void_p) == pages
    assert kind_of(pages + 8191) == ("host", 0)
    assert kind_of(pages + 8192) == ("unregistered", 0)
    done("aclrtHostUnregister", pages)
    assert kind_of(pages) == ("unregistered", 0)
    assert acl("aclrtHostUnregister", pages) == PARAM_INVALID


def test_memory_is_registered_once_only(pages):
    done("aclrtHostRegisterV2", pages + 4096, 4096, 0)
    for p, nbytes in [(pages, 4097), (pages + 4096, 4096), (pages + 8191, 1)]:
        assert acl("aclrtHostRegisterV2", p, nbytes, 0) == PARAM_INVALID
    done("aclrtHostRegisterV2", pages, 4096, 0)
    done("aclrtHostUnregister", pages)
    done("aclrtHostUnregister", pages + 4096)


def test_registered_and_allocated_host_memory_are_given_back_differently(pages):
    done("aclrtHostRegisterV2", pages, 4096, 0)
    assert acl("aclrtFreeHost", pages) == PARAM_INVALID
    done("aclrtHostUnregister", pages)
    p = created("aclrtMallocHost", 8)
    assert acl("aclrtHostUnregister", p) == PARAM_INVALID
    done("aclrtFreeHost", p)


def test_another_process_reads_and_writes_shared_device_memory():
    p = allocate(8192)
    write_device(p + 5000, b"parent")
    key = ctypes.create_string_buffer(65)
    done("aclrtIpcMemGetExportKey", p + 5000, 6, key, 65, 0)
    seen = output_of(
        f"""
        from runtime_calls import *
        done("aclrtSetDevice", 5)
        key = {key.value!r}
        p = created("aclrtIpcMemImportByKey", key, 0)
        print(device_bytes(p, 6), acl("aclrtMemset", p, 7, 0, 7))
        write_device(p, b"child!")
        done("aclrtIpcMemClose", key)
        print(acl("aclrtMemset", p, 6, 0, 6))
        """
    )
    assert seen == "b'parent' 107000\n107000\n"
    assert device_bytes(p + 5000, 6) == b"child!"
    done("aclrtFree", p)


def test_shared_memory_is_found_by_the_physical_number_of_its_device():
    told = output_of(
        """
        from runtime_calls import *
        import os
        done("aclrtSetDevice", 1)
        p = allocate(8)
        write_device(p, b"12345678")
        key = ctypes.create_string_buffer(65)
        done("aclrtIpcMemGetExportKey", p, 8, key, 65, 0)
        child = '''
        from runtime_calls import *
        done("aclrtSetDevice", 0)
        p = created("aclrtIpcMemImportByKey", KEY, 0)
        print(device_bytes(p, 8))
        '''.replace("KEY", repr(key.value))
        print(output_of(child, ASCEND_RT_VISIBLE_DEVICES="5"))
        status, _, errors = run_python(child, ASCEND_RT_VISIBLE_DEVICES="2")
        print(status, "physical device 5 is not visible" in errors)
        """,
        ASCEND_RT_VISIBLE_DEVICES="2,5",
    )
    assert told.split() == ["b'12345678'", "1", "True"]


def test_what_is_in_no_allocation_cannot_be_shared():
    key = ctypes.create_string_buffer(65)
    with on_device(8) as p:
        assert acl("aclrtIpcMemGetExportKey", p, 9, key, 65, 0) == PARAM_INVALID
    assert acl("aclrtIpcMemGetExportKey", p, 8, key, 65, 0) == PARAM_INVALID
    assert acl("aclrtIpcMemImportByKey", ctypes.byref(ctypes.c_void_p()), b"key", 0) == 107000


def test_an_event_is_seen_by_another_process():
    for_other_processes = 0x40
    event = created("aclrtCreateEventExWithFlag", for_other_processes)
    handle = ctypes.create_string_buffer(64)
    done("aclrtIpcGetEventHandle", event, handle)
    with start_python(
        """
        from runtime_calls import *
        class Handle(ctypes.Structure):
            _fields_ = (("bytes", ctypes.c_char * 64),)
        done("aclrtSetDevice", 5)
        event = ctypes.c_void_p()
        handle = Handle.from_buffer_copy(bytes.fromhex(input()))
        done("aclrtIpcOpenEventHandle", handle, ctypes.byref(event))
        with new_stream() as stream:
            with gate(stream):
                done("aclrtRecordEvent", event, stream)
                print("recorded", flush=True)
                input()
            done("aclrtDestroyEvent", event)
        """
    ) as process:
        process.stdin.write(handle.raw.hex() + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "recorded\n"
        status = ctypes.c_int32(-1)
        done("aclrtQueryEventStatus", event, ctypes.byref(status))
        assert status.value == 0
        process.stdin.write("\n")
        process.stdin.flush()
        done("aclrtSynchronizeEvent", event)
    assert process.returncode == 0
    done("aclrtDestroyEvent", event)


def test_an_event_for_this_process_has_no_handle():
    with new_event() as event:
        handle = ctypes.create_string_buffer(64)
        assert acl("aclrtIpcGetEventHandle", event, handle) == 107017


class PhysicalProperties(ctypes.Structure):
    _fields_ = (
        ("handle_type", ctypes.c_int32),
        ("allocation_type", ctypes.c_int32),
        ("attribute", ctypes.c_int32),
        ("device", ctypes.c_uint32),
        ("location_type", ctypes.c_int32),
        ("reserved", ctypes.c_uint64),
    )


def test_physical_memory_mapped_side_by_side_is_one_block():
    free, _ = memory_info()
    properties = PhysicalProperties(device=5, location_type=1)
    start = created("aclrtReserveMemAddress", 4 * MIB, 0, None, 0)
    handles = []
    for half in range(2):
        handles.append(created("aclrtMallocPhysical", 2 * MIB, ctypes.byref(properties), 0))
        done("aclrtMapMem", start + half * 2 * MIB, 2 * MIB, 0, handles[half], 0)
    assert memory_info()[0] == free - 4 * MIB
    write_device(start + 2 * MIB - 2, b"across")
    assert device_bytes(start + 2 * MIB - 2, 6) == b"across"
    done("aclrtUnmapMem", start)
    assert acl("aclrtMemset", start, 1, 0, 1) == PARAM_INVALID
    assert device_bytes(start + 2 * MIB, 4) == b"ross"
    done("aclrtUnmapMem", start + 2 * MIB)
    for handle in handles:
        done("aclrtFreePhysical", handle)
    done("aclrtReleaseMemAddress", start)
    assert memory_info()[0] == free


def test_physical_memory_is_mapped_into_reserved_addresses_only():
    properties = PhysicalProperties(device=5, location_type=1)
    handle = created("aclrtMallocPhysical", 2 * MIB, ctypes.byref(properties), 0)
    with on_device(2 * MIB) as p:
        assert acl("aclrtMapMem", p, 2 * MIB, 0, handle, 0) == PARAM_INVALID
        write_device(p, b"still there")
    done("aclrtFreePhysical", handle)
