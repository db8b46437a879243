import json
import os
import platform
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from dataclasses import replace
from fcntl import ioctl
from pathlib import Path

import pytest
from cli_text import golden, printed
from described import described, figures
from scripts import PATIENCE, REGISTERED
from typer.testing import CliRunner

from ems.telemetry.run_dir import description_path, process_start
from ems_cli.app import app
from ems_cli.diagnostics.live import LiveReport, command_of, live_report
from ems_cli.diagnostics.process_figures import OperationFigures, Rates
from ems_cli.diagnostics.watch import SHOWN_DEAD, Watch
from ems_cli.render.live import age, live_text

NOBODY = 2**22 + 1  # beyond the largest pid

WORKING = (
    REGISTERED
    + """
cc, kv = boot()
at = 0
while True:
    cc.save(sl(at % 8), [at], [BS], CcKvOption(timeout=0))
    cc.load(sl(at % 8), [at - at % 3], [BS], CcKvOption(timeout=0))
    at += 1
    time.sleep(0.02)
"""
)


def leave(run_dir, *, pid=None, **changes):
    """Write the description of a process: this one, alive, unless another pid is given."""
    pid = pid or os.getpid()
    changes = {"host": platform.node(), **changes}
    content = described(pid=pid, process_start=process_start(pid) or 1, **changes)
    description_path(run_dir, pid).write_text(json.dumps(content))
    return content


def run(run_dir, *arguments):
    environment = {"COLUMNS": "80", "EMS_RUN_DIR": str(run_dir)}
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)], env=environment)


def said(result):
    return " ".join((result.stdout + result.stderr).split())


def test_nobody_is_an_answer(tmp_path):
    result = run(tmp_path / "not there")
    assert (result.exit_code, result.stdout.splitlines()[0]) == (0, "Processes: 0 alive")


def test_the_living_and_the_dead_are_told_apart(tmp_path):
    leave(tmp_path)
    leave(tmp_path, pid=NOBODY)
    report = json.loads(run(tmp_path, "--json").stdout)
    assert report["schema"] == 1
    assert [(one["pid"], one["state"]) for one in report["processes"]] == [
        (os.getpid(), "alive"),
        (NOBODY, "dead"),
    ]


def test_prune_removes_the_files_of_the_dead_alone(tmp_path):
    leave(tmp_path)
    leave(tmp_path, pid=NOBODY)
    result = run(tmp_path, "--prune")
    assert f"removed what dead processes had left: pid {NOBODY}" in said(result)
    assert list(tmp_path.iterdir()) == [description_path(tmp_path, os.getpid())]


def test_what_is_of_another_host_is_not_pruned(tmp_path):
    leave(tmp_path, pid=NOBODY, host="another")
    assert live_report(tmp_path, prune=True).pruned == ()
    assert "whether it runs cannot be seen from here" in said(run(tmp_path, "--prune"))
    assert list(tmp_path.glob("*.json"))


def test_a_pid_that_is_used_again_is_not_the_same_process(tmp_path):
    content = leave(tmp_path)
    content["process_start"] += 1
    description_path(tmp_path, os.getpid()).write_text(json.dumps(content))
    assert live_report(tmp_path).processes[0].state == "dead"


def test_totals_stand_beside_their_parts(tmp_path):
    leave(tmp_path)
    one = json.loads(run(tmp_path, "--json").stdout)["processes"][0]
    assert (one["hit_blocks"], one["looked_up_blocks"], one["hit_share"]) == (30, 80, 0.375)
    assert one["hit_blocks"] + sum(one["misses_by_reason"].values()) == one["looked_up_blocks"]
    pool = one["pool"]
    parts = pool["reserved_nbytes"] + pool["held_nbytes"] + pool["evictable_nbytes"]
    assert parts == pool["used_nbytes"]


