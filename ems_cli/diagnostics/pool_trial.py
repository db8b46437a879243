"""One entry into a pool and out again, compared byte by byte."""

import ctypes
import os
import time
from collections.abc import Generator

from ems.common.exception import EmsException
from ems.layout.key import PoolKey
from ems.pool.base import Held, HostMemory, Place, PoolEngine
from ems.pool.registry import open_pool

_NBYTES = 4096


def try_pool(url: str, memory: HostMemory, *, seconds: float) -> Generator[str, None, None]:
    """Yield the name of each step that has worked: opened, answers, stored, read back, removed.

    The entry has a key of its own, and is removed in any case.

    Raises:
        EmsException: a step failed; the text says how.
    """
    deadline = time.monotonic() + seconds
    pool = open_pool(url, memory)
    try:
        yield "opened"
        pool.check_health(deadline=deadline)
        yield "answers"
        key = PoolKey(f"ems1-doctor-{os.getpid()}-{os.urandom(8).hex()}")
        content = os.urandom(_NBYTES)
        try:
            _put(pool, key, content, deadline)
            yield "stored"
            _compare(pool, key, content, deadline)
            yield "read back"
        finally:
            pool.remove([key])
        yield "removed"
    finally:
        pool.close()


def _put(pool: PoolEngine, key: PoolKey, content: bytes, deadline: float) -> None:
    place = pool.reserve([key], [1], [len(content)], deadline=deadline)[0]
    if not isinstance(place, Place):
        raise EmsException(f"the pool took no entry of {len(content)} bytes: {place.name}")
    ctypes.memmove(place.address, content, len(content))
    pool.commit([place])


def _compare(pool: PoolEngine, key: PoolKey, content: bytes, deadline: float) -> None:
    held = pool.acquire([key], [1], deadline=deadline)[0]
    if not isinstance(held, Held):
        raise EmsException(f"what was stored is not there: {held.name}")
    found = ctypes.string_at(held.address, held.nbytes)
    pool.release([held])
    if found != content:
        first = next(at for at, (a, b) in enumerate(zip(found, content, strict=False)) if a != b)
        raise EmsException(f"the pool gave back other bytes, the first at {first}")
