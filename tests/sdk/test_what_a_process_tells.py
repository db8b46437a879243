"""Telemetry through the SDK: what became of each hash, the description, the profile, no secret."""

import dataclasses
import json
import logging
import re
import time
from pathlib import Path

import pytest
from bounded import PATIENCE, within
from faulty_boot import boot_faulty
from preamble import BS, OPT, POOL, boot, cache, sl
from scripts import REGISTERED, run_script

from ems import CcConfig_v1, CcKvOption, CcResult, Ems, EmsConfig, EmsErrorCode, EmsException
from ems.common.exception import PoolUnavailable, RequestTimeout
from ems.config import read_settings
from ems.pool.faulty import Fault
from ems.simulator.control import knobs
from ems.telemetry.prometheus import prometheus_text
from ems.telemetry.run_dir import descriptions

SECRET = "Zm9yIHlvdXIgZXllcyBvbmx5Zm9yIHlvdXIgZXllcw=="  # noqa: S105 - it opens nothing
SMALL = "memory://?capacity=4KiB&segment=4KiB"  # 16 blocks of a cache of one layer


def counters(cc):
    snapshot = cc._recorder.counters.snapshot()
    for counted in snapshot.values():
        assert counted["hashes"] == sum(counted["hashes_by_fate"].values())
        assert counted["failed"] == sum(counted["failures_by_code"].values())
    return snapshot


def fates(cc, operation):
    return {fate: n for fate, n in counters(cc)[operation]["hashes_by_fate"].items() if n}


@pytest.fixture
def pool(monkeypatch):
    """The pool behind a cache with two blocks saved, for faults to be planted in."""
    cc, pool = boot_faulty(monkeypatch)
    cc.register_kvcache(cache())
    cc.save(sl(0, 1), [1, 2], [BS] * 2, OPT)
    return pool


def test_what_is_saved_is_done_or_already_there(cc):
    cc.save(sl(0, 1), [1, 2], [BS] * 2, OPT)
    cc.save(sl(0, 1, 2), [1, 2, 3], [BS] * 3, OPT)
    assert fates(cc, "save") == {"done": 3, "already_there": 2}


def test_a_repeat_in_one_save_shares_the_fate_of_the_first(cc):
    assert cc.save(sl(0, 1, 0), [1, 2, 1], [BS] * 3, OPT) == CcResult(3, 3)
    assert fates(cc, "save") == {"done": 3}
    assert cc.exists([1, 1, 2], OPT) == CcResult(3, 3)


def test_what_finds_no_room_is_no_space():
    cc = boot(pool=SMALL)
    cc.register_kvcache(cache(layers=1, blocks=64))
    assert cc.save(sl(0, *range(1, 41), 41), [1, 2, 3], [BS, 160, BS], OPT) == CcResult(1, 3)
    assert fates(cc, "save") == {"done": 2, "no_space": 1}


def test_what_a_load_misses_is_absent_evicted_too_short_or_behind_a_miss():
    cc = boot(pool=SMALL)
    cc.register_kvcache(cache(layers=1, blocks=16))
    assert cc.load(sl(0, 1, 2), [1, 2, 3], [BS] * 3, OPT) == CcResult(0, 3)
    assert fates(cc, "load") == {"absent": 3}
    for number in range(17):
        cc.save(sl(number % 16), [number], [BS], OPT)
    assert cc.load(sl(0), [0], [BS], OPT) == CcResult(0, 1)
    assert fates(cc, "load") == {"absent": 3, "evicted": 1}
    cc.save(sl(0)[:3], [50], [3], OPT)
    assert cc.load(sl(1), [50], [BS], OPT) == CcResult(0, 1)
    assert fates(cc, "load") == {"absent": 3, "evicted": 1, "too_short": 1}
    assert cc.load(sl(1, 2, 3, 4), [16, 77, 15, 14], [BS] * 4, OPT) == CcResult(1, 4)
    assert fates(cc, "load") == {
        "absent": 4,
        "evicted": 1,
        "too_short": 1,
        "done": 1,
        "behind_a_miss": 2,
    }


