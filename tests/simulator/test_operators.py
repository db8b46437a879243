"""Every simulated operator gives what torch gives on the CPU, on the simulated NPU.

The tests whose names end in `in_another_process` run others anew: with torch_npu's other ways
to queue work, and where an error costs the process its device.
"""

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ems import simulator

if simulator.state() == "real":
    pytest.skip("a real NPU has its own operators", allow_module_level=True)

DEVICE = "npu:1"
OTHER_DEVICE = "npu:0"

pytestmark = pytest.mark.filterwarnings(
    # torch_npu says so once, of whatever it copies first
    "ignore:Cannot create tensor with internal format:UserWarning",
)

FLOATING = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLOAT8 = [torch.float8_e4m3fn, torch.float8_e5m2]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]
UNSIGNED = [torch.uint16, torch.uint32, torch.uint64]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [*FLOATING, *FLOAT8, *INTEGERS, *UNSIGNED, torch.bool, *COMPLEX]


def sample(*shape, dtype=torch.float32):
    """Numbers that every type holds exactly, small enough that sums are exact, too."""
    count = torch.Size(shape).numel()
    return (torch.arange(count) * 7 % 15).to(dtype).reshape(shape)


def signed_sample(*shape, dtype=torch.float32):
    return (sample(*shape, dtype=torch.int64) - 7).to(dtype)


def assert_same_bits(actual, expected):
    actual = actual.cpu()
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert torch.equal(as_bytes(actual), as_bytes(expected))


def as_bytes(tensor):
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def to_device(argument):
    if isinstance(argument, torch.Tensor):
        return argument.to(DEVICE)
    if isinstance(argument, (list, tuple)):
        return type(argument)(to_device(item) for item in argument)
    return argument


def assert_agrees(function, *arguments):
    """Call the function with copies on the CPU and on the device and compare the results."""
    on_device = function(*(to_device(argument) for argument in arguments))
    on_cpu = function(*(a.clone() if isinstance(a, torch.Tensor) else a for a in arguments))
    assert on_device.device == torch.device(DEVICE)
    assert_same_bits(on_device, on_cpu)


# ---- fills and copies ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_new_tensors_are_filled(dtype):
    assert_same_bits(torch.zeros(3, 5, device=DEVICE, dtype=dtype), torch.zeros(3, 5, dtype=dtype))
    assert_same_bits(torch.ones(7, device=DEVICE, dtype=dtype), torch.ones(7, dtype=dtype))
    assert_same_bits(
        torch.full((4, 3), 1, device=DEVICE, dtype=dtype), torch.full((4, 3), 1, dtype=dtype)
    )


@pytest.mark.parametrize("dtype", FLOATING)
def test_a_large_tensor_is_filled_to_its_end(dtype):
    assert_agrees(lambda x: x.fill_(-2.5), torch.empty(10007, dtype=dtype))


