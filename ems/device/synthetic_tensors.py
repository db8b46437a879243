"""The tensors of a synthetic cache, arranged as inference engines do it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import numpy as np
import torch
import torch_npu

from ems.common.exception import DeviceFailed
from ems.common.units import format_nbytes

Arrangement: TypeAlias = Literal["separate", "interleaved", "padded"]
"""Each tensor for itself; a layer's planes page by page in turns; or 4 KiB between blocks."""
_Tensors: TypeAlias = list[list[torch.Tensor]]
_PADDING: Final = 4096


@dataclass(frozen=True, slots=True)
class TensorShape:
    """One tensor of a layer: `[num_blocks, block_size, heads, head_size]`."""

    shape: tuple[int, ...]
    dtype: str
    """torch's name of the type, without the module."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of an NPU, all processes counted."""

    free_nbytes: int
    total_nbytes: int


def memory_of(index: int) -> Memory:
    """Return how much memory npu:`index` has.

    Raises:
        DeviceFailed: the NPU does not answer.
    """
    try:
        free, total = torch_npu.npu.mem_get_info(index)
    except RuntimeError as error:
        raise DeviceFailed(f"npu:{index} does not answer: {first_line(error)}") from error
    return Memory(int(free), int(total))


def allocated(
    index: int, layers: Sequence[Sequence[TensorShape]], arrangement: Arrangement
) -> tuple[_Tensors, _Tensors]:
    """Return the tensors by layer and plane, and the same memory as one row of bytes per block.

    Raises:
        DeviceFailed: they do not fit; the text names both sizes. Nothing stays allocated.
    """
    needed = sum(_needed(planes, arrangement) for planes in layers)
    free = memory_of(index).free_nbytes
    if needed > free:
        raise _too_large(index, needed, free)
    try:
        pairs = [_layer(index, planes, arrangement) for planes in layers]
    except torch.OutOfMemoryError:
        pass  # another process was quicker, or the allocator's own rounding was too much
    except RuntimeError as error:
        raise DeviceFailed(f"npu:{index} gave no memory: {first_line(error)}") from error
    else:
        return (
            [[tensor for tensor, _ in layer] for layer in pairs],
            [[rows for _, rows in layer] for layer in pairs],
        )
    torch_npu.npu.empty_cache()
    raise _too_large(index, needed, memory_of(index).free_nbytes)


def _needed(planes: Sequence[TensorShape], arrangement: Arrangement) -> int:
    padding = _PADDING * planes[0].shape[0] * len(planes) if arrangement == "padded" else 0
    return sum(_nbytes_of(plane) for plane in planes) + padding


def _layer(
    index: int, planes: Sequence[TensorShape], arrangement: Arrangement
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    if arrangement == "separate":
        made = [
            torch.empty(plane.shape, dtype=_dtype(plane), device=f"npu:{index}") for plane in planes
        ]
        return [(one, one.view(torch.uint8).view(one.shape[0], -1)) for one in made]
    if arrangement == "padded":
        return [_views(index, [plane], _PADDING)[0] for plane in planes]
    return _views(index, planes, 0)


def _views(
    index: int, planes: Sequence[TensorShape], padding: int
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return planes that share pages: block i of each of them lies in page i."""
    sizes = [_nbytes_of(plane) // plane.shape[0] for plane in planes]
    page, blocks = sum(sizes) + padding, planes[0].shape[0]
    if any(size % _dtype(plane).itemsize for size in sizes for plane in planes):
        raise DeviceFailed("planes of these sizes and types cannot share a page")
    memory = torch.empty(page * blocks, dtype=torch.uint8, device=f"npu:{index}")
    found = []
    for at, (plane, size) in enumerate(zip(planes, sizes, strict=True)):
        dtype, start = _dtype(plane), sum(sizes[:at])
        _, tokens, heads, width = plane.shape
        strides = (page // dtype.itemsize, heads * width, width, 1)
        typed = memory.view(dtype)
        view = typed.as_strided((blocks, tokens, heads, width), strides, start // dtype.itemsize)
        found.append((view, memory.as_strided((blocks, size), (page, 1), start)))
    return found


def _too_large(index: int, needed: int, free: int) -> DeviceFailed:
    return DeviceFailed(
        f"npu:{index} has {format_nbytes(free)} free ({free} bytes), the cache takes "
        f"{format_nbytes(needed)} ({needed} bytes)"
    )


def _nbytes_of(plane: TensorShape) -> int:
    return int(np.prod(plane.shape, dtype=object)) * _dtype(plane).itemsize


def _dtype(plane: TensorShape) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, plane.dtype)
    return dtype


def first_line(error: Exception) -> str:
    """Return what a failure of torch says, without the lines about how to debug it."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
