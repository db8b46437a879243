"""The places of ranks that work until they are killed, and are started again (soak_rank.py)."""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

from contracts.mooncake_cluster import kill

from ems.telemetry.recorder import DEAD_KEPT

RANK = Path(__file__).with_name("soak_rank.py")
STARTING_SECONDS = 600
"""In which a rank is at work; it imports torch first, on a busy computer."""


def environment(home):
    """What all ranks of a run are told: their account of simulated NPUs and their descriptions."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "EMS_SIM_DEVICES": "4",
        "EMS_SIM_ACCOUNT": home.name,
        "EMS_RUN_DIR": str(home / "run"),
    }


def account_of(home):
    """The file in which the simulated NPUs of a run keep account of their memory."""
    return Path(f"/dev/shm/ems-simulator-{os.geteuid()}-{home.name}")  # noqa: S108 - as it is


class RankPlace:
    """The place of one rank of a run, whichever process fills it."""

    def __init__(self, run, pool, number):
        self.pool, self.number, self.chance = pool, number, run.chance
        home = run.home
        self.name = f"{pool}-{number}"
        self.status = home / f"{self.name}.json"
        self.log = home / f"{self.name}.log"
        self.asked = {
            "url": run.urls[pool](number),
            "rank": number,
            "device": number % 4,
            "share": run.share,
            "start": run.began,
            "status": str(self.status),
        }
        # a thread of torch_npu's queue of tasks takes a tenth of a core while nothing is done
        queue = {"TASK_QUEUE_ENABLE": "0" if number > 1 else "1"}
        self.environment = {**run.environment, **queue}
        self.before = Counter()
        """What earlier processes have done."""
        self.worst = 0.0
        self.start()

    def start(self):
        self.status.unlink(missing_ok=True)
        asked = {**self.asked, "seed": self.chance.randrange(1 << 30)}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, RANK, json.dumps(asked)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=self.environment,
            )
        self.started = time.monotonic()

    def now(self):
        """What this process has told; what is wrong is an error here."""
        with suppress(FileNotFoundError):
            told = json.loads(self.status.read_text())
            assert "wrong" not in told, f"{self.name}: {told['wrong']}"
            self.worst = max(self.worst, told.pop("worst"))
            return Counter(told)
        return Counter()  # it has only been started

    def total(self):
        return self.before + self.now()

    @property
    def works(self):
        return self.now()["turns"] > 0

    @property
    def opens(self):
        """Whether it is about to open its pool and register, or does so."""
        return not self.works and self.now()["opening"] > 0

    def await_work(self):
        while not self.works:
            self.check()
            time.sleep(0.05)

    def check(self):
        if self.process.poll() is not None:
            self.now()
            raise AssertionError(f"{self.name} ended with {self.process.returncode}: {self.said()}")
        late = time.monotonic() - self.started > STARTING_SECONDS
        assert self.works or not late, f"{self.name} does not get to work: {self.now()}"

    def kill(self):
        """Kill it wherever it is, and start another one."""
        self.check()
        self.stop()
        self.before = self.total()
        self.start()

    def stop(self):
        """Kill it for good."""
        kill(self.process)
        self.process.stdin.close()

    def end(self):
        """Let it come to its end."""
        self.process.stdin.close()
        assert self.process.wait(120) == 0, self.said()
        self.now()

    def said(self):
        return self.log.read_text(errors="replace")[-3000:]


def see_what_is_left(run, pool, kills):
    """Let one more rank start and end, and look for what it has not cleared away."""
    last = RankPlace(run, pool, 0)
    run.ranks = [last]
    last.await_work()
    last.end()
    assert not account_of(run.home).exists(), "an account of simulated NPUs is left"
    left = sorted(path.name for path in (run.home / "run").glob("*"))
    assert len(left) <= min(kills, DEAD_KEPT), left