def test_part_of_a_tensor_is_filled():
    def fill(x):
        x[1:3, ::2].fill_(7)
        x[:, 1].zero_()
        x[0, 0] = torch.tensor(3.0, device=x.device)
        return x

    assert_agrees(fill, sample(4, 6))


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_bit_pattern_survives_the_way_to_the_device_and_back(dtype):
    patterns = torch.arange(64 * dtype.itemsize).mul(37).to(torch.uint8)
    values = (patterns % 2 if dtype == torch.bool else patterns).view(dtype)
    assert_same_bits(values.to(DEVICE), values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_permuted_tensor_is_copied_on_its_device(dtype):
    assert_agrees(lambda x: x.permute(2, 0, 1).contiguous(), sample(4, 6, 8, dtype=dtype))


def test_an_expanded_tensor_is_copied():
    assert_agrees(lambda x: x.expand(5, 3).contiguous(), sample(3))
    assert_agrees(lambda x: x.unsqueeze(1).expand(3, 5000).contiguous(), sample(3))


VIEWS = {
    "permuted": lambda x: x.permute(2, 0, 1),
    "cut": lambda x: x[:, 1:3],
    "cut at the end": lambda x: x[..., 2:5],
    "selected": lambda x: x[:, 1],
    "every second": lambda x: x[:, ::2],
    "every second of all": lambda x: x[::2, ::2, ::2],
    "cut and permuted": lambda x: x[:, 1:3].permute(2, 0, 1),
    "expanded": lambda x: x[:1].expand(4, 6, 8),
    "expanded by a dimension": lambda x: x.unsqueeze(1).expand(4, 3, 6, 8),
    "overlapping": lambda x: x.as_strided((5, 4), (1, 1)),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_view_is_copied_to_another_device(view, dtype):
    x = sample(4, 6, 8, dtype=dtype)
    expected = view(x).contiguous()
    moved = torch.empty(expected.shape, dtype=dtype, device=OTHER_DEVICE)
    moved.copy_(view(x.to(DEVICE)))
    assert_same_bits(moved, expected)


@pytest.mark.parametrize("view", list(VIEWS.values())[:7], ids=list(VIEWS)[:7])
def test_a_copy_to_another_device_lands_in_a_view(view):
    x = sample(4, 6, 8)
    expected = torch.zeros(4, 6, 8)
    view(expected).copy_(view(x))
    target = torch.zeros(4, 6, 8, device=OTHER_DEVICE)
    view(target).copy_(view(x.to(DEVICE)))
    assert_same_bits(target, expected)


def test_a_copy_into_a_permuted_tensor_lands_in_its_places():
    def copy(x):
        y = torch.zeros(8, 4, 6, device=x.device).permute(1, 2, 0)
        return y.copy_(x)

    assert_agrees(copy, sample(4, 6, 8))


def test_a_strided_tensor_is_copied_between_host_and_device():
    def copy(x):
        y = torch.zeros(6, 4, 8, device=x.device)
        y[:, :, 1::2].copy_(sample(6, 4, 4))
        return y

    assert_agrees(copy, sample(1))
    x = sample(4, 6, 8)
    assert_same_bits(x.to(DEVICE)[:, 1:3].transpose(0, 2).cpu(), x[:, 1:3].transpose(0, 2))


def test_a_copy_to_another_device_casts():
    # torch_npu 2.13 casts on the target's stream, and does not make that wait for the source's
    x = signed_sample(4, 6)
    moved = torch.empty(4, 6, dtype=torch.float16, device=OTHER_DEVICE)
    source = x.to(DEVICE)
    torch.npu.synchronize(DEVICE)
    moved.copy_(source)
    assert_same_bits(moved, x.half())


def test_views_and_clones_see_the_same_elements():
    assert_agrees(lambda x: x.clone(), sample(4, 6))
    assert_agrees(lambda x: x.view(torch.uint8), sample(4, 6))
    assert_agrees(lambda x: torch.cat(x.unbind(0), 0), sample(4, 6))
    assert_agrees(torch.zeros_like, sample(4, 6))
    assert_agrees(lambda x: x.new_zeros(3), sample(4, 6))


def test_tensors_without_elements_are_no_problem():
    assert_agrees(lambda x: x.clone(), torch.empty(0, 4))
    assert_agrees(lambda x: x.permute(1, 0).contiguous(), torch.empty(0, 4))
    assert_agrees(lambda x: torch.cat([x, x]), torch.empty(0, 4))
    assert_agrees(lambda x, y: x == y, torch.empty(0, 4), torch.empty(4))
    assert_agrees(lambda x: x.sum(0), torch.empty(0, 4))


# ---- conversions ----

CONVERTIBLE = [*FLOATING, *FLOAT8, *INTEGERS, torch.bool, torch.complex64]
TARGETS = [dtype for dtype in CONVERTIBLE if dtype != torch.float64]  # torch_npu makes it float32


@pytest.mark.filterwarnings("ignore:Casting complex values to real discards the imaginary part")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("source", CONVERTIBLE)
def test_small_numbers_are_cast(source, target):
    x = sample(3, 16, dtype=source)
    assert_agrees(lambda x: x.to(target), x)


def all_halves(dtype):
    """Every value of a type of 16 bits that is not a NaN, whose payload nobody promises."""
    values = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(dtype)
    return torch.where(values.isnan(), torch.zeros((), dtype=dtype), values)


@pytest.mark.parametrize("source", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16, *FLOAT8])
def test_every_half_is_cast_to_the_same_bits(source, target):
    x = all_halves(source)
    expected = x.to(target)
    actual = x.to(DEVICE).to(target).cpu()
    assert_same_bits(without_nan(actual), without_nan(expected))


@pytest.mark.parametrize("source", FLOAT8)
def test_every_float8_is_cast_to_the_same_bits(source):
    x = torch.arange(256).to(torch.uint8).view(source)
    assert_same_bits(without_nan(x.to(DEVICE).float().cpu()), without_nan(x.float()))


def without_nan(x):
    """NaN by one pattern: the payload differs even between torch's scalar and vector code."""
    wide = x.float() if x.dtype in FLOAT8 else x
    return torch.where(wide.isnan(), torch.full((), -1.5, dtype=wide.dtype), wide)


@pytest.mark.parametrize("source", [torch.float32, torch.float64])
@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16, *FLOAT8])
def test_casts_round_to_the_same_bits(source, target):
    generator = torch.Generator().manual_seed(4)
    size = torch.logspace(-9, 6, 100_000, dtype=torch.float64)
    x = torch.randn(100_000, generator=generator, dtype=torch.float64) * size
    ties = torch.arange(-5000, 5000, dtype=torch.float64) / 1024 + 2.0**-12
    x = torch.cat([x, ties, torch.tensor([float("inf"), -float("inf"), 0.0, -0.0])]).to(source)
    expected = x.to(target)
    assert_same_bits(without_nan(x.to(DEVICE).to(target).cpu()), without_nan(expected))


