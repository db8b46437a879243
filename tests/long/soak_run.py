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
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from contracts.mooncake_cluster import WHY_NOT, cluster, kill

UNIT, AMOUNT = "minutes", 60
RANK = Path(__file__).with_name("soak_rank.py")
STARTING_SECONDS = 600
"""In which a rank is at work; it imports torch first, on a busy computer."""
FLAT_NBYTES = 24 << 20
FLAT_COUNT = 6
"""What a process that lives on may have more in the last quarter than in the second."""
LMDB_NBYTES = 24 << 20


@dataclass(frozen=True)
class Pace:
    """How much is done, and how often something happens; means of random times."""

    ranks: int = 4
    """On each pool."""
    share: float = 0.06
    """Of a core, for each rank."""
    kill_seconds: float = 18.0
    cluster_seconds: float = 75.0
    stop_seconds: float = 20.0
    sample_seconds: float = 60.0
    quiet_seconds: float = 60.0
    """At the end, in which nothing dies any more."""
    least_per_minute: int = 60
    """Verified reads on each pool."""


class Rank:
    """The place of one rank, whichever process fills it."""

    def __init__(self, pool, number, soak):
        self.pool, self.number, self.soak = pool, number, soak
        self.name = f"{pool}-{number}"
        self.status = soak.home / f"{self.name}.json"
        self.log = soak.home / f"{self.name}.log"
        self.before = Counter()
        """What earlier processes have done."""
        self.worst = 0.0
        self.turn = 0
        self.start()

    def start(self):
        self.turn += 1
        asked = {
            "url": self.soak.urls[self.pool](self.number),
            "rank": self.number,
            "device": self.number % 4,
            "seed": self.soak.chance.randrange(1 << 30),
            "share": self.soak.pace.share,
            "start": self.soak.began,
            "status": str(self.status),
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, RANK, json.dumps(asked)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.soak.environment,
            )
        self.started = time.monotonic()

    def now(self):
        """What this process has told."""
        with suppress(FileNotFoundError):
            told = json.loads(self.status.read_text())
            assert "wrong" not in told, f"{self.name}: {told['wrong']}"
            self.worst = max(self.worst, told.get("worst", 0.0))
            return Counter({name: value for name, value in told.items() if name != "worst"})
        return Counter()

    def total(self):
        return self.before + self.now()

    @property
    def works(self):
        return self.now()["turns"] > 0

    def check(self):
        if self.process.poll() is not None:
            self.now()
            tail = self.log.read_text(errors="replace")[-3000:]
            raise AssertionError(f"{self.name} ended with {self.process.returncode}: {tail}")
        late = time.monotonic() - self.started > STARTING_SECONDS
        assert self.works or not late, f"{self.name} does not get to work: {self.now()}"

    def kill(self):
        self.check()
        kill(self.process)
        self.before = self.total()
        self.status.unlink(missing_ok=True)
        self.start()

    def end(self):
        self.process.stdin.close()
        assert self.process.wait(120) == 0, self.log.read_text(errors="replace")[-3000:]
        self.now()