def test_a_description_of_another_version_is_named_and_does_not_hide_others(tmp_path):
    content = leave(tmp_path, pid=NOBODY)
    del content["counters"]
    description_path(tmp_path, NOBODY).write_text(json.dumps(content))
    (tmp_path / "12.json").write_text("{")
    leave(tmp_path)
    report = live_report(tmp_path)
    assert [one.pid for one in report.processes] == [os.getpid()]
    assert report.unreadable == (str(tmp_path / f"{NOBODY}.json"),)
    assert run(tmp_path, "--prometheus").exit_code == 0


def test_only_one_process_is_shown_by_its_pid(tmp_path):
    leave(tmp_path)
    leave(tmp_path, pid=NOBODY)
    assert len(live_report(tmp_path, pid=os.getpid()).processes) == 1
    result = run(tmp_path, "--pid", 7)
    assert (result.exit_code, "no process 7 has left a description" in said(result)) == (2, True)


def test_prometheus_has_the_living_alone(tmp_path):
    leave(tmp_path)
    leave(tmp_path, pid=NOBODY)
    text = run(tmp_path, "--prometheus").stdout
    labels = f'pid="{os.getpid()}",rank="3",device="npu:1",model="some-model",operation="save"'
    assert f"ems_calls_total{{{labels}}} 40" in text
    assert str(NOBODY) not in text
    assert run(tmp_path, "--prometheus", "--json").exit_code == 2


def test_memory_that_entries_only_pass_through_is_no_room_for_them(tmp_path):
    content = leave(tmp_path)
    content["pool"]["staging_nbytes"] = 24 << 20
    description_path(tmp_path, os.getpid()).write_text(json.dumps(content))
    (process,) = live_report(tmp_path).processes
    assert (process.pool.capacity_nbytes, process.pool.used_nbytes) == (40 << 20, 40 << 20)


def test_what_another_user_has_left_is_not_shown_and_told(tmp_path, monkeypatch):
    leave(tmp_path)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    report = live_report(tmp_path)
    assert report.processes == ()
    assert report.notes[0].startswith(f"what user {owner} has left is not shown")


def test_a_directory_that_cannot_be_read_is_not_an_empty_one(tmp_path):
    file = tmp_path / "file"
    file.touch()
    assert live_report(file).notes == (f"{file} cannot be read: Not a directory",)
    assert live_report(tmp_path / "none").notes == ()


def test_many_saves_without_a_hit_are_suspicious(tmp_path):
    lost = {"hashes_by_fate": {"absent": 90}, "hashes": 90}
    leave(tmp_path, load=lost, python_hash_seed=None)
    text = said(run(tmp_path))
    assert "40 blocks saved, 0 hits in 90 look-ups. Likely: PYTHONHASHSEED is not set" in text
    assert "memory:// is a pool of this process alone" in text


@pytest.mark.parametrize(
    ("load", "save"),
    [
        ({"hashes_by_fate": {"absent": 9}, "hashes": 9}, {}),  # too few to tell
        ({"hashes_by_fate": {"done": 1, "absent": 89}, "hashes": 90}, {}),
        ({"hashes_by_fate": {"absent": 90}, "hashes": 90}, {"hashes_by_fate": {"no_space": 40}}),
    ],
)
def test_other_figures_are_not_taken_for_it(load, save):
    assert "0 hits" not in " ".join(figures(load=load, save=save).doubts)


def test_evictions_before_the_first_look_up_are_a_likely_cause():
    one = figures(load={"hashes_by_fate": {"evicted": 90}, "hashes": 90}, evictions=40)
    assert "40 entries were evicted before they were asked for" in one.doubts[0]


def test_failures_and_a_full_pool_are_told():
    save = {"failed": 3, "failures_by_code": {"EMS_IO_TIMEOUT": 3}}
    one = figures(save={**save, "hashes_by_fate": {"done": 30, "no_space": 10}})
    assert one.failures_by_code == {"EMS_IO_TIMEOUT": 3}
    assert one.doubts == (
        "10 of 40 blocks found no room in the pool: it is smaller than what is saved at once",
        "3 of 40 calls of save failed",
    )