@pytest.mark.parametrize("target", [torch.float32, torch.float16, torch.bfloat16])
def test_large_integers_are_rounded_once(target):
    x = torch.arange(-1000, 1000) * 9_007_199_254_740_993 + 1
    assert_agrees(lambda x: x.to(target), x)


def test_fractions_are_cut_towards_zero():
    x = torch.linspace(-100, 100, 1001)
    for target in INTEGERS[2:]:
        assert_agrees(lambda x, target=target: x.to(target), x)


# ---- positions ----

POSITIONS = torch.tensor([3, 0, 2, 2, 1])


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS, torch.bool])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_index_select_takes_slices(dtype, dim):
    x = sample(4, 6, 8, dtype=dtype)
    assert_agrees(lambda x, i: x.index_select(dim, i), x, POSITIONS)


def test_index_select_takes_short_indices_of_a_permuted_tensor():
    x = sample(4, 6, 8)
    assert_agrees(lambda x, i: x.permute(2, 0, 1).index_select(1, i), x, POSITIONS.int())


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS])
@pytest.mark.parametrize("dim", [0, 1])
def test_index_copy_places_slices(dtype, dim):
    i = torch.tensor([5, 1, 4, 2])
    source = sample(4, 4, 8, dtype=dtype)
    target = torch.zeros(*(6 if d == dim else 4 for d in range(2)), 8, dtype=dtype)
    assert_agrees(lambda x, i, y: x.index_copy_(dim, i, y), target, i, source)
    assert_agrees(lambda x, i, y: x.index_copy(dim, i, y), target, i, source)