@pytest.mark.parametrize("operation", ["reserve", "commit", "acquire"])
def test_a_call_that_fails_counts_all_its_hashes_as_failed_with_its_code(pool, operation):
    cc = Ems.get_cc()
    pool.faults = [Fault(operation, 0, failure=PoolUnavailable("the pool is away"))]
    call = cc.load if operation == "acquire" else cc.save
    name = "load" if operation == "acquire" else "save"
    before = fates(cc, name) if name == "save" else {}
    with pytest.raises(EmsException, match="the pool is away") as failed:
        call(sl(5, 6), [1, 3] if operation != "acquire" else [1, 2], [BS] * 2, OPT)
    assert failed.value.status_code() == EmsErrorCode.EMS_IO_ERROR
    assert counters(cc)[name]["failures_by_code"] == {"EMS_IO_ERROR": 1}
    assert fates(cc, name) == {**before, "failed": 2}


def test_a_time_out_is_counted_by_its_code(cc):
    with knobs(DELAY="copy_d2h=100000"), pytest.raises(EmsException) as failed:
        cc.save(sl(0, 1), [1, 2], [BS] * 2, CcKvOption(timeout=20))
    assert failed.value.status_code() == EmsErrorCode.EMS_IO_TIMEOUT
    assert counters(cc)["save"]["failures_by_code"] == {"EMS_IO_TIMEOUT": 1}


def test_refused_calls_are_not_counted(cc):
    for call in (lambda: cc.save([1], [1], [2], OPT), lambda: cc.exists([None], OPT)):
        with pytest.raises(EmsException):
            call()
    assert counters(cc) == {}


def test_exists_counts_what_is_there_and_what_is_not(cc):
    cc.save(sl(0, 1), [1, 2], [BS] * 2, OPT)
    assert cc.exists([1, 2, 3], OPT) == CcResult(2, 3)
    assert fates(cc, "exists") == {"done": 2, "absent": 1}


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (PoolUnavailable("away"), "EMS_IO_ERROR"),
        (RuntimeError("a fault of the engine"), "EMS_INTERNAL_ERROR"),
        (OSError(5, "Input/output error"), "EMS_INTERNAL_ERROR"),
    ],
    ids=repr,
)
def test_exists_answers_0_when_the_pool_fails_and_the_counters_say_why(pool, failure, code):
    cc = Ems.get_cc()
    pool.faults = [Fault("lookup", 0, failure=failure)]
    assert cc.exists([1, 2], OPT) == CcResult(0, 2)
    assert fates(cc, "exists") == {"failed": 2}
    assert counters(cc)["exists"]["failures_by_code"] == {code: 1}
    pool.faults.clear()
    assert cc.exists([1, 2], OPT) == CcResult(2, 2)


def test_exists_is_told_when_its_time_is_over(pool, monkeypatch):
    def too_slow(keys, *, deadline):
        time.sleep(max(0.0, deadline - time.monotonic()))
        raise RequestTimeout("the pool is slow")

    monkeypatch.setattr(pool, "lookup", too_slow)
    cc = Ems.get_cc()
    assert cc.exists([1, 2], CcKvOption(timeout=10)) == CcResult(0, 2)
    assert counters(cc)["exists"]["failures_by_code"] == {"EMS_IO_TIMEOUT": 1}


def test_a_pool_that_stays_away_is_warned_about_once_until_it_has_answered_again(pool, caplog):
    cc = Ems.get_cc()
    pool.faults = [Fault("lookup", 0, failure=PoolUnavailable("away"))]
    for _ in range(5):
        cc.exists([1], OPT)
    assert [each for each in caplog.messages if "away" in each] == [
        "exists answers 0 while the pool does not answer: away"
    ]
    faults, pool.faults = pool.faults, []
    cc.exists([1], OPT)
    pool.faults = faults
    cc.exists([1], OPT)
    assert len([each for each in caplog.messages if "away" in each]) == 2


def test_misses_are_no_warnings(cc, caplog):
    # case 53
    with caplog.at_level(logging.INFO):
        for number in range(200):
            cc.load(sl(0), [900_000 + number], [BS], OPT)
            cc.exists([900_000 + number], OPT)
    assert not caplog.messages


