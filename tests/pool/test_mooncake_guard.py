"""Nothing reaches Mooncake that ends the process: in children, since a fault would end them."""

import subprocess
import sys

import pytest
from contracts.mooncake_cluster import needs_mooncake

pytestmark = needs_mooncake

BEGIN = """
import signal, sys, threading, time
from contracts.host_memory import MappedMemory
from contracts.mooncake_cluster import cluster, hang, kill, pool_of
from contracts.pool_engine import key_of, load, save
from ems.common.exception import PoolUnavailable, RequestTimeout
from ems.pool.registry import open_pool

def use(pool, seed, ended, counts):
    turn = 0
    while not ended.is_set():
        turn += 1
        names = [f"{seed}-{turn % 20}-{at}" for at in range(8)]
        try:
            save(pool, *names)
            load(pool, *names)
            pool.check_health(deadline=time.monotonic() + 1)
            counts["done"] += 1
        except (PoolUnavailable, RequestTimeout):
            counts["refused"] += 1
            time.sleep(0.01)

def users(pool, count=4):
    ended, counts = threading.Event(), {"done": 0, "refused": 0}
    threads = [
        threading.Thread(target=use, args=(pool, seed, ended, counts), daemon=True)
        for seed in range(count)
    ]
    for thread in threads:
        thread.start()
    return threads, ended, counts

def end(threads, ended):
    ended.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
"""

CLOSED_WHILE_USED = """
with cluster() as trial:
    for _ in range(3):
        with pool_of(trial) as pool:
            threads, ended, counts = users(pool)
            while not counts["done"]:
                time.sleep(0.01)
            pool.close()
            while not counts["refused"]:
                time.sleep(0.01)
            end(threads, ended)
"""

CLOSED_WHILE_THE_MASTER_IS_DEAD = """
with cluster() as trial, pool_of(trial) as pool:
    threads, ended, counts = users(pool)
    while not counts["done"]:
        time.sleep(0.01)
    kill(trial.master)
    while counts["refused"] < 4:
        time.sleep(0.01)
    pool.close()
    end(threads, ended)
"""

CLOSED_BEFORE_AND_WHILE_CONNECTING = """
with cluster() as trial:
    for pause in (0, 0.01, 0.03):
        with pool_of(trial) as pool:
            threads, ended, counts = users(pool)
            time.sleep(pause)
            pool.close()
            end(threads, ended)
"""

ENDS_WITHOUT_CLOSE = """
with cluster() as trial:
    pool = open_pool(trial.url, MappedMemory())
    save(pool, "a")
    hang(trial.master, signal.SIGSTOP)
    try:
        pool.acquire([key_of("a")], [1], deadline=time.monotonic() + 0.5)
    except (PoolUnavailable, RequestTimeout):
        pass
"""


@pytest.mark.parametrize(
    "script",
    [
        CLOSED_WHILE_USED,
        CLOSED_WHILE_THE_MASTER_IS_DEAD,
        CLOSED_BEFORE_AND_WHILE_CONNECTING,
        ENDS_WITHOUT_CLOSE,
    ],
    ids=["while-used", "while-the-master-is-dead", "while-connecting", "never"],
)
def test_a_process_that_closes_its_pool_at_any_moment_ends_in_order(script):
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", "-c", BEGIN + script],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