INDEXINGS = {
    "rows": lambda i, j: (i,),
    "columns": lambda i, j: (slice(None), i),
    "pairs": lambda i, j: (i, j),
    "pairs of far dimensions": lambda i, j: (i, slice(None), j),
    "pairs in the back": lambda i, j: (slice(None), i, j),
    "a table of rows": lambda i, j: (i.reshape(2, 1),),
    "crossed": lambda i, j: (i.reshape(2, 1), j),
    "negative": lambda i, j: (i - 4,),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
@pytest.mark.parametrize("indexing", INDEXINGS.values(), ids=INDEXINGS)
def test_indexing_reads(indexing, dtype):
    assert_agrees(
        lambda x, i, j: x[indexing(i, j)],
        sample(4, 6, 8, dtype=dtype),
        torch.tensor([3, 1]),
        torch.tensor([0, 5]),
    )


@pytest.mark.parametrize("indexing", INDEXINGS.values(), ids=INDEXINGS)
def test_indexing_writes(indexing):
    i, j = torch.tensor([3, 1]), torch.tensor([0, 5])
    x = sample(4, 6, 8)

    def write(x, i, j, y):
        x[indexing(i, j)] = y
        return x

    assert_agrees(write, x, i, j, 100 + x[indexing(i, j)])
    assert_agrees(write, x, i, j, torch.tensor(-1.0))


def test_indexing_without_positions_changes_nothing():
    def write(x, i):
        x[i] = 5
        return x

    def write_columns(x, i):
        x[:, i] = 5
        return x

    nothing = torch.empty(0, dtype=torch.int64)
    for dtype in (torch.float32, torch.int64):
        x = sample(4, 6, dtype=dtype)
        assert_agrees(write, x, nothing)
        assert_agrees(write_columns, x, nothing)
        assert_agrees(lambda x, i: x[i], x, nothing)
        assert_agrees(lambda x, i: x[:, i], x, nothing)
    assert_agrees(lambda x, i: x.index_select(0, i), sample(4, 6), nothing)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64])
def test_index_put_accumulates(dtype):
    assert_agrees(
        lambda x, i, y: x.index_put_((i,), y, accumulate=True),
        sample(5, dtype=dtype),
        torch.tensor([1, 1, 3]),
        sample(3, dtype=dtype) + 1,
    )


def test_masks_choose_elements():
    x = signed_sample(4, 6)
    assert_agrees(lambda x, m: x[m], x, x > 0)
    assert_agrees(lambda x, m: x[m], x, x > 100)
    assert_agrees(lambda x, m: x[m], x, torch.tensor([True, False, True, False]))
    assert_agrees(torch.masked_select, x, x[0] > 0)
    assert_agrees(lambda x: x.nonzero(), x)
    assert_agrees(lambda x, m: x.masked_fill_(m, 0.5), x, x > 0)
    assert_agrees(lambda x, m: x.masked_fill_(m, 0.5), x, x[0] > 0)


def test_masks_choose_where_to_write():
    def write(x, m, y):
        x[m] = y
        return x

    x = signed_sample(4, 6)
    assert_agrees(write, x, x > 0, torch.tensor(-1.0))
    assert_agrees(write, x, x > 0, sample(int((x > 0).sum())))


def test_embedding_takes_rows():
    assert_agrees(torch.nn.functional.embedding, torch.tensor([[3, 0, 1], [2, 2, 0]]), sample(4, 8))


def test_gather_takes_elements():
    i = torch.tensor([[0, 5, 2], [1, 1, 4]])
    assert_agrees(lambda x, i: x.gather(1, i), sample(4, 6), i)
    assert_agrees(lambda x, i: x.gather(0, i), sample(4, 6), i % 4)


def test_scatter_places_elements():
    i = torch.tensor([[0, 5, 2], [1, 3, 4]])
    assert_agrees(lambda x, i, y: x.scatter_(1, i, y), sample(4, 6), i, 100 + sample(2, 3))
    assert_agrees(lambda x, i, y: x.scatter(1, i, y), sample(4, 6), i, 100 + sample(2, 3))


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_cat_and_stack_join(dim):
    x = sample(4, 6, 8)
    assert_agrees(lambda x, y: torch.cat([x, y, x], dim=dim), x, x + 1)
    assert_agrees(lambda x, y: torch.stack([x, y, x], dim=dim), x, x + 1)


def test_cat_joins_different_lengths_and_types():
    assert_agrees(lambda x, y: torch.cat([x, y], dim=1), sample(4, 2), sample(4, 6))
    assert_agrees(lambda x, y: torch.cat([x, y]), sample(4, 2), sample(3, 2, dtype=torch.int32))


