"""Calls that must end: a test that hangs tells less than one that fails."""

import threading

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
