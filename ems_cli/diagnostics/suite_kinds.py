"""The four kinds of pool that the suite measures: opened for it, and gone afterwards."""

import shutil
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final, Literal

from ems.common.exception import PoolUnavailable
from ems.common.units import format_nbytes
from ems.pool.mooncake.trial import Trial
from ems_cli.diagnostics.suite_by_hand import Memory, Store, raw_lmdb, raw_mooncake

PoolName = Literal["memory", "lmdb", "tiered", "mooncake"]
POOLS: Final[tuple[PoolName, ...]] = ("memory", "lmdb", "tiered", "mooncake")
_SHM: Final = Path("/dev/shm")  # noqa: S108 - a folder of our own in it
_STEP_NBYTES: Final = 1 << 20
_LEAST_SEGMENT_NBYTES: Final = 64 << 20
_STAGING_NBYTES: Final = 256 << 20
"""What the engines take by default, for entries to pass through."""
_FILES: Final = 1.25
"""What files take by the capacity of the pool in them, at most."""


@dataclass(frozen=True, slots=True)
class SuitePool:
    """A pool that is there to be measured."""

    name: PoolName
    url: str | None
    """None: memory:// of the size needed."""
    by_hand: Callable[[Memory], AbstractContextManager[Store]] | None = None
    """The calls of its engine; None where it has none."""


def opened(name: PoolName, room_nbytes: int) -> AbstractContextManager[SuitePool]:
    """Return a pool with room for so many bytes of entries, for the length of a `with` block.

    Raises:
        EmsException: at the start of the block: it cannot be had, the text says why.
    """
    return _OPEN[name](room_nbytes)


def needed_nbytes(name: PoolName, room_nbytes: int) -> int:
    """Return the memory that a pool takes with what is measured in it, NPU and host together."""
    copies = 2 * room_nbytes  # a cache to save from and load into, two buffers of the raw copies
    files = int(_FILES * room_nbytes)
    return (
        copies
        + {
            "memory": room_nbytes,
            "lmdb": files + int(_FILES * _by_hand_nbytes(room_nbytes)) + _STAGING_NBYTES,
            "tiered": files + room_nbytes + _STAGING_NBYTES,
            "mooncake": room_nbytes + _STAGING_NBYTES,
        }[name]
    )


def _by_hand_nbytes(room_nbytes: int) -> int:
    """Return the capacity of the file by hand: plain LMDB does not evict, so it must never fill."""
    return room_nbytes * 3 // 4


@contextmanager
def _memory(_room_nbytes: int) -> Generator[SuitePool, None, None]:
    yield SuitePool("memory", None)


@contextmanager
def _lmdb(room_nbytes: int) -> Generator[SuitePool, None, None]:
    by_hand_nbytes = _by_hand_nbytes(room_nbytes)
    with _folder(room_nbytes + by_hand_nbytes) as folder:
        yield SuitePool(
            "lmdb",
            f"lmdb://{folder}/pool?capacity={room_nbytes}",
            lambda memory: raw_lmdb(folder, by_hand_nbytes, memory),
        )


@contextmanager
def _tiered(room_nbytes: int) -> Generator[SuitePool, None, None]:
    with _folder(room_nbytes) as folder:
        options = f"capacity={room_nbytes}&local={room_nbytes}"
        yield SuitePool("tiered", f"tiered+lmdb://{folder}/pool?{options}")


@contextmanager
def _mooncake(room_nbytes: int) -> Generator[SuitePool, None, None]:
    with suppress(ModuleNotFoundError):  # the trial says what to install
        import_module("ems.pool.mooncake.library")
    segment = max(_LEAST_SEGMENT_NBYTES, -(-room_nbytes // _STEP_NBYTES) * _STEP_NBYTES)
    trial = Trial(segment_nbytes=segment)
    with trial.running():
        yield SuitePool("mooncake", trial.url, lambda memory: raw_mooncake(trial.url, memory))


_OPEN: Final[Mapping[PoolName, Callable[[int], AbstractContextManager[SuitePool]]]] = {
    "memory": _memory,
    "lmdb": _lmdb,
    "tiered": _tiered,
    "mooncake": _mooncake,
}


@contextmanager
def _folder(room_nbytes: int) -> Generator[Path, None, None]:
    """Make a folder in memory that goes with all that is in it.

    Raises:
        PoolUnavailable: there is no room for files of pools with so much capacity.
    """
    needed = int(_FILES * room_nbytes)
    free = shutil.disk_usage(_SHM).free if _SHM.is_dir() else 0
    if needed > free:
        raise PoolUnavailable(
            f"takes {format_nbytes(needed)} in {_SHM}, which has {format_nbytes(free)} free"
        )
    with tempfile.TemporaryDirectory(prefix="ems-bench-", dir=_SHM) as folder:
        yield Path(folder)