# ---- arithmetic ----

COMPARISONS = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "gt": torch.gt,
    "le": torch.le,
    "ge": torch.ge,
}


@pytest.mark.parametrize("compare", COMPARISONS.values(), ids=COMPARISONS)
@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS])
def test_comparisons(compare, dtype):
    x = sample(4, 6, dtype=dtype)
    assert_agrees(compare, x, x.flip(0))
    assert_agrees(compare, x, x[0])
    assert_agrees(compare, x, 3)


def test_comparisons_with_nan_infinity_and_fractions():
    x = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.1, -0.0, 0.0])
    for compare in COMPARISONS.values():
        assert_agrees(compare, x, x.flip(0))
        assert_agrees(compare, x, 0.1)
        assert_agrees(compare, x.half(), 0.1)


def test_operands_of_two_types_meet_in_a_third():
    x = sample(4, 6, dtype=torch.int32)
    assert_agrees(torch.eq, x, sample(4, 6) + 0.5)
    assert_agrees(torch.add, x, sample(4, 6, dtype=torch.float16))
    assert_agrees(torch.mul, x, sample(4, 6, dtype=torch.int64))
    assert_agrees(torch.gt, x, 2.5)


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS])
def test_sums_differences_and_products(dtype):
    x = sample(4, 6, dtype=dtype)
    assert_agrees(lambda x, y: x + y, x, x[0])
    assert_agrees(lambda x, y: x - y, x, x[0])
    assert_agrees(lambda x, y: x * y, x, x[0])
    assert_agrees(lambda x, y: torch.add(x, y, alpha=3), x, x.flip(1))
    assert_agrees(lambda x: (x + 2) * 3 - 1, x)


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS])
def test_sums_differences_and_products_in_place(dtype):
    x = sample(4, 6, dtype=dtype)
    assert_agrees(lambda x, y: x.add_(y, alpha=2).sub_(y).mul_(y), x, x[0])
    assert_agrees(lambda x: x.add_(2).mul_(3).sub_(1), x)


@pytest.mark.parametrize("dtype", FLOATING)
def test_quotients(dtype):
    x = sample(4, 6, dtype=dtype) + 1
    assert_agrees(lambda x, y: x / y, x, x[0])
    assert_agrees(lambda x: x / 3, x)
    assert_agrees(lambda x, y: x.div_(y).div_(2), x, x[0])


def test_products_of_fractions_round_to_the_same_bits():
    generator = torch.Generator().manual_seed(5)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        x, y = torch.randn(2, 10_000, generator=generator).to(dtype)
        for function in (torch.add, torch.sub, torch.mul, torch.div):
            assert_agrees(function, x, y)


def test_integers_wrap_around():
    x = torch.tensor([2**63 - 1, -(2**63), 5])
    assert_agrees(lambda x: x + x, x)
    assert_agrees(lambda x: x * 3, x)
    assert_agrees(lambda x: -x, x)


def test_complex_numbers():
    x = torch.complex(signed_sample(4, 6), sample(4, 6))
    assert_agrees(lambda x, y: x + y, x, x[0])
    assert_agrees(lambda x, y: x * y, x, x[0])
    assert_agrees(torch.eq, x, x.flip(0))


@pytest.mark.parametrize("dtype", [torch.bool, *INTEGERS])
def test_bits(dtype):
    x = sample(4, 6, dtype=dtype)
    assert_agrees(lambda x, y: x & y, x, x.flip(0))
    assert_agrees(lambda x, y: x | y, x, x.flip(0))
    assert_agrees(lambda x: ~x, x)


def test_bits_with_a_number():
    assert_agrees(lambda x: x & 5, sample(4, 6, dtype=torch.int32))
    assert_agrees(lambda x: x | 5, sample(4, 6, dtype=torch.int32))


UNARY = {
    "abs": torch.abs,
    "neg": torch.neg,
    "ceil": torch.ceil,
    "floor": torch.floor,
    "isfinite": torch.isfinite,
    "logical_not": torch.logical_not,
}


