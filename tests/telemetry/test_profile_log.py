"""The profile of calls: one line each, rotated, and never a reason for a call to fail."""

import json
import logging
import os

import pytest

from ems.common.exception import EmsErrorCode
from ems.telemetry import profile_log as module
from ems.telemetry.profile_log import ProfileLog, profile_log
from ems.telemetry.tally import CallRecord

CALL = CallRecord("load", 3, 1, {"done": 1, "absent": 2}, 4096, {"copy": 0.125}, 0.25)
FAILED = CallRecord("save", 2, 0, {"failed": 2}, 0, {}, 5.0, EmsErrorCode.EMS_IO_TIMEOUT)


@pytest.fixture
def log(tmp_path):
    log = ProfileLog(tmp_path)
    yield log
    log.close()


def lines(folder):
    return [
        json.loads(line)
        for path in sorted(folder.iterdir(), reverse=True)
        for line in path.read_text().splitlines()
    ]


def test_a_call_is_one_line_with_sizes_phases_result_and_code(log, tmp_path):
    log.add(CALL)
    log.add(FAILED)
    first, second = lines(tmp_path)
    assert first.pop("time") <= second.pop("time")
    assert first == {
        "operation": "load",
        "hashes": 3,
        "success": 1,
        "nbytes": 4096,
        "seconds": 0.25,
        "phases": {"copy": 0.125},
        "fates": {"done": 1, "absent": 2},
        "code": None,
    }
    assert second["code"] == "EMS_IO_TIMEOUT"
    assert [path.name for path in tmp_path.iterdir()] == [f"ems_cc_{os.getpid()}.log"]


def test_the_file_is_rotated_and_three_older_ones_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_NBYTES", 1000)
    log = ProfileLog(tmp_path)
    for _ in range(60):
        log.add(CALL)
    log.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    own = f"ems_cc_{os.getpid()}.log"
    assert names == [own, f"{own}.1", f"{own}.2", f"{own}.3"]
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
    assert all(line["hashes"] == 3 for line in lines(tmp_path))


@pytest.mark.parametrize("value", ["0", "", "true", "2", " 1", None])
def test_anything_but_1_leaves_it_off(monkeypatch, tmp_path, value):
    monkeypatch.setenv("EMS_SDK_LOG", str(tmp_path))
    if value is None:
        monkeypatch.delenv("ENABLE_CC_PROFILING", raising=False)
    else:
        monkeypatch.setenv("ENABLE_CC_PROFILING", value)
    assert profile_log() is None
    assert list(tmp_path.iterdir()) == []


def test_1_turns_it_on_and_makes_the_directory(monkeypatch, tmp_path):
    monkeypatch.setenv("ENABLE_CC_PROFILING", "1")
    monkeypatch.setenv("EMS_SDK_LOG", str(tmp_path / "deep" / "log"))
    log = profile_log()
    log.add(CALL)
    log.close()
    assert len(lines(tmp_path / "deep" / "log")) == 1


def test_a_directory_that_cannot_be_written_to_is_warned_about_once(monkeypatch, tmp_path, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENABLE_CC_PROFILING", "1")
    monkeypatch.setenv("EMS_SDK_LOG", str(tmp_path / "file" / "log"))
    assert profile_log() is None
    [warning] = caplog.messages
    assert warning.startswith("no profile of calls: ")
    assert "file/log: Not a directory" in warning


def test_a_full_disk_ends_the_log_with_one_warning_and_no_call(log, tmp_path, caplog, monkeypatch):
    class Full:
        def write(self, text):
            raise OSError(28, "No space left on device")

        def __getattr__(self, name):
            return getattr(stream, name)

    log.add(CALL)
    stream = log._file.stream
    log._file.stream = Full()
    log.add(CALL)
    log.add(CALL)
    log._file.stream = stream
    log.add(CALL)
    assert len(lines(tmp_path)) == 1
    [warning] = caplog.messages
    assert "the profile of calls has ended" in warning
    assert str(tmp_path) in warning


def test_a_call_that_ends_after_the_log_is_not_written_and_opens_no_file(log, tmp_path):
    log.close()
    log.add(CALL)
    assert lines(tmp_path) == []
    assert log._file.stream is None


def test_lines_go_to_no_handler_of_the_application(log, caplog):
    with caplog.at_level(logging.DEBUG):
        log.add(CALL)
    assert not caplog.messages
