import threading

import pytest
from transfer_fakes import World

from ems.transfer.transfer import Transfer


def test_a_way_whose_second_worker_cannot_start_leaves_no_first_one(monkeypatch):
    world, start = World(), threading.Thread.start
    before = set(threading.enumerate())

    def refuse_the_second(thread):
        if set(threading.enumerate()) > before:
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse_the_second)
    with pytest.raises(RuntimeError, match="new thread"):
        Transfer(world.device, world.pool)
    for thread in set(threading.enumerate()) - before:
        thread.join(10)
    assert set(threading.enumerate()) == before