def test_a_future_ends_though_its_record_cannot_be_taken(cc, monkeypatch, caplog):
    def fail(call):
        raise RuntimeError("boom")

    monkeypatch.setattr(cc._recorder.counters, "add", fail)
    future = cc.async_save(sl(0), [1], [BS], OPT)
    assert within(future.result) == CcResult(1, 1)
    with knobs(DELAY="copy_d2h=100000"):
        cc.async_save(sl(1), [2], [BS], OPT)
        late = cc.async_save(sl(2), [3], [BS], CcKvOption(timeout=20))
        with pytest.raises(EmsException) as failed:
            within(late.result)
    assert failed.value.status_code() == EmsErrorCode.EMS_IO_TIMEOUT
    assert cc._transfers.drain(PATIENCE)
    assert set(caplog.messages) == {"a call has ended, and could not be taken note of"}


# the description


@pytest.fixture
def described(tmp_path, monkeypatch):
    monkeypatch.setenv("EMS_RUN_DIR", str(tmp_path / "run"))

    def look(wanted=lambda content: True):
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            for found in descriptions(tmp_path / "run"):
                if wanted(found.content):
                    return found
            time.sleep(0.02)
        raise AssertionError("no such description appears")

    return look


def test_the_description_holds_layout_pool_and_counters_and_goes_at_shutdown(described, tmp_path):
    cc = boot(access_id="tenant", tp_world_size=2, rank_in_tp_group=1)
    kv = cache()
    cc.register_kvcache(kv)
    cc.save(sl(0, 1), [123_456_789, 2], [BS] * 2, OPT)
    found = described(lambda content: "save" in content["counters"])
    content = found.content
    assert found.alive
    assert content["rank_id"] == content["device_id"] == 0
    assert content["namespace"]["model_id"] == "m-a"
    assert content["namespace"]["access_id"] == "tenant"
    assert content["namespace"]["rank_in_tp_group"] == 1
    assert content["pool_url"] == POOL
    assert content["pool"]["entries"] == 2
    assert content["counters"]["save"]["hashes_by_fate"]["done"] == 2
    registration = content["registration"]
    assert registration["device_index"] == 0
    assert [plane["address"] for plane in registration["planes"]] == [
        plane.data_ptr() for layer in kv for plane in layer
    ]
    assert registration["groups"][0]["block_size"] == BS
    assert "123456789" not in json.dumps(content), "hashes are the user's"
    Ems.shutdown()
    assert list((tmp_path / "run").iterdir()) == []


def test_the_description_outlives_a_pool_that_is_away_for_a_while(described, monkeypatch):
    cc, pool = boot_faulty(monkeypatch)
    cc.register_kvcache(cache())
    cc.save(sl(0), [1], [BS], OPT)
    described(lambda content: "save" in content["counters"])

    def away():
        raise PoolUnavailable("the pool is away")

    with monkeypatch.context() as patch:
        patch.setattr(pool, "stats", away)
        cc.exists([1], OPT)
        content = described(lambda content: "exists" in content["counters"]).content
        assert content["pool"]["entries"] == 1, "what it said last"
    cc.save(sl(1), [2], [BS], OPT)
    described(lambda content: content["pool"]["entries"] == 2)


def test_the_counters_of_a_description_export_as_prometheus_text(described):
    cc = boot()
    cc.register_kvcache(cache())
    cc.save(sl(0), [1], [BS], OPT)
    content = described(lambda content: "save" in content["counters"]).content
    text = prometheus_text([({"pid": str(content["pid"])}, content["counters"])])
    assert re.search(r'ems_hashes_total\{pid="\d+",operation="save",fate="done"\} 1\n', text)


def test_a_run_directory_that_cannot_be_used_costs_one_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("EMS_RUN_DIR", str(tmp_path / "file" / "run"))
    cc = boot()
    cc.register_kvcache(cache())
    for number in range(3):
        assert cc.save(sl(number), [number], [BS], OPT) == CcResult(1, 1)
    within(cc._recorder._writer.join)
    cc.register_kvcache(cache())
    assert cc.exists([0, 1, 2], OPT) == CcResult(3, 3)
    [warning] = [each for each in caplog.messages if "inspect" in each]
    assert "Not a directory" in warning