@pytest.mark.parametrize("function", UNARY.values(), ids=UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_functions_of_one_number(function, dtype):
    special = torch.tensor([float("inf"), -float("inf"), 0.0, -0.0, 0.4, -0.6])
    assert_agrees(function, torch.cat([signed_sample(20) / 4, special]).to(dtype))


@pytest.mark.parametrize("function", [torch.abs, torch.neg, torch.logical_not])
def test_functions_of_one_integer(function):
    assert_agrees(function, signed_sample(20, dtype=torch.int32))


def test_isclose_has_both_tolerances():
    x = torch.tensor([1.0, 100.0, 0.0, float("inf"), float("nan")])
    y = torch.tensor([1.0 + 1e-6, 100.1, 1e-9, float("inf"), float("nan")])
    assert_agrees(torch.isclose, x, y)
    assert_agrees(lambda x, y: torch.isclose(x, y, equal_nan=True), x, y)
    assert_agrees(lambda x, y: torch.isclose(x, y, rtol=0.01), x, y)


# ---- reductions ----


def test_equal_compares_all_elements():
    for dtype in (*FLOATING, *INTEGERS, torch.bool):
        x = sample(4, 6, dtype=dtype).to(DEVICE)
        assert torch.equal(x, x.clone())
        assert torch.equal(x.t(), x.t().contiguous())
        assert not torch.equal(x, x.cpu().flip(0).to(DEVICE))
    nan = torch.tensor([float("nan")], device=DEVICE)
    assert not torch.equal(nan, nan.clone())
    assert torch.equal(torch.zeros(2, device=DEVICE), -torch.zeros(2, device=DEVICE))


@pytest.mark.parametrize("reduce", [torch.all, torch.any, torch.sum])
def test_reductions_of_dimensions(reduce):
    x = signed_sample(4, 6, 8)
    x = x if reduce is torch.sum else x > 6
    assert_agrees(reduce, x)
    assert_agrees(lambda x: reduce(x, dim=1), x)
    assert_agrees(lambda x: reduce(x, dim=2, keepdim=True), x)
    assert_agrees(lambda x: reduce(x.permute(2, 0, 1), dim=0), x)


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS, torch.bool])
def test_sums(dtype):
    x = sample(4, 6, dtype=dtype)
    assert_agrees(lambda x: x.sum(), x)
    assert_agrees(lambda x: x.sum(dim=(0, 1)), x)
    assert_agrees(lambda x: x.sum(dim=1), x)


@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS])
def test_the_largest_and_the_smallest(dtype):
    x = sample(4, 6, dtype=dtype)
    assert_agrees(lambda x: x.max(), x)
    assert_agrees(lambda x: x.min(), x)


@pytest.mark.parametrize("dim", [0, 1, -1])
def test_the_largest_and_the_smallest_along_a_dimension(dim):
    x = sample(4, 6, 8)
    for part in range(2):
        assert_agrees(lambda x, part=part: x.max(dim)[part], x)
        assert_agrees(lambda x, part=part: x.min(dim, keepdim=True)[part], x)


def test_the_largest_of_numbers_and_nan_is_nan():
    x = torch.tensor([1.0, float("nan"), 3.0], device=DEVICE)
    assert x.max().isnan().item()
    assert x.min().isnan().item()


# ---- sequences and random numbers ----