class Soak:
    """All that runs, and what was seen of it."""

    def __init__(self, seconds, seed, pace, home, trial):
        self.pace, self.home, self.trial = pace, home, trial
        self.chance = random.Random(seed)  # noqa: S311 - a pattern, not a secret
        self.seconds = seconds
        self.began = time.time()
        self.killed = Counter()
        self.stopped = []
        """Processes that go on at a time: `(time, process)`."""
        self.samples = []
        self.run_dir = home / "run"
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            "EMS_SIM_DEVICES": "4",
            "EMS_SIM_ACCOUNT": f"soak-{os.getpid()}",
            "EMS_RUN_DIR": str(self.run_dir),
        }
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
        self.ranks = [
            Rank(pool, number, self) for pool in self.urls for number in range(self.pace.ranks)
        ]
        until = time.monotonic() + STARTING_SECONDS
        while not all(rank.works for rank in self.ranks):
            assert time.monotonic() < until, [rank.now() for rank in self.ranks]
            self.check()
            time.sleep(0.2)
        self.start = time.monotonic()
        self.before = self.verified()
        due = {what: self.next(what) for what in ("kill", "cluster", "stop")}
        sampled = 0.0
        quiet = self.start + self.seconds - self.pace.quiet_seconds
        at_quiet = None
        while (now := time.monotonic()) < self.start + self.seconds:
            self.check()
            self.go_on(now)
            if now - sampled >= self.pace.sample_seconds:
                sampled = now
                self.sample()
            for what, when in due.items():
                if when < now < quiet:
                    getattr(self, what)()
                    due[what] = self.next(what)
            if now >= quiet and at_quiet is None and not self.stopped:
                if all(rank.works for rank in self.ranks):
                    at_quiet = self.verified()
            time.sleep(0.2)
        self.go_on(float("inf"))
        self.sample()
        assert at_quiet is not None, "what was killed last did not get to work again"
        for pool, count in self.verified().items():
            assert count > at_quiet[pool], f"nothing is read from {pool} after the last kill"

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
            "run_files": len(list(self.run_dir.glob("*"))),
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
        assert second and last, f"{count} samples are too few"
        grown = {}
        for name in [name for name in self.samples[0] if name != "places"]:
            grown[name] = {
                what: statistics.median(one[name][what] for one in last)
                - statistics.median(one[name][what] for one in second)
                for what in self.samples[0][name]
            }
            assert grown[name]["memory"] <= FLAT_NBYTES, (name, grown)
            assert grown[name]["descriptors"] <= FLAT_COUNT, (name, grown)
            assert grown[name]["threads"] <= FLAT_COUNT, (name, grown)
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
        # a rank that starts and ends clears away what killed ones have left
        last = Rank("lmdb", 0, self)
        self.ranks.append(last)
        until = time.monotonic() + STARTING_SECONDS
        while not last.works:
            last.check()
            assert time.monotonic() < until
            time.sleep(0.1)
        last.end()
        left = sorted(path.name for path in self.run_dir.glob("*"))
        assert len(left) <= self.killed["lmdb"] + self.killed["mooncake"], left
        assert size_of(self.home / "pool") <= 2 * LMDB_NBYTES
        return totals

    def stop_all(self):
        for rank in self.ranks:
            kill(rank.process)


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


def run(amount, seed, *, pace=None, with_mooncake=None):
    """Soak for `amount` minutes; return what was done.

    Without `with_mooncake` a cluster is part of it where Mooncake is installed.
    """
    pace = pace or Pace()
    with ExitStack() as stack:
        home = Path(tempfile.mkdtemp(prefix="ems-soak-", dir="/dev/shm"))
        stack.callback(shutil.rmtree, home)
        trial = None
        if with_mooncake if with_mooncake is not None else WHY_NOT is None:
            trial = stack.enter_context(cluster(segment_nbytes=48 << 20))
        soak = Soak(amount * 60, seed, pace, home, trial)
        stack.callback(soak.stop_all)
        soak.go()
        grown = soak.growth()
        totals = soak.end()
        calls = totals["saves"] + totals["loads"] + totals["exists"]
        errors = {name: totals[name] for name in totals if name.startswith("EMS_")}
        worst = max(rank.worst for rank in soak.ranks)
        return (
            f"{calls:,} calls in {totals['turns']:,} turns, {totals['saved']:,} hashes saved, "
            f"{totals['verified']:,} of {totals['asked']:,} loaded and verified "
            f"({', '.join(f'{pool} {count:,}' for pool, count in soak.verified().items())}); "
            f"killed or stopped {dict(soak.killed)}; errors {errors}; latest end {worst:+.2f} s "
            f"from its deadline; growth {json.dumps(grown)}"
        )
