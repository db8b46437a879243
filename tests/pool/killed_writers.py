"""Processes that use a pool until they are killed, one after the other in the same place."""

import os
import sys
import time
from multiprocessing import get_context
from unittest import mock

from bounded import PATIENCE
from contracts.pool_engine import key_of, read, soon
from lmdb_sharing import content_of

from ems.pool.base import Held


def forking():
    """Return what forks processes from one that has imported everything and opened nothing."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["lmdb_sharing"])
    with mock.patch.dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)):
        context.Process(target=int).start()  # the server keeps what it is started with
    return context


class Writer:
    """A process that calls `target(*arguments, turns)`, which counts its turns, until killed."""

    def __init__(self, context, target, *arguments):
        self.turns = context.Value("Q", lock=False)
        self.process = context.Process(target=target, args=(*arguments, self.turns), daemon=True)
        self.process.start()

    def check(self):
        code = self.process.exitcode
        assert code is None, f"a writer found wrong bytes (3), hung (-14) or failed: {code}"

    def await_turn(self, since=0):
        """Wait until it has made more than `since` turns."""
        end = time.monotonic() + PATIENCE
        while self.turns.value <= since:
            assert time.monotonic() < end, "a writer gets no further"
            self.check()
            time.sleep(0.001)

    def kill(self):
        self.check()
        self.process.kill()
        self.process.join()


def check_everything(pool, names, reopen):
    """Compare all entries with the one content each can have, before and after opening anew."""
    found = 0
    for name in range(names):
        [one] = pool.acquire([key_of(name)], [1], deadline=soon())
        if isinstance(one, Held):
            assert read(one) == content_of(name, one.tokens)
            pool.release([one])
            found += 1
    assert found > 0
    before = pool.stats()
    pool.close()
    pool = reopen()
    assert pool.stats().used_nbytes == before.used_nbytes
    assert pool.clear() == before.entries
    assert pool.stats().used_nbytes == 0
