"""Mixed load of many ranks on two pools at once for a long time, while parties of it die.

Eight ranks on four simulated NPUs, four on an LMDB pool and four on a real Mooncake cluster, save
and load what they share; random ones are killed, stopped for a while, and started again, and so
are the master and the nodes of the cluster. Every byte of every cache is compared at each turn
(soak_rank.py). Watched are memory, descriptors and threads of those that live on, deadlines, and
what is left behind.
"""

import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

from contracts.mooncake_cluster import WHY_NOT, cluster, kill
from rank_places import STARTING_SECONDS, RankPlace, account_of, environment, see_what_is_left

UNIT, AMOUNT = "minutes", 60
LMDB_NBYTES = 24 << 20


@dataclass(frozen=True)
class Pace:
    """How much is done, and how often something happens; means of random times."""

    ranks: int = 4
    """On each pool."""
    share: float = 0.02
    """Of a core, for each rank."""
    kill_seconds: float = 18.0
    cluster_seconds: float = 75.0
    stop_seconds: float = 20.0
    sample_seconds: float = 60.0
    quiet_seconds: float = 60.0
    """At the end, in which nothing dies any more."""
    least_per_minute: int = 60
    """Verified reads on each pool."""
    flat_nbytes: int = 24 << 20
    flat_count: int = 6
    """Descriptors and threads; what a process that lives on may have more at last."""


