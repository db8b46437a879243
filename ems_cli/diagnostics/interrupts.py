"""Ctrl-C where Python code runs inside of C++ that cannot bear an exception."""

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_held() -> Generator[None, None, None]:
    """Hold a Ctrl-C back until the block ends; a second one is not held.

    While torch_npu is loaded, its C++ calls Python: a KeyboardInterrupt there aborts the process.

    Raises:
        KeyboardInterrupt: at the end of the block, if one was held.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():
        yield  # ignored, as in the background of a script; or none of this thread's business
        return
    held: list[int] = []

    def hold(number: int, frame: FrameType | None) -> None:
        held.append(number)
        if len(held) > 1:
            before(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if held:
        raise KeyboardInterrupt