def test_arange_counts():
    for arguments in ((10,), (3, 20, 4), (20, 3, -4), (0.5, 4.0, 0.25)):
        assert_same_bits(torch.arange(*arguments, device=DEVICE), torch.arange(*arguments))
    for dtype in (torch.int32, torch.float16, torch.float32):
        expected = torch.arange(3, 20, dtype=dtype)
        assert_same_bits(torch.arange(3, 20, dtype=dtype, device=DEVICE), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_random_numbers_have_their_distribution(dtype):
    uniform = torch.rand(20_000, device=DEVICE, dtype=dtype).cpu().double()
    assert uniform.min() >= 0
    assert uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02
    normal = torch.randn(20_000, device=DEVICE, dtype=dtype).cpu().double()
    assert abs(normal.mean()) < 0.05
    assert abs(normal.std() - 1) < 0.05


def test_random_integers_reach_all_values():
    x = torch.randint(-2, 3, (1000,), device=DEVICE)
    assert set(x.tolist()) == {-2, -1, 0, 1, 2}


def test_random_numbers_follow_the_seed():
    torch.npu.manual_seed_all(7)
    first = torch.randn(100, device=DEVICE).cpu()
    second = torch.randn(100, device=DEVICE).cpu()
    torch.npu.manual_seed_all(7)
    again = torch.randn(100, device=DEVICE).cpu()
    assert not torch.equal(first, second)
    assert torch.equal(first, again)


# ---- what tests and people do with tensors ----


def test_tensors_are_printed():
    assert "[0, 1, 2, 3]" in repr(torch.arange(4, device=DEVICE))
    assert "2.5000" in repr(torch.full((2, 2), 2.5, device=DEVICE))
    assert "float16" in repr(torch.zeros(3, device=DEVICE, dtype=torch.float16))


def test_tensors_are_read_one_by_one():
    assert torch.arange(4, device=DEVICE).tolist() == [0, 1, 2, 3]
    assert torch.full((), 2.5, device=DEVICE).item() == 2.5


def test_assert_close_works_on_the_device():
    x = sample(4, 6).to(DEVICE)
    torch.testing.assert_close(x, x.clone())
    assert torch.allclose(x, x + 1e-9)
    with pytest.raises(AssertionError, match="Mismatched elements"):
        torch.testing.assert_close(x, x + 1)


def test_the_device_has_the_name_of_its_soc():
    assert torch.npu.get_device_name(DEVICE) == os.environ.get("EMS_SIM_SOC", "Ascend910B2")


# ---- refusals ----


def test_what_is_not_simulated_is_refused_by_name():
    x = sample(4, 6).to(DEVICE)
    with pytest.raises(RuntimeError, match="aclnnSort: this operator is not simulated"):
        x.sort()
    with pytest.raises(RuntimeError, match="aclnnMatmul: this operator is not simulated"):
        x @ x.t()


def test_work_after_an_operator_was_refused_is_unharmed():
    x = sample(4, 6).to(DEVICE)
    with pytest.raises(RuntimeError, match="aclnnSort"):
        x.sort()
    x += 1
    assert_same_bits(x, sample(4, 6) + 1)
    assert_same_bits(torch.ones(7, device=DEVICE), torch.ones(7))


REFUSED = 100024
FLOAT32 = 0
NO_TYPE = 99
PLAIN = 2
FRACTAL_NZ = 29


class Acl:
    """The runtime's own functions, called as torch_npu calls them."""

    def __init__(self):
        self.library = ctypes.CDLL("libascendcl.so")
        self.library.aclCreateTensor.restype = ctypes.c_void_p
        self.library.aclGetRecentErrMsg.restype = ctypes.c_char_p
        self.executor = ctypes.c_void_p()

    def tensor(self, shape, address, *, storage, dtype=FLOAT32, layout=PLAIN):
        numbers = ctypes.c_int64 * len(shape)
        strides = [torch.Size(shape[i + 1 :]).numel() for i in range(len(shape))]
        return ctypes.c_void_p(
            self.library.aclCreateTensor(
                numbers(*shape),
                ctypes.c_uint64(len(shape)),
                dtype,
                numbers(*strides),
                ctypes.c_int64(0),
                layout,
                (ctypes.c_int64 * 1)(storage),
                ctypes.c_uint64(1),
                ctypes.c_void_p(address),
            )
        )

    def plan(self, name, *operands):
        workspace = ctypes.c_uint64()
        return getattr(self.library, f"{name}GetWorkspaceSize")(
            *operands, ctypes.byref(workspace), ctypes.byref(self.executor)
        )

    def launch(self, name, stream):
        return getattr(self.library, name)(
            None, ctypes.c_uint64(0), self.executor, ctypes.c_void_p(stream)
        )

    def message(self):
        return self.library.aclGetRecentErrMsg().decode()


BAD_OPERANDS = {
    "no tensor": (None, "it is missing"),
    "17 dimensions": ({"shape": [1] * 17, "storage": 1}, "more than 16 dimensions"),
    "private": ({"shape": [4], "storage": 4, "layout": FRACTAL_NZ}, "private to the device"),
    "unknown type": ({"shape": [4], "storage": 4, "dtype": NO_TYPE}, "data type is not simulated"),
    "too long": ({"shape": [5], "storage": 4}, "beyond its storage"),
    "negative": ({"shape": [-4], "storage": 4}, "negative dimension"),
    "enormous": ({"shape": [2**40, 2**40], "storage": 4}, "larger than any memory"),
    "other shape": ({"shape": [3], "storage": 4}, "does not have the shape of the result"),
}


@pytest.mark.parametrize(("operand", "reason"), BAD_OPERANDS.values(), ids=BAD_OPERANDS)
def test_an_operand_that_cannot_be_is_refused_with_the_reason(operand, reason):
    acl = Acl()
    memory = torch.zeros(4, device=DEVICE)
    good = acl.tensor([4], memory.data_ptr(), storage=4)
    bad = acl.tensor(address=memory.data_ptr(), **operand) if operand else None
    assert acl.plan("aclnnInplaceCopy", good, bad) == REFUSED
    assert "aclnnInplaceCopy" in (message := acl.message())
    assert reason in message
    assert_same_bits(memory, torch.zeros(4))


# ---- in other processes ----

HERE = Path(__file__).resolve()


def run_python(*arguments, **variables):
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=HERE.parents[2],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


# With 2 an operator is planned in torch_npu's own thread, where a refusal ends the task queue. For
# an Ascend950 torch_npu has no older operators, and hence no copies of views between devices.
@pytest.mark.parametrize(
    ("soc", "queue", "left_out"),
    [
        ("Ascend910_9391", "0", "in_another_process"),
        ("Ascend950PR", "2", "in_another_process or refused or another_device"),
    ],
)
def test_other_chips_and_task_queues_change_nothing_in_another_process(soc, queue, left_out):
    child = run_python(
        *(
            "-m",
            "pytest",
            "-q",
            "-x",
            "-p",
            "no:cacheprovider",
            "-k",
            f"not ({left_out})",
            str(HERE),
        ),
        EMS_SIM_SOC=soc,
        TASK_QUEUE_ENABLE=queue,
    )
    assert child.returncode == 0, child.stdout + child.stderr


LOST_DEVICES = """
import ctypes
from ems import simulator
simulator.ensure()
import torch
import test_operators

def zero_at(address):
    acl = test_operators.Acl()
    stream = torch.npu.current_stream().npu_stream
    assert acl.plan("aclnnInplaceZero", acl.tensor([4], address, storage=4)) == 0
    assert acl.launch("aclnnInplaceZero", stream) == 0

def index_out_of_range():
    torch.zeros(4, device="npu").index_select(0, torch.tensor([77], device="npu"))

def problem():
    try:
        torch.npu.synchronize()
    except RuntimeError as error:
        return "507035" if "507035" in str(error) else str(error)
    return "none"

host = (ctypes.c_float * 4)()
beyond = torch.zeros(4, device="npu:3").data_ptr() + (1 << 33)
ways = [
    index_out_of_range,
    lambda: zero_at(0x1000),
    lambda: zero_at(beyond),
    lambda: zero_at(ctypes.addressof(host)),
]
for device, spoil in enumerate(ways, start=1):
    with torch.npu.device(device):
        torch.npu.synchronize()
        spoil()
        print(problem(), problem())
print(torch.ones(2, device="npu:0").tolist())
"""


def test_an_error_on_a_device_stays_with_it_in_another_process():
    child = run_python("-c", LOST_DEVICES, EMS_SIM_DEVICES="5", PYTHONPATH=str(HERE.parent))
    assert child.stdout.splitlines() == ["507035 507035"] * 4 + ["[1.0, 1.0]"], child.stderr
