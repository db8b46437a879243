"""What processes do until they are killed. Importing this imports neither torch nor Mooncake."""

import os
import random
import signal
import time
from contextlib import closing

from contracts.host_memory import MappedMemory
from contracts.pool_engine import bytes_of, load, save
from lmdb_sharing import open_pool, use_for_ever

from ems.common.exception import PoolUnavailable, RequestTimeout
from ems.pool import registry

PATIENCE = 60

os.environ.setdefault("GLOG_minloglevel", "3")  # Mooncake tells at length what is killed here


def open_for_ever(path, seed, turns):
    """Open the pool, use it a little, close it, and begin again."""
    name = f"of-an-opener-{seed}"
    while os.getppid() != 1:
        signal.alarm(PATIENCE)
        turns.value += 1
        with closing(open_pool(path)) as pool:
            save(pool, name)
            [found] = load(pool, name)
            if isinstance(found, bytes) and found != bytes_of(name):
                os._exit(3)
        time.sleep(0.01)


def create(path, turns):
    """Make a pool where there is none, and wait."""
    turns.value = 1
    pool = open_pool(path)
    save(pool, "of-its-creator")
    signal.pause()
    pool.close()


def use_cluster_for_ever(url, names, seed, turns):
    """Save and load in a cluster that may be gone for a while."""
    pool = registry.open_pool(url, MappedMemory())
    use_for_ever(pool, names, seed, turns, forgiven=(PoolUnavailable, RequestTimeout))


def open_cluster_for_ever(url, seed, turns):
    """Connect to the cluster, use it a little, close, and begin again after a moment."""
    chance = random.Random(seed)  # noqa: S311 - a pattern, not a secret
    while os.getppid() != 1:
        signal.alarm(PATIENCE)
        turns.value += 1
        pool = registry.open_pool(f"{url}&segment={chance.choice(['0', '16MiB'])}", MappedMemory())
        with closing(pool):
            try:
                save(pool, "of-an-opener")
                [found] = load(pool, "of-an-opener")
            except (PoolUnavailable, RequestTimeout):
                continue
            if isinstance(found, bytes) and found != bytes_of("of-an-opener"):
                os._exit(3)
