"""Checksums are computed while bytes move: entries go in groups, one being checked meanwhile.

A group that has just arrived is also still in the processor's cache. xxhash computes without the
interpreter's lock, and so does Mooncake move.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

_T = TypeVar("_T")

GROUP_NBYTES = 16 << 20
"""Enough for a call's own cost not to show."""


def groups_of(sizes: Sequence[int]) -> list[range]:
    """Return positions in groups of about GROUP_NBYTES, in order; each has at least one."""
    groups: list[range] = []
    start, nbytes = 0, 0
    for at, size in enumerate(sizes):
        if at > start and nbytes + size > GROUP_NBYTES * 5 // 4:  # headers do not split a group
            groups.append(range(start, at))
            start, nbytes = at, 0
        nbytes += size
    if sizes:
        groups.append(range(start, len(sizes)))
    return groups


@contextmanager
def meanwhile(groups: Sequence[range]) -> Iterator[Callable[[Callable[[], _T]], "Future[_T]"]]:
    """Yield what starts work on a second thread; where there is one group, it is done at once.

    All work that was started has ended when the block has.
    """
    if len(groups) < 2:  # noqa: PLR2004 - nothing to overlap with
        yield _at_once
        return
    with ThreadPoolExecutor(1, thread_name_prefix="ems-mooncake-check") as thread:
        yield thread.submit


def _at_once(work: Callable[[], _T]) -> "Future[_T]":
    done: Future[_T] = Future()
    done.set_result(work())
    return done
