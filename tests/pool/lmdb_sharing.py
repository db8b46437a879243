"""What processes do that share an LMDB pool in tests. Importing this does not import torch."""

import fcntl
import hashlib
import os
import random
import signal
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing, contextmanager, suppress
from multiprocessing import get_context

from contracts.host_memory import MappedMemory
from contracts.pool_engine import key_of, load, read, save, soon, write

from ems.pool.base import Held, Place
from ems.pool.lmdb.pool import LmdbPool
from ems.pool.lmdb.settings import LmdbSettings

CAPACITY = 8 << 20
STAGING = 8 << 20

_TURN_SECONDS = 60
"""Far beyond the deadlines of a turn's calls; then SIGALRM ends the process."""


def open_pool(path, **settings):
    settings = {"capacity_nbytes": CAPACITY, "staging_nbytes": STAGING, **settings}
    return LmdbPool(MappedMemory(), LmdbSettings(path=path, **settings))


@contextmanager
def other_processes(count):
    """Yield an executor of processes that share nothing with this one but files."""
    with ProcessPoolExecutor(count, mp_context=get_context("spawn")) as executor:
        yield executor


def elsewhere(function, *arguments):
    """Call a function of this module in a process of its own, and return what it returns."""
    with other_processes(1) as executor:
        return executor.submit(function, *arguments).result(timeout=120)


def save_there(path, *names, **how):
    with closing(open_pool(path)) as pool:
        return [type(answer).__name__ for answer in save(pool, *names, **how)]


def save_with(path, capacity_nbytes):
    """Save an entry in a pool of this capacity, and return the capacity it has."""
    with closing(open_pool(path, capacity_nbytes=capacity_nbytes)) as pool:
        save(pool, "a")
        return pool.stats().capacity_nbytes


def load_there(path, *names):
    with closing(open_pool(path)) as pool:
        return load(pool, *names)


def fill_there(path, count=1200):
    """Save more entries than the pool holds, or some."""
    with closing(open_pool(path)) as pool:
        for first in range(0, count, 60):
            save(pool, *(f"filler {name}" for name in range(first, first + 60)))


def clear_there(path):
    with closing(open_pool(path)) as pool:
        return pool.clear()


def content_of(name, tokens):
    """The one content that an entry of this name and length has, whoever saves it."""
    seed = hashlib.sha256(f"{name} {tokens}".encode()).digest()
    return (seed * (nbytes_of(name, tokens) // 32 + 1))[: nbytes_of(name, tokens)]


def nbytes_of(name, tokens):
    return (1 + name * 7919 % 90_000) * tokens


def write_until_killed(path, names, seed, turns):
    use_for_ever(open_pool(path), names, seed, turns)


def use_for_ever(pool, names, seed, turns, *, forgiven=()):
    """Save and load at random for ever; an entry that is not as it should be ends the process.

    So does an error that is not of the kinds `forgiven`, or a call without an end.
    """
    chance = random.Random(seed)  # noqa: S311 - a pattern, not a secret
    while os.getppid() != 1:
        signal.alarm(_TURN_SECONDS)
        picked = chance.sample(range(names), 3)
        with suppress(*forgiven):
            if chance.random() < 0.6:
                save_contents(pool, picked, chance.randint(1, 3))
            elif wrong_contents(pool, picked):
                os._exit(3)
            if chance.random() < 0.02:
                pool.remove([key_of(picked[0])])
        turns.value += 1


def save_contents(pool, names, tokens):
    keys = [key_of(name) for name in names]
    sizes = [nbytes_of(name, tokens) for name in names]
    answers = pool.reserve(keys, [tokens] * len(keys), sizes, deadline=soon())
    places = [one for one in answers if isinstance(one, Place)]
    for name, answer in zip(names, answers, strict=True):
        if isinstance(answer, Place):
            write(answer, content_of(name, tokens))
    pool.commit(places)


def wrong_contents(pool, names):
    """Return the names of entries whose bytes are not what anyone saves under them."""
    found = pool.acquire([key_of(name) for name in names], [1] * len(names), deadline=soon())
    held = [(name, one) for name, one in zip(names, found, strict=True) if isinstance(one, Held)]
    wrong = [name for name, one in held if read(one) != content_of(name, one.tokens)]
    pool.release([one for _, one in held])
    return wrong


def save_own_then_load_all(path, rank, ranks, count, barrier_directory):
    """Save `count` entries of this rank's own, wait for the others, and load everyone's."""
    with closing(open_pool(path, capacity_nbytes=64 << 20)) as pool:
        for at in range(count):
            save(pool, f"{rank}-{at}")
        (barrier_directory / str(rank)).touch()
        end = time.monotonic() + 60
        while len(list(barrier_directory.iterdir())) < ranks and time.monotonic() < end:
            time.sleep(0.01)
        names = [f"{one}-{at}" for one in range(ranks) for at in range(count)]
        return [load(pool, name)[0] for name in names]


def stall_in_a_transaction(path, ready):
    """Begin to write, and never end."""
    pool = open_pool(path)

    def stall(_):
        ready.set()
        time.sleep(600)

    with pool._home.shards() as shards:
        shards._shards[0]._transactions.write(stall)


def use_as(pid, path, ready):
    """Be known to the pool as the process with this pid, as one of another container can be."""
    with (path / "0.mdb-lock").open("r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, pid)
        ready.set()
        time.sleep(600)


def read_for_ever(path, ready):
    """Begin to read, and never end."""
    pool = open_pool(path)
    with pool._home.shards() as shards:
        transaction = shards._shards[0]._transactions.environment.begin()
        ready.set()
        time.sleep(600)
        transaction.abort()
