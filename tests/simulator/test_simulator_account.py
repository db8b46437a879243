import signal
from contextlib import contextmanager
from os import geteuid
from pathlib import Path

import pytest
from runtime_calls import output_of, run_python, start_python

HOLD = """
from runtime_calls import *
done("aclrtSetDevice", 1)
p = allocate(600 << 20)
print("holds", flush=True)
input()
"""
TRY = """
from runtime_calls import *
done("aclrtSetDevice", 1)
print((memory_info()[0] >> 20), acl("aclrtMalloc", ctypes.byref(ctypes.c_void_p()), 600 << 20, 0))
"""
FULL = "424 207001\n"
EMPTY = "1024 0\n"


@pytest.fixture
def account(tmp_path):
    return {"EMS_SIM_MEMORY": "1GiB", "EMS_SIM_ACCOUNT": tmp_path.name}


@pytest.fixture
def file(account):
    return Path(f"/dev/shm/ems-simulator-{geteuid()}-{account['EMS_SIM_ACCOUNT']}")  # noqa: S108


@contextmanager
def somebody_holding_memory(account):
    with start_python(HOLD, **account) as process:
        assert process.stdout.readline() == "holds\n"
        yield process
        if process.poll() is None:
            process.communicate("\n")


def test_processes_share_the_memory_of_a_device(account, file):
    with somebody_holding_memory(account):
        assert output_of(TRY, **account) == FULL
        assert file.stat().st_mode & 0o777 == 0o600
    assert output_of(TRY, **account) == EMPTY


def test_what_a_killed_process_held_is_free_again(account):
    with somebody_holding_memory(account) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert output_of(TRY, **account) == EMPTY


def test_other_devices_and_other_accounts_have_memory_of_their_own(account):
    with somebody_holding_memory(account):
        assert output_of(TRY.replace('Device", 1', 'Device", 2'), **account) == EMPTY
        assert output_of(TRY, EMS_SIM_MEMORY="1GiB", EMS_SIM_ACCOUNT="tests-other") == EMPTY


def test_the_physical_number_of_a_device_counts(account):
    with somebody_holding_memory({**account, "ASCEND_RT_VISIBLE_DEVICES": "0,5"}):
        code = TRY.replace('Device", 1', 'Device", 0')
        assert output_of(code, ASCEND_RT_VISIBLE_DEVICES="5", **account) == FULL
        assert output_of(code, ASCEND_RT_VISIBLE_DEVICES="1", **account) == EMPTY


def test_the_last_process_removes_the_account(account, file):
    with somebody_holding_memory(account):
        assert output_of(TRY, **account) == FULL
        assert file.exists()
    assert not file.exists()


@pytest.mark.parametrize("content", [b"", b"\xff" * 100, b"\xff" * 100_000])
def test_what_is_left_in_a_file_does_not_matter(account, file, content):
    file.write_bytes(content)
    assert output_of(TRY, **account) == EMPTY
    assert not file.exists()


def test_a_process_counts_alone_where_there_can_be_no_file(account, file):
    file.mkdir()
    try:
        with somebody_holding_memory(account):
            status, output, errors = run_python(TRY, EMS_SIM_TRACE="1", **account)
        assert (status, output) == (0, EMPTY)
        assert "memory is counted for this process only" in errors
    finally:
        file.rmdir()


def test_a_forked_child_that_ends_takes_nothing_from_its_parent(account):
    told = output_of(
        """
        from runtime_calls import *
        import os
        done("aclrtSetDevice", 1)
        allocate(600 << 20)
        child = os.fork()
        if not child:
            raise SystemExit(0)
        os.waitpid(child, 0)
        print(memory_info()[0] >> 20)
        """,
        **account,
    )
    assert told == "424\n"


def test_the_account_of_those_that_were_killed_is_removed_by_the_next_of_any_account(account, file):
    with somebody_holding_memory(account) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert file.exists()
    another = {**account, "EMS_SIM_ACCOUNT": f"{account['EMS_SIM_ACCOUNT']}-next"}
    assert output_of(TRY, **another) == EMPTY
    assert not file.exists()


def test_the_account_of_the_living_stays_when_others_begin_and_leave(account, file):
    another = {**account, "EMS_SIM_ACCOUNT": f"{account['EMS_SIM_ACCOUNT']}-next"}
    with somebody_holding_memory(account):
        assert output_of(TRY, **another) == EMPTY
        assert file.exists()
        assert output_of(TRY, **account) == FULL


def test_a_link_that_is_named_like_an_account_is_left_alone(account, tmp_path):
    (tmp_path / "mine").write_text("precious")
    link = Path(f"/dev/shm/ems-simulator-{geteuid()}-{tmp_path.name}-link")  # noqa: S108
    link.symlink_to(tmp_path / "mine")
    try:
        assert output_of(TRY, **account) == EMPTY
        assert link.is_symlink()
        assert (tmp_path / "mine").read_text() == "precious"
    finally:
        link.unlink()
