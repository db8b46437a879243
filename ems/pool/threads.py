"""Threads for work that may take longer than whoever waits for it."""

import threading
from collections.abc import Callable

from ems.common.exception import PoolUnavailable


def started(work: Callable[[], None], *, name: str) -> threading.Thread:
    """Return a thread that does `work`: a daemon, so that it does not keep a process from ending.

    Raises:
        PoolUnavailable: the system gives no thread, as where a container's limit is reached.
    """
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise PoolUnavailable(f"there is no thread for {name}: {error}") from error
    return thread
