"""Descriptions of processes: written as a whole, readable by their user alone, dead ones known."""

import json
import os
import platform
import stat
import subprocess
import sys
import threading

import pytest

from ems.telemetry.run_dir import (
    RunDirError,
    clear_away,
    default_run_dir,
    description_path,
    descriptions,
    open_run_dir,
    process_start,
    write_description,
)

HERE = {"pid": os.getpid(), "process_start": process_start(os.getpid())}


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "run"
    open_run_dir(path)
    return path


def leave(run_dir, pid, **content):
    path = description_path(run_dir, pid)
    write_description(path, {"process_start": 1, **content, "pid": pid})
    return path


def test_the_directory_is_for_its_user_alone_and_so_are_the_files(tmp_path):
    path = tmp_path / "deep" / "run"
    open_run_dir(path)
    open_run_dir(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert stat.S_IMODE(leave(path, 1).stat().st_mode) == 0o600


def test_it_is_named_by_the_environment_or_by_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("EMS_RUN_DIR", str(tmp_path))
    assert default_run_dir() == tmp_path
    monkeypatch.setenv("EMS_RUN_DIR", "")
    assert default_run_dir().name == f"ems-{os.getuid()}"
    monkeypatch.delenv("EMS_RUN_DIR")
    assert default_run_dir().name == f"ems-{os.getuid()}"


def test_a_relative_name_stays_where_it_was_though_the_process_moves(monkeypatch, tmp_path):
    monkeypatch.setenv("EMS_RUN_DIR", "run")
    monkeypatch.chdir(tmp_path)
    named = default_run_dir()
    monkeypatch.chdir("/")
    assert named == tmp_path / "run"


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "nowhere").symlink_to(tmp_path / "missing")
    with pytest.raises(RunDirError, match="a link is not followed"):
        open_run_dir(tmp_path / "link")
    with pytest.raises(RunDirError, match="cannot be made"):
        open_run_dir(tmp_path / "nowhere")
    assert not (tmp_path / "missing").exists()


def test_a_directory_of_somebody_else_is_refused_with_both_users(run_dir, monkeypatch):
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    with pytest.raises(RunDirError, match=f"belongs to user {owner}, not to {owner + 1}"):
        open_run_dir(run_dir)


@pytest.mark.parametrize("mode", [0o720, 0o702, 0o777, 0o1777])
def test_a_directory_that_others_may_write_to_is_refused_with_its_mode(run_dir, mode):
    run_dir.chmod(mode)
    with pytest.raises(RunDirError, match=f"mode {mode:04o}.*chmod 700"):
        open_run_dir(run_dir)


def test_what_cannot_be_a_directory_is_refused_with_the_reason(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunDirError, match="cannot be made"):
        open_run_dir(tmp_path / "file")
    with pytest.raises(RunDirError, match="cannot be made: Not a directory"):
        open_run_dir(tmp_path / "file" / "run")


def test_a_reader_never_sees_half_a_description(run_dir):
    path = leave(run_dir, 1, filling="x" * 100_000)
    stop = threading.Event()

    def write():
        turn = 0
        while not stop.is_set():
            turn += 1
            leave(run_dir, 1, filling=str(turn % 10) * 100_000)

    writing = threading.Thread(target=write)
    writing.start()
    try:
        for _ in range(200):
            assert len(set(json.loads(path.read_text())["filling"])) == 1
    finally:
        stop.set()
        writing.join()


def test_a_description_that_cannot_be_written_leaves_nothing_behind(run_dir, monkeypatch):
    with pytest.raises(RunDirError, match="cannot be written: No such file"):
        write_description(run_dir / "missing" / "1.json", HERE)
    (run_dir / "1.json").mkdir()
    with pytest.raises(RunDirError, match="cannot be written: Is a directory"):
        write_description(run_dir / "1.json", HERE)
    with pytest.raises(TypeError):
        write_description(run_dir / "2.json", {"pid": object()})
    assert [path.name for path in run_dir.iterdir()] == ["1.json"]