def test_a_missing_seed_is_told_once_for_all(tmp_path):
    leave(tmp_path, python_hash_seed=None)
    assert "PYTHONHASHSEED is not set for pid" in said(run(tmp_path))
    leave(tmp_path, python_hash_seed="0")
    assert "PYTHONHASHSEED" not in said(run(tmp_path))


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (["/usr/bin/python3", "-u", "/srv/serve.py", "--token", "s3cret"], "python3 serve.py"),
        (["python", "-c", "import x"], "python -c …"),
        (["vllm"], "vllm"),
    ],
)
def test_a_command_is_told_without_its_arguments(tmp_path, words, shown):
    (tmp_path / "5").mkdir()
    (tmp_path / "5" / "cmdline").write_text("\0".join(words) + "\0")
    assert command_of(5, tmp_path) == shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "< 1 s"), (35, "35 s"), (720, "12 min"), (12_600, "3.5 h"), (181_440, "2.1 d")],
)
def test_ages_are_written_as_people_say_them(seconds, text):
    assert age(seconds) == text


REPORT = LiveReport("/run/ems", 0.0, (), (), (), ("a note",))


def test_the_overview_looks_like_this_at_80_columns():
    rates = Rates(100.0, 90.0, 2.5e9)
    alive = figures(pid=4242)
    operations = tuple(replace(one, rates=rates) for one in alive.operations)
    busy = replace(alive, pid=4243, operations=operations, rank_id=4)
    dead = replace(figures(load={"hashes_by_fate": {"absent": 90}, "hashes": 90}), state="dead")
    report = replace(REPORT, processes=(alive, busy, dead), unreadable=("/run/ems/7.json",))
    assert printed(live_text(report)) == golden("inspect_overview.txt")


def test_one_process_looks_like_this_at_80_columns():
    one = figures(pid=4242, save={"failed": 1, "failures_by_code": {"EMS_IO_ERROR": 1}})
    one = replace(one, command="python serve.py \x1b[31m")
    assert printed(live_text(replace(REPORT, processes=(one,)))) == golden("inspect_process.txt")


def look(watch, *processes, now):
    return watch.look(replace(REPORT, time=now, processes=processes)).processes


def at_work(calls, *, ago=0.0, state="alive"):
    save = OperationFigures("save", calls, 0, 2 * calls, 2 * calls, 1000 * calls, 1.0, {}, {})
    return replace(figures(), operations=(save,), written_seconds_ago=ago, state=state)


def test_rates_are_what_happened_between_two_writings():
    watch = Watch()
    assert look(watch, at_work(10), now=100.0)[0].operations[0].rates is None
    later = look(watch, at_work(30, ago=0.5), now=102.5)[0].operations[0].rates
    assert later == Rates(10.0, 20.0, 10_000.0)


def test_rates_hold_until_the_process_writes_again_and_end_when_it_does_not():
    watch = Watch()
    look(watch, at_work(10), now=100.0)
    look(watch, at_work(30), now=102.0)
    assert (
        look(watch, at_work(30, ago=0.5), now=102.5)[0].operations[0].rates.calls_per_second == 10
    )
    assert look(watch, at_work(30, ago=5.0), now=107.0)[0].operations[0].rates.calls_per_second == 0


def test_a_process_that_dies_is_shown_dead_and_then_not_at_all():
    watch = Watch()
    look(watch, at_work(10), now=100.0)
    seen = [look(watch, at_work(10, state="dead"), now=101.0 + at) for at in range(SHOWN_DEAD + 1)]
    assert [len(one) for one in seen] == [1] * SHOWN_DEAD + [0]
    assert seen[0][0].state == "dead"


