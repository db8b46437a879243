"""Calls that must end: a test that hangs tells less than one that fails."""

import threading
from contextlib import contextmanager

import pytest

PATIENCE = 60
"""Seconds; far beyond what any of it takes on a busy computer."""


def within(call, *arguments, seconds=PATIENCE):
    """Return what the call returns, or raise what it raises, on a thread that must end."""
    box = []

    def run():
        try:
            box.append((call(*arguments), None))
        except BaseException as error:  # noqa: BLE001 - it is raised where the test sees it
            box.append((None, error))

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"{call} has not ended after {seconds} s"
    [(value, error)] = box
    if error is not None:
        raise error
    return value


@contextmanager
def repeating(*calls):
    """Make each call again and again, on a thread of its own, until the block ends.

    A call that fails ends its thread, and fails the block at its end.
    """
    ended, failures = threading.Event(), []

    def repeat(call):
        try:
            while not ended.is_set():
                call()
        except BaseException as error:  # noqa: BLE001 - it is raised where the test sees it
            failures.append(error)

    threads = [threading.Thread(target=repeat, args=(call,), daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    if failures:
        raise failures[0]


@contextmanager
def without_threads():
    """Let no thread start within the block, as where a container's limit is reached."""

    def refused(thread):
        raise RuntimeError("can't start new thread")

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        yield
