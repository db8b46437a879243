"""Every party is killed as with kill -9 at a random moment, round after round.

Ranks in the middle of opening, registering, saving and loading; processes that write to, open or
create an LMDB pool; the master of a Mooncake cluster, its nodes, and processes that use it or
lend memory to it. After each round: a value is right or it is a miss, the calls of those who live
on end in time, and the pool works. At the end: nothing is left that a restart does not clear away.
"""

import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path

_TESTS = Path(__file__).parent.parent
sys.path += [str(_TESTS), str(_TESTS / "pool")]

import kill_parties  # noqa: E402 - the paths must be known
import lmdb_sharing  # noqa: E402
from bounded import within  # noqa: E402
from contracts.mooncake_cluster import WHY_NOT, cluster, eventually, kill, pool_of  # noqa: E402
from contracts.pool_engine import bytes_of, key_of, load, save  # noqa: E402
from killed_writers import Writer, check_everything, forking  # noqa: E402
from rank_places import RankPlace, account_of, environment, see_what_is_left  # noqa: E402

from ems.common.exception import PoolUnavailable, RequestTimeout  # noqa: E402
from ems.pool.base import Miss  # noqa: E402

UNIT, AMOUNT = "rounds", 1000

NAMES = 60
WRITERS = 3
CALL_SECONDS = 10 + 15
"""The deadline of every call here, and what a busy computer may add."""
AGAIN_SECONDS = 60
"""In which a cluster works again."""


class Lmdb:
    """A pool of this host and the processes that use it."""

    def __init__(self, run, stack):
        self.run, self.chance = run, run.chance
        self.path = run.home / "pool"
        self.context = forking()
        self.pool = self.open()
        stack.callback(self.pool.close)
        self.files = files_of(self.path)
        self.seed = 0
        self.writers = [self.writer() for _ in range(WRITERS)]
        self.opener = self.new(kill_parties.open_for_ever)
        stack.callback(lambda: [one.process.kill() for one in (*self.writers, self.opener)])
        self.parties = {
            "LMDB writer": (60, self.kill_writer),
            "LMDB opener": (10, self.kill_opener),
            "LMDB creator": (8, self.kill_creator),
        }

    def open(self):
        return lmdb_sharing.open_pool(self.path)

    def writer(self):
        return self.new(lmdb_sharing.write_until_killed, NAMES)

    def new(self, target, *arguments):
        self.seed += 1
        seed = self.chance.randrange(1 << 30)
        return Writer(self.context, target, self.path, *arguments, seed)

    def kill_writer(self):
        at = self.chance.randrange(WRITERS)
        self.writers[at].await_turn()
        with self.others_go_on(self.writers[at]):
            time.sleep(self.chance.random() * 0.03)
            self.writers[at].kill()
        self.writers[at] = self.writer()
        self.check()

    def kill_opener(self):
        self.opener.await_turn()
        time.sleep(self.chance.random() * 0.05)
        with self.others_go_on(self.opener):
            self.opener.kill()
        self.opener = self.new(kill_parties.open_for_ever)
        self.check()

    def kill_creator(self):
        path = self.run.home / "created"
        creator = Writer(self.context, kill_parties.create, path)
        creator.await_turn()
        time.sleep(self.chance.random() ** 2 * 0.03)
        creator.kill()
        with closing(within(lmdb_sharing.open_pool, path, seconds=CALL_SECONDS)) as pool:
            check_works(pool)
            found = load(pool, "of-its-creator")
            assert found in ([bytes_of("of-its-creator")], [Miss.ABSENT]), found
            assert files_of(path) == self.files
        shutil.rmtree(path)

    @contextmanager
    def others_go_on(self, killed):
        """See that those who live on make turns after the block."""
        yield
        living = [one for one in self.writers if one is not killed and one.turns.value]
        before = [one.turns.value for one in living]
        for one, turns in zip(living, before, strict=True):
            one.await_turn(turns)

    def check(self):
        sample = self.chance.sample(range(NAMES), 10)
        wrong = within(lmdb_sharing.wrong_contents, self.pool, sample, seconds=CALL_SECONDS)
        assert wrong == []
        check_works(self.pool)

    def end(self):
        for one in (*self.writers, self.opener):
            one.await_turn()
            one.kill()
        assert self.pool.stats().held_nbytes == self.pool.stats().reserved_nbytes == 0
        again = []

        def reopen():
            again.append(self.open())
            return again[0]

        check_everything(self.pool, NAMES, reopen)
        again[0].close()
        assert files_of(self.path) == self.files