def test_processes_are_found_in_the_order_of_their_pids(run_dir):
    for pid in (1000, 7, 20, 3):
        leave(run_dir, pid)
    assert [found.content["pid"] for found in descriptions(run_dir)] == [3, 7, 20, 1000]
    assert list(descriptions(run_dir / "missing")) == []


def test_a_process_that_runs_is_alive_and_one_that_has_ended_is_dead(run_dir):
    sleeper = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    leave(run_dir, sleeper.pid, process_start=process_start(sleeper.pid))
    [running] = descriptions(run_dir)
    assert running.alive
    sleeper.stdin.close()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    [zombie] = descriptions(run_dir)
    assert not zombie.alive
    sleeper.wait()
    [gone] = descriptions(run_dir)
    assert not gone.alive
    assert gone.content["pid"] == sleeper.pid


def test_another_process_with_the_same_pid_does_not_bring_a_dead_one_back(run_dir):
    leave(run_dir, os.getpid(), process_start=HERE["process_start"] - 1)
    [found] = descriptions(run_dir)
    assert not found.alive


def test_a_process_whose_start_was_not_known_is_not_taken_for_alive(run_dir):
    leave(run_dir, 2**22 + 1, process_start=None)
    [found] = descriptions(run_dir)
    assert not found.alive


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", "null", "{}", '{"pid": "x"}', '{"pid": null}', "\udcff", '{"pid":1}'],
)
def test_files_that_are_no_descriptions_are_passed_over(run_dir, text):
    (run_dir / "5.json").write_text(text, errors="surrogateescape")
    leave(run_dir, 6)
    assert [found.path.name for found in descriptions(run_dir)] == ["6.json"]


def test_links_pipes_folders_and_unfinished_files_are_passed_over(run_dir, tmp_path):
    other = tmp_path / "elsewhere.json"
    other.write_text(json.dumps(HERE))
    (run_dir / "1.json").symlink_to(other)
    os.mkfifo(run_dir / "2.json")
    (run_dir / "3.json").mkdir()
    (run_dir / ".tmp4").write_text(json.dumps(HERE))
    leave(run_dir, 5)
    assert [found.path.name for found in descriptions(run_dir)] == ["5.json"]


def test_files_of_somebody_else_are_passed_over(run_dir, monkeypatch):
    leave(run_dir, 5)
    owner = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: owner + 1)
    assert list(descriptions(run_dir)) == []


def test_of_the_dead_only_the_newest_are_kept_and_who_lives_stays(run_dir):
    for pid in range(2**22 + 1, 2**22 + 9):
        path = leave(run_dir, pid, host=platform.node())
        os.utime(path, (pid, pid))
    living = leave(run_dir, **HERE, host=platform.node())
    os.utime(living, (1, 1))
    clear_away(run_dir, keep=3)
    kept = [found.content["pid"] for found in descriptions(run_dir)]
    assert kept == [os.getpid(), 2**22 + 6, 2**22 + 7, 2**22 + 8]


def test_whether_processes_of_another_host_live_is_unknown_and_they_stay(run_dir):
    for pid in range(5):
        leave(run_dir, 2**22 + pid, host="another")
    clear_away(run_dir, keep=0)
    assert len(list(descriptions(run_dir))) == 5


def test_what_a_killed_process_has_left_half_written_goes_and_a_fresh_one_may_be_finished(run_dir):
    stale, fresh = run_dir / ".stale", run_dir / ".fresh"
    for path in (stale, fresh):
        path.touch()
    os.utime(stale, (1, 1))
    clear_away(run_dir, keep=0)
    assert list(run_dir.iterdir()) == [fresh]


def test_containers_that_share_the_directory_leave_one_another_alone(run_dir, monkeypatch):
    outside = leave(run_dir, 7, host=platform.node())
    monkeypatch.setattr("ems.telemetry.run_dir._FIRST_NAMESPACE", 1)
    inside = leave(run_dir, 7, host=platform.node())
    assert {found.path for found in descriptions(run_dir)} == {outside, inside}
    clear_away(run_dir, keep=0)
    assert [found.path for found in descriptions(run_dir)] == [outside]