def test_a_process_that_ends_well_is_shown_as_ended_and_then_not_at_all():
    watch = Watch()
    look(watch, at_work(10), now=100.0)
    seen = [look(watch, now=101.0 + at) for at in range(SHOWN_DEAD + 1)]
    assert [len(one) for one in seen] == [1] * SHOWN_DEAD + [0]
    assert (seen[0][0].state, seen[0][0].operations[0].rates) == ("ended", None)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--watch", "--json"], "draws on a terminal"),
        (["--watch", "--prune"], "drop it or --watch"),
        (["--watch", "0"], "--watch"),
        (["--watch", "99999999999999999999"], "--watch"),
        (["--watch", "--prometheus"], "drop it or --prometheus"),
        (["--save", "x.json", "--prometheus"], "drop it or --prometheus"),
        (["--save", "x.json", "--pid", "7", "--prune"], "drop it or --save"),
        (["--save", "x.json", "--pid", "7", "--json"], "drop it or --json"),
        (["--pid", "7", "plan", "--blocks", "1"], "'--pid': inspect plan does not take it"),
        (["--details", "x.json"], "'--details': a FILE does not take it"),
        (["--save", "x.json"], "say which process by --pid"),
        (["--save", "x.json", "--pid", "7"], "no process 7"),
        (["nope"], "no file 'nope', and no command of that name: hash, namespace, plan"),
    ],
)
def test_wrong_usage_is_told(tmp_path, arguments, why):
    result = run(tmp_path, *arguments)
    assert (result.exit_code, why in said(result)) == (2, True)


class Terminal:
    """ems-cli on a terminal of 24 lines and 80 columns."""

    def __init__(self, *arguments, **environment):
        self._ours, theirs = os.openpty()
        ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        variables = {**os.environ, "TERM": "xterm", **environment}
        variables.pop("COLUMNS", None)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ems_cli", *arguments],
            env=variables,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)
        self.text = ""

    def read_until(self, wanted):
        """Read until `wanted` has come, from here on; None reads to the end."""
        start, end = len(self.text), time.monotonic() + PATIENCE
        while wanted is None or wanted not in self.text[start:]:
            assert time.monotonic() < end, self.text
            if not select.select([self._ours], [], [], 1.0)[0]:
                continue
            try:
                self.text += os.read(self._ours, 1 << 16).decode(errors="replace")
            except OSError:  # the terminal's other end is closed
                assert wanted is None, self.text
                return

    def interrupt(self, number=signal.SIGINT):
        """Interrupt, as Ctrl-C does if nothing else is said, and return the exit code."""
        self._process.send_signal(number)
        self.read_until(None)
        os.close(self._ours)
        return self._process.wait(PATIENCE)


def test_a_process_at_work_is_watched_killed_shown_dead_and_pruned(tmp_path):
    command = [sys.executable, "-m", "ems.simulator", "-c", WORKING]
    environment = {**os.environ, "EMS_RUN_DIR": str(tmp_path)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as worker:
        terminal = Terminal("inspect", "--watch", "0.1", EMS_RUN_DIR=str(tmp_path))
        terminal.read_until("B/s")
        one = live_report(tmp_path).processes[0]
        worker.kill()
    assert (one.pid, one.state, one.layout.layers) == (worker.pid, "alive", 2)
    terminal.read_until("dead")
    terminal.read_until("0 alive")
    assert terminal.interrupt() == 130
    screen, after = terminal.text.split("\x1b[?1049l")
    assert screen.count("\x1b[?1049h") == 1  # one screen of its own, left again
    assert terminal.text.count("\x1b[?25l") == terminal.text.count("\x1b[?25h")  # the cursor
    assert "Processes: 0 alive" in after
    assert f"pid {worker.pid}" in said(run(tmp_path, "--prune"))
    assert not list(tmp_path.glob("*.json"))


def test_a_watch_that_is_ended_by_kill_leaves_its_screen(tmp_path):
    terminal = Terminal("inspect", "--watch", EMS_RUN_DIR=str(tmp_path))
    terminal.read_until("0 alive")
    assert terminal.interrupt(signal.SIGTERM) == 130
    assert terminal.text.count("\x1b[?1049h") == terminal.text.count("\x1b[?1049l") == 1


def test_a_saved_description_shows_what_the_process_did(tmp_path):
    leave(tmp_path)
    file = Path(tmp_path / "saved.of")
    assert run(tmp_path, "--pid", os.getpid(), "--save", file).exit_code == 0
    report = json.loads(run(tmp_path, file, "--json").stdout)
    assert (report["kind"], report["process"]["state"]) == ("process", "saved")
    assert "hit rate 37.5%: 30 of 80 blocks" in said(run(tmp_path, file))
