"""Caches and buffers in one piece of memory of each of two NPUs, of which every byte is known."""

import numpy as np
import torch

from ems import KvBufferWrapper, StoreLayerGroupDesc

_SIZES = (1 << 15, 1 << 14)
"""Bytes of the piece on each NPU. All positions count from the start of the first piece."""
NBYTES = sum(_SIZES)
CELL = 64
"""Bytes of the places where a buffer may lie."""
_CELLS = 64
_LAYOUTS = (
    # block_size and bytes of a token of each plane, by layer; groups; blocks; padding, gap
    ([(4, (16, 16))], None, 8, 0, 0),
    ([(4, (16, 16))], None, 12, 32, 6),  # the same layout elsewhere, so with the same keys
    ([(4, (8, 8)), (4, (8, 8))], None, 8, 0, 64),
    ([(4, (24, 4))] * 3, [(8, [0, 1], None), (4, [2], 6)], 12, 4, 2),
    ([(4, (16,)), (8, (12,))], [(4, [0], None), (8, [1], None)], 8, 0, 10),
    ([(4, (16,)), (8, (12,))], [(4, [0], None), (8, [1], None)], 9, 12, 70),
    ([(2, (40,)), (2, (40,))], [(6, [0], 5), (6, [1], 3)], 12, 0, 0),
)
_CACHES = (range(len(_LAYOUTS)), (0, 2, 3, 6))
"""The layouts of the caches on each NPU; those of the second have the same keys as on the first."""


class Group:
    """One layer group: which bytes of the memory each of its slots is."""

    def __init__(self, index, planes, most, window):
        self.block_size = planes[0].block_size
        self.window = window
        self.rows = np.concatenate([plane.rows for plane in planes], axis=1)
        """[slots, bytes of a token over all planes]"""
        self.slots = len(self.rows)
        self.most = most or self.slots
        self.signature = (index, *((one.layer, one.block_size, one.width) for one in planes))


class _Plane:
    def __init__(self, layer, block_size, width, start, blocks, padding):  # noqa: PLR0913, PLR0917
        self.layer, self.block_size, self.width = layer, block_size, width
        self.start, self.stride = start, block_size * width + padding
        block = start + self.stride * np.arange(blocks)[:, None]
        slots = (block + width * np.arange(block_size)).reshape(-1, 1)
        self.rows = slots + np.arange(width)
        self.end = start + self.stride * blocks

    def tensor(self, memory, blocks):
        shape = (blocks, self.block_size, 1, self.width // 2)
        strides = (self.stride // 2, self.width // 2, self.width // 2, 1)
        return memory.view(torch.float16).as_strided(shape, strides, self.start // 2)


class Cache:
    """A cache as `register_kvcache` takes it, from byte `start` of an NPU's piece."""

    def __init__(self, layout, piece, start):
        layers, groups, blocks, padding, gap = _LAYOUTS[layout]
        self.name = f"{layout} on npu:{piece.index}"
        self.device = piece.index
        planes = []
        for at, (block_size, widths) in enumerate(layers):
            planes.append([])
            for width in widths:
                planes[-1].append(_Plane(at, block_size, width, start, blocks, padding))
                start = planes[-1][-1].end + gap
        self.end = start
        tensors = [[plane.tensor(piece.bytes, blocks) for plane in layer] for layer in planes]
        self.kvcache = tensors
        for plane in (plane for layer in planes for plane in layer):
            plane.rows += piece.first
        self.descriptions = groups and [StoreLayerGroupDesc(*one) for one in groups]
        parts = groups or [(None, list(range(len(layers))), None)]
        self.groups = [
            Group(at, [plane for layer in ids for plane in planes[layer]], most, window)
            for at, (most, ids, window) in enumerate(parts)
        ]
        self.one_block_size = len({group.block_size for group in self.groups}) == 1


class _Piece:
    """One NPU's part of the memory."""

    def __init__(self, index, first):
        self.index, self.first, self.end = index, first, first + _SIZES[index]
        self.bytes = torch.zeros(_SIZES[index], dtype=torch.uint8, device=f"npu:{index}")
        self.caches, start = [], 128
        for layout in _CACHES[index]:
            self.caches.append(Cache(layout, self, start))
            start = (self.caches[-1].end + 191) // 64 * 64
        self.cells = range(first + start, first + start + CELL * _CELLS, CELL)
        assert self.cells.stop + 128 <= self.end


class Memory:
    """The memory of the NPUs, and what it must hold."""

    def __init__(self, seed):
        generator = np.random.default_rng(seed)
        self.noise = generator.integers(0, 256, 1 << 16, np.uint8)
        self.mirror = np.zeros(NBYTES, np.uint8)
        self._pieces = [_Piece(0, 0), _Piece(1, _SIZES[0])]
        self._noise = [torch.from_numpy(self.noise).to(one.bytes.device) for one in self._pieces]
        self.caches = [cache for piece in self._pieces for cache in piece.caches]
        self.cells = [piece.cells for piece in self._pieces]
        """By NPU, where buffers may lie."""

    def buffer(self, start, nbytes):
        piece = self._piece(start)
        return KvBufferWrapper(piece.bytes.data_ptr() + start - piece.first, nbytes)

    def fill(self, start, nbytes, source):
        """Write other bytes, on the caller's stream; nothing is awaited."""
        piece = self._piece(start)
        nbytes = min(nbytes, piece.end - start)
        noise = self._noise[piece.index][source : source + nbytes]
        at = start - piece.first
        piece.bytes[at : at + nbytes].copy_(noise)
        self.mirror[start : start + nbytes] = self.noise[source : source + nbytes]

    def now(self):
        """Return all bytes, copied from the NPUs."""
        return np.concatenate([piece.bytes.cpu().numpy() for piece in self._pieces])

    def _piece(self, start):
        return next(piece for piece in self._pieces if start < piece.end)
