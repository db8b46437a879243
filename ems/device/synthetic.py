"""A KV cache that no model computes with, and the plain copies it is measured against.

For diagnosis: the content goes through torch's own copies, so that it proves the library's; the
raw copies are what the NPU does at best with the same spans.
"""

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch_npu

from ems.common.exception import DeviceFailed
from ems.common.units import format_nbytes
from ems.device.acl import FEATURE_NOT_SUPPORTED, Acl, AclError
from ems.device.base import Direction
from ems.layout.copy_plan import Spans

__all__ = ["Memory", "RawCopies", "SyntheticCache", "TensorShape", "device_name", "memory_of"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

_LONGEST_MILLISECONDS = 120_000


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
        raise DeviceFailed(f"npu:{index} does not answer: {_first_line(error)}") from error
    return Memory(int(free), int(total))


def device_name(index: int) -> str:
    """Return what kind of NPU npu:`index` is."""
    return str(torch_npu.npu.get_device_name(index))


class SyntheticCache:
    """Layers × planes of tensors on one NPU, written and read block by block."""

    def __init__(self, index: int, layers: Sequence[Sequence[TensorShape]]) -> None:
        """Allocate the tensors; their content is undefined.

        Raises:
            DeviceFailed: they do not fit; the text names both sizes. Nothing stays allocated.
        """
        self.index = index
        self._tensors = _allocated(index, layers)
        self._blocks = [
            [tensor.view(torch.uint8).view(tensor.shape[0], -1) for tensor in tensors]
            for tensors in self._tensors
        ]

    @property
    def kvcache(self) -> Any:
        """The tensors, as `register_kvcache` takes them."""
        return self._tensors

    def write(self, layer: int, plane: int, blocks: Sequence[int], rows: Bytes) -> None:
        """Fill blocks of one tensor; `rows` has the bytes of one block each.

        Raises:
            DeviceFailed: a copy failed.
        """
        target, source = self._blocks[layer][plane], torch.from_numpy(rows)
        with _copying(self.index):
            for run, at in _runs(blocks):
                target[run.start : run.stop].copy_(source[at : at + len(run)])

    def read(self, layer: int, plane: int, blocks: Sequence[int]) -> Bytes:
        """Return the bytes of blocks of one tensor, a row each.

        Raises:
            DeviceFailed: a copy failed.
        """
        source = self._blocks[layer][plane]
        rows: Bytes = np.empty((len(blocks), source.shape[1]), np.uint8)
        target = torch.from_numpy(rows)
        with _copying(self.index):
            for run, at in _runs(blocks):
                target[at : at + len(run)].copy_(source[run.start : run.stop])
        return rows

    def synchronize(self) -> None:
        """Wait for all work of the NPU.

        Raises:
            DeviceFailed: some of it failed.
        """
        with _copying(self.index):
            torch_npu.npu.synchronize(self.index)

    def close(self) -> None:
        """Give the memory back to the NPU, if it still works."""
        self._blocks.clear()
        self._tensors.clear()
        with suppress(RuntimeError):  # a failed NPU refuses this, too; the first failure is told
            torch_npu.npu.empty_cache()


class RawCopies:
    """Copies between one NPU and a pinned buffer without the library: the ceiling of its speed."""

    def __init__(self, index: int, nbytes: int) -> None:
        """Take the buffer, and a stream of its own.

        Raises:
            DeviceFailed: the host has no such memory.
        """
        self._index = index
        self._nbytes = nbytes
        torch_npu.npu.set_device(index)
        self._acl = Acl()
        self._batched = self._acl.has_batched_copy
        self._stream = self._acl.create_stream()
        self.address = self._acl.malloc_host(nbytes)
        """Host address of the buffer."""
        self._other: Bytes = np.ones(nbytes, np.uint8)

    def copy(self, spans: Spans, direction: Direction) -> None:
        """Move all spans, in one call where the NPU can, and wait until the bytes have arrived.

        Raises:
            DeviceFailed: a copy failed.
        """
        if not (self._batched and self._queued_at_once(spans, direction)):
            self._acl.copy_each(spans, direction, self._stream)
        self._acl.synchronize_stream(self._stream, _LONGEST_MILLISECONDS)

    def _queued_at_once(self, spans: Spans, direction: Direction) -> bool:
        try:
            self._acl.copy_batch(spans, direction, self._index, self._stream)
        except AclError as error:
            if error.number != FEATURE_NOT_SUPPORTED:
                raise
            self._batched = False
        return self._batched

    def copy_on_host(self, nbytes: int) -> None:
        """Copy so many bytes from the buffer to ordinary memory of the host, in one piece."""
        ctypes.memmove(self._other.ctypes.data, self.address, min(nbytes, self._nbytes))

    def close(self) -> None:
        """Give the buffer back, if the NPU still works."""
        if self.address:
            with suppress(DeviceFailed):  # the first failure is told
                self._acl.free_host(self.address)
            self.address = 0


def _allocated(index: int, layers: Sequence[Sequence[TensorShape]]) -> list[list[torch.Tensor]]:
    needed = sum(_nbytes_of(plane) for planes in layers for plane in planes)
    free = memory_of(index).free_nbytes
    if needed > free:
        raise _too_large(index, needed, free)
    try:
        return [
            [
                torch.empty(plane.shape, dtype=_dtype(plane), device=f"npu:{index}")
                for plane in planes
            ]
            for planes in layers
        ]
    except torch.OutOfMemoryError:
        pass  # another process was quicker, or the allocator's own rounding was too much
    except RuntimeError as error:
        raise DeviceFailed(f"npu:{index} gave no memory: {_first_line(error)}") from error
    torch_npu.npu.empty_cache()
    raise _too_large(index, needed, memory_of(index).free_nbytes)


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


def _runs(blocks: Sequence[int]) -> list[tuple[range, int]]:
    """Return the stretches of consecutive blocks, each with its position in `blocks`."""
    runs = []
    for _, places in groupby(range(len(blocks)), lambda at: blocks[at] - at):
        members = list(places)
        first = blocks[members[0]]
        runs.append((range(first, first + len(members)), members[0]))
    return runs


@contextmanager
def _copying(index: int) -> Iterator[None]:
    """Turn torch's failures within the block into ours."""
    try:
        yield
    except RuntimeError as error:
        raise DeviceFailed(f"npu:{index} has failed: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
