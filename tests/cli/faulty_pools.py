"""Pools that do not give back what was put."""

import ctypes

from ems.pool.base import Miss
from ems.pool.memory import MemoryPool


class ForgetfulPool(MemoryPool):
    def __init__(self, memory):
        super().__init__(memory, capacity_nbytes=1 << 20, segment_nbytes=1 << 20)

    def acquire(self, keys, tokens, *, deadline):
        return [Miss.ABSENT for _ in keys]


class GarblingPool(ForgetfulPool):
    def acquire(self, keys, tokens, *, deadline):
        held = MemoryPool.acquire(self, keys, tokens, deadline=deadline)
        byte = ctypes.c_ubyte.from_address(held[0].address + 7)
        byte.value ^= 1
        return held
