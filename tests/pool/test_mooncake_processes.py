"""Several processes use one cluster in the same second: cases 35 and 41."""

import multiprocessing

from contracts.host_memory import MappedMemory
from contracts.mooncake_cluster import cluster, needs_mooncake
from contracts.pool_engine import bytes_of, load, save

from ems.pool.base import Refused
from ems.pool.registry import open_pool

pytestmark = needs_mooncake

PROCESSES = 4
OWN = 100
SHARED = [f"shared-{at}" for at in range(50)]


def names_of(process):
    return [f"own-{process}-{at}" for at in range(OWN)]


def use(process, url, barrier, answers):
    """Save own entries and some that all save, then load what everyone saved."""
    pool = open_pool(url, MappedMemory())
    barrier.wait(60)
    refused = [save(pool, *names).count(Refused.NO_SPACE) for names in (SHARED, names_of(process))]
    barrier.wait(60)
    names = [*SHARED, *(name for one in range(PROCESSES) for name in names_of(one))]
    found = load(pool, *names)
    pool.close()
    wrong = [name for name, content in zip(names, found, strict=True) if content != bytes_of(name)]
    answers.put((refused, wrong))


def test_processes_that_start_together_store_everything_and_find_everything():
    spawn = multiprocessing.get_context("spawn")
    barrier, answers = spawn.Barrier(PROCESSES), spawn.Queue()
    with cluster() as trial:
        url = f"{trial.url}&staging=4MiB"
        processes = [
            spawn.Process(target=use, args=(one, url, barrier, answers)) for one in range(PROCESSES)
        ]
        for process in processes:
            process.start()
        try:
            told = [answers.get(timeout=120) for _ in processes]
            for process in processes:
                process.join(60)
        finally:
            for process in processes:
                process.kill()
                process.join()
    assert told == [([0, 0], [])] * PROCESSES
    assert [process.exitcode for process in processes] == [0] * PROCESSES
