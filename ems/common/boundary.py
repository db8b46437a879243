"""The border to the caller: nothing but EmsException leaves, and a forked child does not enter."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from ems.common.exception import EmsException


def refuse_fork(pid: int) -> None:
    """Raise if this process is not the one with that pid. To be called before any lock is taken.

    Raises:
        EmsException: it was forked from it: its NPU, threads and locks are not usable.
    """
    if os.getpid() != pid:
        raise EmsException(
            "this process was forked after Ems.init: an NPU cannot be used in it; start processes "
            'with the "spawn" method and call Ems.init in each'
        )


@contextmanager
def guarded(pid: int) -> Iterator[None]:
    """Let out nothing but EmsException, and refuse a fork of the process with that pid."""
    refuse_fork(pid)
    try:
        yield
    except EmsException:
        raise
    except Exception as error:
        raise EmsException(f"internal fault: {type(error).__name__}: {error}") from error