class Mooncake:
    """A real cluster of this computer and the processes that use it."""

    def __init__(self, run, stack):
        self.chance = run.chance
        self.trial = stack.enter_context(cluster(lease_seconds=0.5))
        self.pool = stack.enter_context(pool_of(self.trial))
        self.context = get_context("spawn")
        self.attempts = 0
        self.slowest = 0.0
        self.writers = [self.writer(at) for at in range(2)]
        self.opener = self.new(kill_parties.open_cluster_for_ever)
        stack.callback(lambda: [one.process.kill() for one in (*self.writers, self.opener)])
        self.parties = {
            "Mooncake user": (4, lambda: self.kill_writer(0)),
            "Mooncake lender": (3, lambda: self.kill_writer(1)),
            "Mooncake opener": (3, self.kill_opener),
            "Mooncake master": (3, self.kill_master),
            "Mooncake node": (3, self.kill_node),
        }

    def writer(self, lends):
        """A process that uses the cluster; it may lend memory to it, too."""
        return self.new(
            kill_parties.use_cluster_for_ever, NAMES, more="&segment=32MiB" if lends else ""
        )

    def new(self, target, *arguments, more=""):
        url = f"{self.trial.url}&staging=4MiB{more}"
        return Writer(self.context, target, url, *arguments, self.chance.randrange(1 << 30))

    def kill_writer(self, at):
        self.writers[at].await_turn()
        time.sleep(self.chance.random() * 0.05)
        self.writers[at].kill()
        self.check()
        self.writers[at] = self.writer(at)

    def kill_opener(self):
        self.opener.await_turn()
        time.sleep(self.chance.random() * 0.5)
        self.opener.kill()
        self.check()
        self.opener = self.new(kill_parties.open_cluster_for_ever)

    def kill_master(self):
        kill(self.trial.master)
        self.look()
        self.trial.start_master()
        self.check()

    def kill_node(self):
        kill(self.trial.nodes.pop())
        self.look()
        self.trial.start_node()
        self.check()

    def look(self):
        """Read while the cluster may not answer: right, a miss, or an error in time."""
        sample = self.chance.sample(range(NAMES), 10)
        try:
            wrong = within(lmdb_sharing.wrong_contents, self.pool, sample, seconds=CALL_SECONDS)
        except (PoolUnavailable, RequestTimeout):
            return
        assert wrong == []

    def check(self):
        self.look()
        began = time.monotonic()
        assert eventually(self.works, seconds=AGAIN_SECONDS), "the cluster does not work again"
        self.slowest = max(self.slowest, time.monotonic() - began)
        if self.chance.random() < 0.25:  # it may take a save's ten seconds
            turns = [one.turns.value for one in self.writers]
            for one, before in zip(self.writers, turns, strict=True):
                if one.process.is_alive():
                    one.await_turn(before)
        self.look()

    def works(self):
        self.attempts += 1
        name = f"mine-{self.attempts}"
        try:
            within(save, self.pool, name, seconds=CALL_SECONDS)
            [found] = within(load, self.pool, name, seconds=CALL_SECONDS)
        except (PoolUnavailable, RequestTimeout):
            return False
        assert isinstance(found, Miss) or found == bytes_of(name)
        return not isinstance(found, Miss)

    def end(self):
        for one in (*self.writers, self.opener):
            one.check()
            one.kill()
        assert eventually(self.works, seconds=AGAIN_SECONDS)
        assert eventually(lambda: self.pool.stats().held_nbytes == 0)
        assert eventually(lambda: self.pool.stats().reserved_nbytes == 0)


