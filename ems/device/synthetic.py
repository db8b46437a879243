"""A KV cache that no model computes with, and the plain copies it is measured against.

For diagnosis: the content goes through torch's own copies, so that it proves the library's; the
raw copies are what the NPU does at best with the same spans.
"""

import ctypes
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch_npu

from ems.common.exception import DeviceFailed
from ems.device.acl import FEATURE_NOT_SUPPORTED, Acl, AclError
from ems.device.base import Direction
from ems.device.synthetic_tensors import (
    Arrangement,
    Memory,
    TensorShape,
    allocated,
    first_line,
    memory_of,
)
from ems.layout.copy_plan import Spans

__all__ = [
    "Memory",
    "RawCopies",
    "SyntheticCache",
    "TensorShape",
    "device_name",
    "halves",
    "memory_of",
]

Bytes: TypeAlias = npt.NDArray[np.uint8]

_LONGEST_MILLISECONDS = 120_000


def device_name(index: int) -> str:
    """Return what kind of NPU npu:`index` is."""
    return str(torch_npu.npu.get_device_name(index))


class SyntheticCache:
    """Layers × planes of tensors on one NPU, written and read block by block."""

    def __init__(
        self,
        index: int,
        layers: Sequence[Sequence[TensorShape]],
        arrangement: Arrangement = "separate",
    ) -> None:
        """Allocate the tensors; their content is undefined.

        Raises:
            DeviceFailed: they do not fit; the text names both sizes. Nothing stays allocated.
        """
        self.index = index
        self._tensors, self._blocks = allocated(index, layers, arrangement)

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
            for run, at in _runs(blocks, dense=target.is_contiguous()):
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
            for run, at in _runs(blocks, dense=source.is_contiguous()):
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
        self._streams = (self._acl.create_stream(), self._acl.create_stream())
        started = time.perf_counter()
        self.address = self._acl.malloc_host(nbytes)
        """Host address of the buffer."""
        self.pinning_seconds = time.perf_counter() - started
        """What taking the buffer cost."""
        self._other: Bytes = np.ones(nbytes, np.uint8)

    def copy(self, spans: Spans, direction: Direction) -> None:
        """Move all spans, in one call where the NPU can, and wait until the bytes have arrived.

        Raises:
            DeviceFailed: a copy failed.
        """
        self._copied([(spans, direction)])

    def copy_on_two_streams(self, spans: Spans, direction: Direction) -> None:
        """Move all spans as `copy` does, but half of the bytes on each of two streams.

        Raises:
            DeviceFailed: a copy failed.
        """
        self._copied([(half, direction) for half in halves(spans)])

    def copy_both_ways(self, out: Spans, into: Spans) -> None:
        """Move spans out and others in at the same time, on two streams.

        Raises:
            DeviceFailed: a copy failed.
        """
        self._copied([(out, Direction.OUT), (into, Direction.IN)])

    def _copied(self, batches: Sequence[tuple[Spans, Direction]]) -> None:
        with ExitStack() as moving:  # whatever fails, no stream moves a byte any more afterwards
            for (spans, direction), stream in zip(batches, self._streams, strict=False):
                moving.callback(self._acl.synchronize_stream, stream, _LONGEST_MILLISECONDS)
                if not (self._batched and self._queued_at_once(spans, direction, stream)):
                    self._acl.copy_each(spans, direction, stream)

    def _queued_at_once(self, spans: Spans, direction: Direction, stream: int) -> bool:
        try:
            self._acl.copy_batch(spans, direction, self._index, stream)
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


def halves(spans: Spans) -> tuple[Spans, ...]:
    """Return the spans in two parts of about as many bytes; one part where there is one span."""
    if len(spans) < 2:  # noqa: PLR2004 - one cannot be parted
        return (spans,)
    ends = np.cumsum(spans.nbytes)
    at = int(np.clip(np.searchsorted(ends, ends[-1] // 2) + 1, 1, len(spans) - 1))
    return tuple(
        Spans(spans.device[part], spans.host[part], spans.nbytes[part])
        for part in (slice(None, at), slice(at, None))
    )


def _runs(blocks: Sequence[int], *, dense: bool) -> list[tuple[range, int]]:
    """Return the stretches of consecutive blocks, each with its position in `blocks`.

    Blocks with something between them are copied one by one: torch would need a kernel for more.
    """
    if not dense:
        return [(range(block, block + 1), at) for at, block in enumerate(blocks)]
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
        raise DeviceFailed(f"npu:{index} has failed: {first_line(error)}") from error
