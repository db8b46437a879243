"""A KV cache with guarded memory around its tensors, and between its blocks if asked.

For diagnosis: whatever a copy writes outside of the blocks that it should is seen.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import torch_npu

from ems.common.exception import DeviceFailed
from ems.device.synthetic import TensorShape, memory_of

__all__ = ["GUARD_NBYTES", "Content", "GuardedCache"]

Bytes: TypeAlias = npt.NDArray[np.uint8]

GUARD_NBYTES: Final = 512
"""Guarded bytes before and behind each tensor: a multiple of every element's size."""
_CANARY: Final = np.random.default_rng(0xCA9A).integers(0, 256, 1021, np.uint8)


@dataclass(frozen=True, slots=True)
class Content:
    """All memory of one tensor, read at once."""

    blocks: Bytes
    """A row of bytes per block."""
    broken_guard: tuple[int, int] | None
    """The first changed byte that belongs to no block: behind which block (-1: before all of
    them), and how far behind; None where all are as they were."""


class GuardedCache:
    """Layers × planes of tensors on one NPU, each block with `padding_nbytes` behind it."""

    def __init__(
        self, index: int, layers: Sequence[Sequence[TensorShape]], *, padding_nbytes: int = 0
    ) -> None:
        """Allocate the tensors, and fill all of their memory with the guards' bytes.

        Raises:
            DeviceFailed: they do not fit. Nothing stays allocated.
        """
        self.index = index
        self.padding_nbytes = padding_nbytes
        try:
            self._tensors = [[_Tensor(index, plane, padding_nbytes) for plane in planes]
                             for planes in layers]  # fmt: skip
        except torch.OutOfMemoryError as error:
            torch_npu.npu.empty_cache()
            free = memory_of(index).free_nbytes
            raise DeviceFailed(f"npu:{index} has only {free} bytes free for the cache") from error
        except RuntimeError as error:
            raise DeviceFailed(f"npu:{index} gave no memory: {error}") from error

    @property
    def kvcache(self) -> Any:
        """The tensors, as `register_kvcache` takes them."""
        return [[tensor.view for tensor in tensors] for tensors in self._tensors]

    def stride_nbytes(self, layer: int, plane: int) -> int:
        """Return the bytes from one block to the next."""
        return self._tensors[layer][plane].stride

    def write(self, layer: int, plane: int, blocks: Sequence[int], rows: Bytes) -> None:
        """Queue the filling of blocks of one tensor, as a kernel would do it; nothing is awaited.

        Raises:
            DeviceFailed: a copy was refused.
        """
        tensor = self._tensors[layer][plane]
        with _failures(self.index):
            staged = torch.from_numpy(np.ascontiguousarray(rows)).to(f"npu:{self.index}")
            for at, block in enumerate(blocks):
                tensor.blocks[block].copy_(staged[at])

    def read(self, layer: int, plane: int) -> Content:
        """Return what one tensor's memory holds now.

        Raises:
            DeviceFailed: a copy failed.
        """
        tensor = self._tensors[layer][plane]
        with _failures(self.index):
            raw: Bytes = tensor.raw.cpu().numpy()
        return tensor.content_of(raw)

    def restore_guards(self) -> None:
        """Fill all memory with the guards' bytes again, blocks included.

        Raises:
            DeviceFailed: a copy failed.
        """
        with _failures(self.index):
            for tensors in self._tensors:
                for tensor in tensors:
                    tensor.raw.copy_(torch.from_numpy(_canary(tensor.raw.numel())))

    def close(self) -> None:
        """Give the memory back to the NPU, if it still works."""
        self._tensors.clear()
        with suppress(RuntimeError):  # a failed NPU refuses this, too; the first failure is told
            torch_npu.npu.empty_cache()


class _Tensor:
    """One tensor: a view into memory that begins and ends with guards."""

    def __init__(self, index: int, plane: TensorShape, padding_nbytes: int) -> None:
        dtype: torch.dtype = getattr(torch, plane.dtype)
        blocks, tokens, heads, size = plane.shape
        self.num_blocks = blocks
        self.block_nbytes = tokens * heads * size * dtype.itemsize
        self.stride = self.block_nbytes + padding_nbytes
        nbytes = 2 * GUARD_NBYTES + blocks * self.stride
        nbytes += -nbytes % dtype.itemsize
        self.raw = torch.from_numpy(_canary(nbytes)).to(f"npu:{index}")
        self.view = self.raw.view(dtype).as_strided(
            plane.shape,
            (self.stride // dtype.itemsize, heads * size, size, 1),
            GUARD_NBYTES // dtype.itemsize,
        )
        self.blocks = self.raw.as_strided(
            (blocks, self.block_nbytes), (self.stride, 1), GUARD_NBYTES
        )

    def content_of(self, raw: Bytes) -> Content:
        end = GUARD_NBYTES + self.num_blocks * self.stride
        rows = raw[GUARD_NBYTES:end].reshape(self.num_blocks, self.stride)
        wrong = raw != _canary(raw.size)
        wrong[GUARD_NBYTES:end].reshape(self.num_blocks, self.stride)[:, : self.block_nbytes] = (
            False
        )
        broken = None
        if wrong.any():
            at = int(np.argmax(wrong))
            block = min((at - GUARD_NBYTES) // self.stride, self.num_blocks - 1)
            behind = at - GUARD_NBYTES - block * self.stride - self.block_nbytes
            broken = (-1, at) if at < GUARD_NBYTES else (block, behind)
        return Content(rows[:, : self.block_nbytes], broken)


def _canary(nbytes: int) -> Bytes:
    return np.resize(_CANARY, nbytes)


@contextmanager
def _failures(index: int) -> Iterator[None]:
    """Turn torch's failures within the block into ours."""
    try:
        yield
    except RuntimeError as error:
        text = str(error).strip().partition("\n")[0] or type(error).__name__
        raise DeviceFailed(f"npu:{index} has failed: {text}") from error