class Ranks:
    """Whole ranks, one on each pool: killed while they open, register or work."""

    def __init__(self, run, stack):
        self.run, self.chance = run, run.chance
        self.parties = {"opening rank": (0, self.kill_opening), "rank": (0, self.kill_working)}
        stack.callback(self.stop)
        for number, pool in enumerate(run.urls, 2):
            run.ranks.append(RankPlace(run, pool, number))
        self.kills = 0

    def chosen(self):
        """Return whom to kill now: one that opens is one for a moment only."""
        for rank in self.run.ranks:
            rank.check()
        if any(rank.opens for rank in self.run.ranks):
            return "opening rank" if self.chance.random() < 0.5 else None
        if any(rank.works for rank in self.run.ranks):
            return "rank" if self.chance.random() < 0.2 else None
        return None

    def kill_opening(self):
        time.sleep(self.chance.random() * 0.1)
        self.kill(rank for rank in self.run.ranks if rank.opens or rank.works)

    def kill_working(self):
        self.kill(rank for rank in self.run.ranks if rank.works)

    def kill(self, ranks):
        self.chance.choice(list(ranks)).kill()
        self.kills += 1
        for side in self.run.sides:
            side.check()

    def end(self):
        for rank in self.run.ranks:
            rank.await_work()
            rank.end()
        done = sum((rank.total() for rank in self.run.ranks), Counter())
        assert done["verified"] > 0
        self.run.verified = done["verified"]
        see_what_is_left(self.run, next(iter(self.run.urls)), self.kills)

    def stop(self):
        for rank in self.run.ranks:
            rank.stop()
        account_of(self.run.home).unlink(missing_ok=True)


class Run:
    """The pools that are asked for, and all that uses them."""

    share = 0.2
    """Of a core, for a rank."""

    def __init__(self, seed, home, pools, stack, *, with_ranks):
        self.home = home
        self.chance = random.Random(seed)  # noqa: S311 - a pattern, not a secret
        self.began = time.time()
        self.environment = environment(home)
        self.ranks = []
        self.verified = 0
        self.sides = [{"lmdb": Lmdb, "mooncake": Mooncake}[pool](self, stack) for pool in pools]
        self.urls = {}
        for pool, side in zip(pools, self.sides, strict=True):
            url = (
                f"lmdb://{home}/of-ranks?capacity=24MiB"
                if pool == "lmdb"
                else f"{side.trial.url}&segment=16MiB"
            )
            self.urls[pool] = lambda _, url=url: f"{url}&staging=8MiB"
        self.whole = Ranks(self, stack) if with_ranks else None
        self.parties = {name: party for side in self.sides for name, party in side.parties.items()}
        self.killed = Counter()

    def round(self):
        name = self.whole.chosen() if self.whole else None
        if name is not None:
            self.whole.parties[name][1]()
        else:
            names = list(self.parties)
            weights = [self.parties[one][0] for one in names]
            [name] = self.chance.choices(names, weights)
            self.parties[name][1]()
        self.killed[name] += 1

    def end(self):
        if self.whole:
            self.whole.end()
        for side in self.sides:
            side.end()


def check_works(pool):
    """See that an entry goes in and comes out, if others do not evict it at once."""

    def works():
        within(save, pool, "mine", seconds=CALL_SECONDS)
        [found] = within(load, pool, "mine", seconds=CALL_SECONDS)
        assert found in (bytes_of("mine"), Miss.EVICTED, Miss.ABSENT), found
        return isinstance(found, bytes)

    assert eventually(works), "what is saved is never found"
    pool.remove([key_of("mine")])


def files_of(path):
    return sorted(one.name for one in path.rglob("*"))


def run(amount, seed, *, pools=None, with_ranks=True):
    """Kill so many times; return who was killed how often.

    Without `pools`, which names them, it is both where Mooncake is installed.
    """
    pools = pools or (("lmdb",) if WHY_NOT else ("lmdb", "mooncake"))
    began = time.monotonic()
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="ems-kills-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, home)
        all_of_it = Run(seed, home, pools, stack, with_ranks=with_ranks)
        for at in range(amount):
            try:
                all_of_it.round()
            except Exception as error:
                raise AssertionError(f"round {at} of {amount}, seed {seed}") from error
        seconds = time.monotonic() - began
        all_of_it.end()
        left = files_of(home)
    told = ", ".join(f"{name} {count}" for name, count in all_of_it.killed.most_common())
    waits = [side.slowest for side in all_of_it.sides if hasattr(side, "slowest")]
    return (
        f"killed {told}; {seconds / amount:.2f} s a round, "
        f"{all_of_it.verified:,} hashes verified by ranks"
        + "".join(f", a cluster worked again after at most {one:.1f} s" for one in waits)
        + f"; {len(left)} files of the pools at the end"
    )
