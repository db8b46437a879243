"""How much of a file system a pool takes, and when: all of it, when it is made."""

import os
from pathlib import Path

from ems.common.exception import PoolUnavailable
from ems.common.units import format_nbytes
from ems.pool.lmdb.record import PAGE_NBYTES

_BATCH_NBYTES = 8 << 20
_FIXED_NBYTES = 2 << 20
_SLACK = 8
_BLOCK_NBYTES = 512
"""What `st_blocks` counts in."""


def batch_nbytes(capacity_nbytes: int) -> int:
    """Return about what one transaction of a shard writes, or reads; a larger entry goes alone.

    So long others wait for the writer's lock, and so long a reader keeps pages that were freed
    from being used again.
    """
    return min(_BATCH_NBYTES, capacity_nbytes // 8)


def map_nbytes(capacity_nbytes: int) -> int:
    """Return the size of the file that always has room for `capacity_nbytes` of entries.

    An eighth is for free pages that lie scattered. What a transaction frees can be used two
    transactions later, so there is room for four. The rest is for the tables.
    """
    room = capacity_nbytes + capacity_nbytes // _SLACK + 4 * batch_nbytes(capacity_nbytes)
    return -(-(room + _FIXED_NBYTES) // PAGE_NBYTES) * PAGE_NBYTES


def refuse_links(*paths: Path) -> None:
    """Return if LMDB, which follows links, finds none.

    Raises:
        PoolUnavailable: one of the files is a link.
    """
    for path in paths:
        if path.is_symlink():
            raise PoolUnavailable(f"the pool file {path} is a link; remove the pool's directory")


def reserve_space(path: Path, nbytes: int) -> None:
    """Take the whole file from the file system: later there would be SIGBUS, not an error.

    Raises:
        PoolUnavailable: the file system is full.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_blocks * _BLOCK_NBYTES < nbytes:
            os.posix_fallocate(descriptor, 0, nbytes)
    except OSError as error:
        raise PoolUnavailable(
            f"the pool file {path} needs {format_nbytes(nbytes)}, which the file system does not "
            f"give: {error.strerror}"
        ) from error
    finally:
        os.close(descriptor)
