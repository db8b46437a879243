import ctypes
import mmap

import pytest
import torch
from runtime_calls import acl, done

from ems.simulator import control

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16),
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool),
    *(torch.uint16, torch.uint32, torch.uint64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8)


def test_torch_finds_its_devices():
    assert torch.npu.is_available()
    assert torch.npu.device_count() == 8
    assert torch.npu.get_device_name(7) == "Ascend910B2"
    assert torch.npu.get_device_properties(1).total_memory == 64 << 30


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_type_goes_there_and_back(dtype):
    top = 2 if dtype is torch.bool else 256
    numbers = torch.randint(0, top, (64 * dtype.itemsize,), dtype=torch.uint8).view(dtype)
    there = numbers.to("npu:2")
    assert there.dtype is dtype
    assert torch.equal(bytes_of(there.cpu()), bytes_of(numbers))


def test_memory_of_torch_is_pinned_as_a_whole_and_in_parts():
    assert not torch.empty(1000).is_pinned()
    numbers = torch.arange(1000.0).pin_memory()
    assert numbers.is_pinned()
    assert numbers[500:].is_pinned()


def test_registered_memory_is_pinned_for_torch():
    with mmap.mmap(-1, 1 << 20) as pages:
        numbers = torch.frombuffer(pages, dtype=torch.float32)
        assert not numbers.is_pinned()
        done("aclrtHostRegisterV2", numbers.data_ptr(), 1 << 20, 0)
        assert numbers.is_pinned()
        numbers.copy_(torch.full((1 << 18,), 5.0, device="npu:0"), non_blocking=True)
        torch.npu.synchronize()
        assert numbers[-1] == 5
        done("aclrtHostUnregister", numbers.data_ptr())
        assert not numbers.is_pinned()
        del numbers


def test_a_tensor_goes_from_device_to_device():
    numbers = torch.arange(1000.0)
    there = numbers.to("npu:0").to("npu:3")
    assert str(there.device) == "npu:3"
    assert torch.equal(torch.empty(1000, device="npu:1").copy_(there).cpu(), numbers)


@pytest.mark.parametrize(
    ("pick_dst", "pick_src"),
    [
        (lambda dst: dst[:, 1], lambda src: src[:, 2]),
        (lambda dst: dst[:, :, :8], lambda src: src[:, :, 8:]),
        (lambda dst: dst, lambda src: src[0].expand(8, 4, 16)),
        (lambda dst: dst.half(), lambda src: src),
    ],
    ids=["strided", "slice", "expanded", "other dtype"],
)
def test_a_view_goes_from_device_to_device(pick_dst, pick_src):
    src, dst = torch.randn(8, 4, 16), torch.zeros(8, 4, 16)
    there_dst = pick_dst(dst.to("npu:1"))
    there_dst.copy_(pick_src(src.to("npu:0")))
    expected = pick_dst(dst)
    expected.copy_(pick_src(src))
    assert torch.equal(there_dst.cpu(), expected)


def test_a_list_of_tensors_is_copied_as_one():
    pinned = [torch.full((64,), float(i)).pin_memory() for i in range(3)]
    there = [torch.empty(64, device="npu:0") for _ in range(3)]
    torch.npu.synchronize()
    copies = control.counter("copies")
    torch._foreach_copy_(there, pinned)
    torch.npu.synchronize()
    assert control.counter("copies") == copies + 1
    assert [each[0].item() for each in there] == [0, 1, 2]


def test_memory_that_torch_gives_up_is_free_again():
    torch.npu.empty_cache()
    free, _ = torch.npu.mem_get_info(4)
    memory = torch.empty(64 << 20, dtype=torch.uint8, device="npu:4")
    assert torch.npu.mem_get_info(4)[0] <= free - memory.nbytes
    del memory
    torch.npu.empty_cache()
    assert torch.npu.mem_get_info(4)[0] == free


def test_torch_refuses_device_memory_where_host_memory_belongs():
    there = torch.ones(4, device="npu:1")
    with pytest.raises(TypeError, match="convert npu:1 device type tensor to numpy"):
        there.numpy()
    with pytest.raises(RuntimeError, match="same device"):
        there + torch.ones(4)


def test_an_uninitialised_pointer_of_torch_is_no_device_memory():
    there = torch.ones(4, device="npu:1")
    torch.npu.synchronize(1)
    target = ctypes.create_string_buffer(16)
    torch.npu.set_device(1)
    assert acl("aclrtMemcpy", target, 16, there.data_ptr(), 16, 2) == 0
    assert acl("aclrtMemcpy", target, 16, there.data_ptr() + (1 << 30), 16, 2) == 107000
    torch.npu.set_device(0)


def test_nothing_has_written_outside_of_its_allocation():
    assert control.counter("canary_breaks") == 0
