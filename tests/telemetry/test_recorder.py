"""The recorder: a description that follows the counters, and costs nothing where it cannot."""

import json
import os
import platform
import stat
import subprocess
import sys
import threading
import time

import pytest
from bounded import PATIENCE, within

from ems.telemetry import recorder as module
from ems.telemetry.recorder import Recorder
from ems.telemetry.run_dir import (
    description_path,
    descriptions,
    open_run_dir,
    write_description,
)
from ems.telemetry.tally import CallRecord

CALL = CallRecord("load", 3, 1, {"done": 1, "absent": 2}, 4096, {"copy": 0.125}, 0.25)


def eventually(look):
    """Return what `look` returns as soon as it is true."""
    until = time.monotonic() + PATIENCE
    while not (seen := look()):
        assert time.monotonic() < until, "it does not become true"
        time.sleep(0.01)
    return seen


@pytest.fixture
def start(tmp_path, monkeypatch):
    monkeypatch.setenv("EMS_RUN_DIR", str(tmp_path / "run"))
    monkeypatch.setattr(module, "_REFRESH_SECONDS", 0.05)
    started = []

    def start(describe=lambda: {"pool": "p"}):
        started.append(Recorder({"rank_id": 3}, describe))
        return started[-1]

    yield start
    for recorder in started:
        recorder.close()


def found(tmp_path):
    return list(descriptions(tmp_path / "run"))


def test_nothing_is_written_before_there_is_something_to_tell(start, tmp_path):
    recorder = start()
    recorder.close()
    assert not (tmp_path / "run").exists()


def test_the_description_tells_process_configuration_and_counters(start, tmp_path):
    recorder = start()
    recorder.touch()
    [description] = eventually(lambda: found(tmp_path))
    assert description.alive
    assert description.path == description_path(tmp_path / "run", os.getpid())
    content = description.content
    assert content["schema"] == 1
    assert content["pid"] == os.getpid()
    assert content["rank_id"] == 3
    assert content["pool"] == "p"
    assert content["counters"] == {}
    assert set(content["packages"]) == {"ems", "torch", "torch_npu"}
    assert stat.S_IMODE(description.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(description.path.parent.stat().st_mode) == 0o700


def test_it_follows_the_counters(start, tmp_path):
    recorder = start()
    for calls in (1, 2):
        recorder.add(CALL)
        eventually(
            lambda want=calls: any(
                each.content["counters"].get("load", {}).get("calls") == want
                for each in found(tmp_path)
            )
        )


def test_many_calls_are_few_writes(start, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_REFRESH_SECONDS", PATIENCE)
    writes = []
    recorder = start(lambda: writes.append(1) or {})
    recorder.add(CALL)
    eventually(lambda: found(tmp_path))
    for _ in range(100):
        recorder.add(CALL)
    recorder.close()
    assert len(writes) == 1


def test_closing_removes_the_description_and_can_be_repeated(start, tmp_path):
    recorder = start()
    recorder.touch()
    eventually(lambda: found(tmp_path))
    recorder.close()
    recorder.close()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_description_that_hangs_does_not_hang_the_end(start, monkeypatch):
    monkeypatch.setattr(module, "_CLOSE_SECONDS", 0.05)
    go_on = threading.Event()
    recorder = start(lambda: {"waited": go_on.wait(PATIENCE)})
    recorder.touch()
    within(recorder.close)
    go_on.set()


def link(path):
    (path.parent / "real").mkdir(mode=0o700)
    path.symlink_to(path.parent / "real")


def file_in_the_way(path):
    path.touch()


def open_to_all(path):
    path.mkdir()
    path.chmod(0o777)


@pytest.mark.parametrize("spoil", [link, file_in_the_way, open_to_all])
def test_a_directory_that_cannot_be_used_is_warned_about_once_and_counting_goes_on(
    start, tmp_path, caplog, spoil
):
    spoil(tmp_path / "run")
    recorder = start()
    recorder.touch()
    eventually(lambda: not recorder._writer.is_alive())
    for _ in range(3):
        recorder.add(CALL)
    recorder.close()
    [warning] = caplog.messages
    assert warning.startswith("ems-cli inspect will not see this process: ")
    assert str(tmp_path / "run") in warning
    assert recorder.counters.snapshot()["load"]["calls"] == 3


def test_a_describer_that_fails_ends_the_description_and_nothing_else(start, tmp_path, caplog):
    def fail():
        raise RuntimeError("boom")

    recorder = start(fail)
    recorder.touch()
    eventually(lambda: not recorder._writer.is_alive())
    recorder.add(CALL)
    assert recorder.counters.snapshot()["load"]["calls"] == 1
    [message] = caplog.messages
    assert "not written any more" in message
    assert found(tmp_path) == []


KILLED = """
import os, sys, time
from ems.telemetry.recorder import Recorder
from ems.telemetry.run_dir import default_run_dir, descriptions
recorder = Recorder({}, dict)
recorder.touch()
while not list(descriptions(default_run_dir())):
    time.sleep(0.01)
print(os.getpid(), flush=True)
os._exit(9)
"""


def test_a_process_that_was_killed_is_shown_as_dead(tmp_path):
    finished = subprocess.run(
        [sys.executable, "-c", KILLED],
        env={**os.environ, "EMS_RUN_DIR": str(tmp_path / "run")},
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert finished.returncode == 9, finished.stderr
    [description] = found(tmp_path)
    assert description.content["pid"] == int(finished.stdout)
    assert not description.alive
    assert json.loads(description.path.read_text())["counters"] == {}


def test_processes_that_are_killed_again_and_again_do_not_fill_the_directory(
    start, tmp_path, monkeypatch
):
    monkeypatch.setattr(module, "DEAD_KEPT", 2)
    run_dir = tmp_path / "run"
    open_run_dir(run_dir)
    for pid in range(2**22 + 1, 2**22 + 9):
        description = {"pid": pid, "process_start": 1, "host": platform.node()}
        write_description(description_path(run_dir, pid), description)
    start().touch()
    eventually(lambda: len(found(tmp_path)) == 3)