# the profile


def test_each_call_is_one_line_of_the_profile(tmp_path, monkeypatch):
    monkeypatch.setenv("ENABLE_CC_PROFILING", "1")
    monkeypatch.setenv("EMS_SDK_LOG", str(tmp_path))
    cc = boot()
    cc.register_kvcache(cache())
    cc.save(sl(0, 1), [1, 2], [BS] * 2, OPT)
    cc.load(sl(4, 5, 6), [1, 2, 3], [BS] * 3, OPT)
    cc.exists([1], OPT)
    with knobs(DELAY="copy_d2h=100000"), pytest.raises(EmsException):
        cc.save(sl(7), [9], [BS], CcKvOption(timeout=20))
    Ems.shutdown()
    [path] = tmp_path.iterdir()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    nbytes = 2 * 4 * BS * 2 * 8 * 2
    assert [
        [line[name] for name in ("operation", "hashes", "success", "code")] for line in lines
    ] == [
        ["save", 2, 2, None],
        ["load", 3, 2, None],
        ["exists", 1, 1, None],
        ["save", 1, 0, "EMS_IO_TIMEOUT"],
    ]
    assert [line["nbytes"] for line in lines[:3]] == [nbytes, nbytes, 0]
    for line in lines[:2]:
        assert line["phases"]
        assert all(seconds >= 0 for seconds in line["phases"].values())
        assert sum(line["phases"].values()) <= line["seconds"] * 1.01 + 1e-3


def test_a_profile_that_cannot_be_written_costs_one_warning(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("ENABLE_CC_PROFILING", "1")
    monkeypatch.setenv("EMS_SDK_LOG", str(tmp_path / "file"))
    cc = boot()
    cc.register_kvcache(cache())
    for number in range(3):
        assert cc.save(sl(number), [number], [BS], OPT) == CcResult(1, 1)
    assert len([each for each in caplog.messages if "no profile of calls" in each]) == 1


# the secret


def test_the_access_key_is_in_no_text(described, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("ENABLE_CC_PROFILING", "1")
    monkeypatch.setenv("EMS_SDK_LOG", str(tmp_path / "log"))
    config = EmsConfig(
        access_id="tenant",
        access_key=SECRET,
        cc_config_v1=CcConfig_v1(rank_id=0, device_id=0, model_id="m"),
        pool=POOL,
    )
    settings = read_settings(config)
    texts = [repr(config), str(config), repr(settings), f"{dataclasses.replace(settings)}"]
    with caplog.at_level(logging.DEBUG):
        Ems.init(config)
        cc = Ems.get_cc()
        cc.register_kvcache(cache())
        cc.save(sl(0), [1], [BS], OPT)
        found = described(lambda content: "save" in content["counters"])
        texts += [json.dumps(found.content), repr(cc), repr(vars(cc))]
        for other in (SECRET + "A", SECRET * 20, [SECRET], SECRET.encode()):
            config.access_key = other
            with pytest.raises(EmsException) as refused:
                Ems.init(config)
            texts += [str(refused.value), repr(refused.value), repr(refused.value.__cause__)]
        Ems.shutdown()
    texts += caplog.messages
    texts += [path.read_text() for path in Path(tmp_path / "log").iterdir()]
    assert len(texts) > 15
    assert not [text for text in texts if SECRET in text]


ENDS = (
    REGISTERED
    + """
import os
from pathlib import Path
from ems.telemetry.run_dir import default_run_dir, descriptions

cc, kv = boot()
cc.save(sl(0), [1], [BS])
until = time.monotonic() + 60
while not [d for d in descriptions(default_run_dir()) if "save" in d.content["counters"]]:
    assert time.monotonic() < until
    time.sleep(0.02)
print(os.getpid())
"""
)


def test_the_description_is_removed_when_the_interpreter_ends(tmp_path):
    finished = run_script(ENDS, EMS_RUN_DIR=str(tmp_path / "run"))
    assert finished.stdout.strip().isdigit()
    assert list((tmp_path / "run").iterdir()) == []