class Soak:
    """All that runs, and what was seen of it."""

    def __init__(self, seconds, seed, pace, home, trial):
        self.pace, self.home, self.trial = pace, home, trial
        self.share = pace.share
        self.chance = random.Random(seed)  # noqa: S311 - a pattern, not a secret
        self.seconds = seconds
        self.began = time.time()
        self.killed = Counter()
        self.stopped = []
        """Processes that go on at a time: `(time, process)`."""
        self.start = time.monotonic()
        self.samples = []
        self.sampled = 0.0
        self.environment = environment(home)
        self.urls = {
            "lmdb": lambda _: f"lmdb://{home}/pool?capacity={LMDB_NBYTES}&staging=8MiB",
        }
        if trial is not None:
            self.urls["mooncake"] = self.mooncake_url
        self.ranks = []

    def mooncake_url(self, number):
        """Half of the ranks use the master's metrics; the last one lends memory."""
        url = self.trial.url if number % 2 else self.trial.url.partition("?")[0] + "?segment=0"
        if number == self.pace.ranks - 1:
            url = f"{self.trial.url}&segment=32MiB"
        return f"{url}&staging=8MiB"

    def go(self):
        for pool in self.urls:
            for number in range(self.pace.ranks):
                self.ranks.append(RankPlace(self, pool, number))
        self.await_all("works", lambda: all(rank.works for rank in self.ranks))
        self.samples.clear()
        self.start = time.monotonic()
        self.before = self.verified()
        self.files = self.pool_files()
        due = {what: self.next(what) for what in ("kill", "cluster", "stop")}
        end = self.start + self.seconds
        while (now := time.monotonic()) < end:
            self.look(now)
            for what, when in due.items():
                if when < now < end - self.pace.quiet_seconds:
                    getattr(self, what)()
                    due[what] = self.next(what)
        self.go_on(float("inf"))
        self.await_all("works", lambda: all(rank.works for rank in self.ranks))
        before = self.verified()
        self.await_all(
            "reads", lambda: all(now > before[pool] for pool, now in self.verified().items())
        )
        self.sample()

    def look(self, now):
        """All must be well; what was stopped goes on, and now and then all is measured."""
        self.check()
        self.go_on(now)
        if now - self.sampled >= self.pace.sample_seconds:
            self.sampled = now
            self.sample()
        time.sleep(0.1)

    def await_all(self, what, condition):
        """Wait for what must come, however busy the computer is."""
        until = time.monotonic() + STARTING_SECONDS
        while not condition():
            assert time.monotonic() < until, (what, [rank.now() for rank in self.ranks])
            self.look(time.monotonic())

    def next(self, what):
        mean = getattr(self.pace, f"{what}_seconds")
        return time.monotonic() + mean * self.chance.uniform(0.3, 1.7)

    def check(self):
        for rank in self.ranks:
            rank.check()

    def kill(self):
        """Kill a rank, wherever it is in its work; the first one of each pool lives on."""
        rank = self.chance.choice([rank for rank in self.ranks if rank.number])
        rank.kill()
        self.killed[rank.pool] += 1

    def cluster(self):
        """Kill the master or the node of the cluster, and start it again after a moment."""
        if self.trial is None:
            return
        self.go_on(float("inf"))  # a node does not start while the master is stopped
        if self.chance.random() < 0.5:
            kill(self.trial.master)
            time.sleep(self.chance.random() * 2)
            self.trial.start_master()
            self.killed["master"] += 1
        else:
            kill(self.trial.nodes.pop())
            time.sleep(self.chance.random() * 2)
            self.trial.start_node()
            self.killed["node"] += 1

    def stop(self):
        processes = [rank.process for rank in self.ranks]
        if self.trial is not None:
            processes += [self.trial.master, *self.trial.nodes]
        process = self.chance.choice(processes)
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGSTOP)
        self.stopped.append((time.monotonic() + self.chance.uniform(0.5, 2), process))
        self.killed["stopped"] += 1

    def go_on(self, now):
        for when, process in self.stopped:
            if when <= now and process.poll() is None:
                os.kill(process.pid, signal.SIGCONT)
        self.stopped = [one for one in self.stopped if one[0] > now]

    def verified(self):
        counts = Counter(dict.fromkeys(self.urls, 0))
        for rank in self.ranks:
            counts[rank.pool] += rank.total()["verified"]
        return counts

    def sample(self):
        living = {rank.name: rank.process.pid for rank in self.ranks if not rank.number}
        living["supervisor"] = os.getpid()
        one = {name: figures(pid) for name, pid in living.items()}
        one["places"] = {
            "pool": size_of(self.home / "pool"),
            "run_files": len(list((self.home / "run").glob("*"))),
            "shm": size_of(Path("/dev/shm")),  # noqa: S108 - only looked at
        }
        self.samples.append(one)
        print(  # noqa: T201 - progress of a run of an hour
            f"{(time.monotonic() - self.start) / 60:.1f} min: {dict(self.killed)} "
            f"verified {dict(self.verified())} {json.dumps(one)}",
            flush=True,
        )

    def growth(self):
        """What each process that lives on has more in the last quarter than in the second."""
        count = len(self.samples)
        second = self.samples[count // 4 : count // 2]
        last = self.samples[-(count // 4) :]
        assert second, f"{count} samples are too few"
        grown = {}
        for name in [name for name in self.samples[0] if name != "places"]:
            grown[name] = {
                what: statistics.median(one[name][what] for one in last)
                - statistics.median(one[name][what] for one in second)
                for what in self.samples[0][name]
            }
            assert grown[name]["memory"] <= self.pace.flat_nbytes, (name, grown)
            assert grown[name]["descriptors"] <= self.pace.flat_count, (name, grown)
            assert grown[name]["threads"] <= self.pace.flat_count, (name, grown)
        return grown

    def end(self):
        """End the ranks, and see that what is left is what a pool is."""
        for rank in self.ranks:
            rank.end()
        totals = sum((rank.total() for rank in self.ranks), Counter())
        minutes = self.seconds / 60
        for pool, count in self.verified().items():
            least = self.pace.least_per_minute * minutes
            assert count - self.before[pool] >= least, f"{count} reads from {pool}"
        verified = self.verified()
        worst = max(rank.worst for rank in self.ranks)
        self.look_at_the_rest()
        return totals, verified, worst

    def look_at_the_rest(self):
        kills = self.killed["lmdb"] + self.killed["mooncake"]
        see_what_is_left(self, next(iter(self.urls)), kills)
        assert size_of(self.home / "pool") <= 2 * LMDB_NBYTES
        assert self.pool_files() == self.files

    def pool_files(self):
        return sorted(path.name for path in (self.home / "pool").rglob("*"))

    def stop_all(self):
        for rank in self.ranks:
            rank.stop()
        account_of(self.home).unlink(missing_ok=True)


def figures(pid):
    process = Path(f"/proc/{pid}")
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    return {
        "memory": int(status["RssAnon"].split()[0]) << 10,
        "descriptors": len(list((process / "fd").iterdir())),
        "threads": int(status["Threads"]),
    }


def size_of(path):
    """Bytes that the files under `path` take."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            with suppress(OSError):
                total += Path(folder, name).stat().st_blocks * 512
    return total


def run(amount, seed, *, pace=None, pools=None):
    """Soak for `amount` minutes; return what was done.

    Without `pools`, which names them, it is both where Mooncake is installed.
    """
    pace = pace or Pace()
    pools = pools or (("lmdb",) if WHY_NOT else ("lmdb", "mooncake"))
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="ems-soak-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, home)
        trial = None
        if "mooncake" in pools:
            trial = stack.enter_context(cluster(segment_nbytes=48 << 20))
        soak = Soak(amount * 60, seed, pace, home, trial)
        soak.urls = {pool: soak.urls[pool] for pool in pools}
        stack.callback(soak.stop_all)
        soak.go()
        grown = soak.growth()
        totals, verified, worst = soak.end()
        calls = totals["saves"] + totals["loads"] + totals["exists"]
        errors = {name: totals[name] for name in totals if name.startswith("EMS_")}
        return (
            f"{calls:,} calls in {totals['turns']:,} turns, {totals['saved']:,} hashes saved, "
            f"{totals['verified']:,} of {totals['asked']:,} loaded and verified "
            f"({', '.join(f'{pool} {count:,}' for pool, count in verified.items())}); "
            f"killed or stopped {dict(soak.killed)}; errors {errors}; latest end {worst:+.2f} s "
            f"from its deadline; growth {json.dumps(grown)}"
        )
