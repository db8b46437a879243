"""Caches and buffers in one piece of device memory, of which every byte is known."""

import numpy as np
import torch

from ems import KvBufferWrapper, StoreLayerGroupDesc

DEV = "npu:0"
NBYTES = 1 << 15
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
    """A cache as `register_kvcache` takes it, from byte `start` of the memory."""

    def __init__(self, number, memory, start):
        layers, groups, blocks, padding, gap = _LAYOUTS[number]
        self.number = number
        planes = []
        for at, (block_size, widths) in enumerate(layers):
            planes.append([])
            for width in widths:
                planes[-1].append(_Plane(at, block_size, width, start, blocks, padding))
                start = planes[-1][-1].end + gap
        self.end = start
        self.kvcache = [[plane.tensor(memory, blocks) for plane in layer] for layer in planes]
        self.descriptions = groups and [StoreLayerGroupDesc(*one) for one in groups]
        parts = groups or [(None, list(range(len(layers))), None)]
        self.groups = [
            Group(at, [plane for layer in ids for plane in planes[layer]], most, window)
            for at, (most, ids, window) in enumerate(parts)
        ]
        self.one_block_size = len({group.block_size for group in self.groups}) == 1


class Memory:
    """The device memory, and what it must hold."""

    def __init__(self, seed):
        generator = np.random.default_rng(seed)
        self.noise = generator.integers(0, 256, 1 << 16, np.uint8)
        self._noise = torch.from_numpy(self.noise).to(DEV)
        self.mirror = np.zeros(NBYTES, np.uint8)
        self._device = torch.zeros(NBYTES, dtype=torch.uint8, device=DEV)
        self.caches, start = [], 128
        for number in range(len(_LAYOUTS)):
            self.caches.append(Cache(number, self._device, start))
            start = (self.caches[-1].end + 191) // 64 * 64
        self.cells = range(start, start + CELL * _CELLS, CELL)
        assert self.cells.stop + 128 <= NBYTES
        self._address = self._device.data_ptr()

    def buffer(self, start, nbytes):
        return KvBufferWrapper(self._address + start, nbytes)

    def fill(self, start, nbytes, source):
        """Write other bytes, on the caller's stream; nothing is awaited."""
        self._device[start : start + nbytes].copy_(self._noise[source : source + nbytes])
        self.mirror[start : start + nbytes] = self.noise[source : source + nbytes]

    def now(self):
        """Return all bytes, copied from the device."""
        return self._device.cpu().numpy()
