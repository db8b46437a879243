"""Counters: every total is the sum of its parts, whatever the calls were."""

import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ems.common.exception import EmsErrorCode
from ems.telemetry.counters import Counters
from ems.telemetry.tally import CallRecord, Tally

FATES = ["done", "already_there", "no_space", "absent", "evicted", "behind_a_miss", "failed"]


@st.composite
def records(draw):
    fates = draw(st.dictionaries(st.sampled_from(FATES), st.integers(0, 1000)))
    hashes = sum(fates.values())
    return CallRecord(
        operation=draw(st.sampled_from(["save", "load", "exists"])),
        hashes=hashes,
        success=draw(st.integers(0, hashes)),
        fates=fates,
        nbytes=draw(st.integers(0, 1 << 40)),
        phases=draw(st.dictionaries(st.sampled_from(["wait", "pool", "copy"]), st.floats(0, 9))),
        seconds=draw(st.floats(0, 9)),
        code=draw(st.none() | st.sampled_from(list(EmsErrorCode))),
    )


@settings(deadline=None)
@given(st.lists(records(), max_size=30))
def test_the_parts_sum_to_the_whole(calls):
    counters = Counters()
    for call in calls:
        counters.add(call)
    snapshot = counters.snapshot()
    assert set(snapshot) == {call.operation for call in calls}
    for operation, counted in snapshot.items():
        mine = [call for call in calls if call.operation == operation]
        assert counted["calls"] == len(mine)
        assert counted["hashes"] == sum(call.hashes for call in mine)
        assert counted["hashes"] == sum(counted["hashes_by_fate"].values())
        assert counted["failed"] == sum(call.code is not None for call in mine)
        assert counted["failed"] == sum(counted["failures_by_code"].values())
        assert counted["nbytes"] == sum(call.nbytes for call in mine)
        assert counted["seconds"] == pytest.approx(sum(call.seconds for call in mine))
        for phase, seconds in counted["seconds_by_phase"].items():
            assert seconds == pytest.approx(sum(call.phases.get(phase, 0) for call in mine))
    assert json.loads(json.dumps(snapshot)) == snapshot


def test_a_snapshot_stays_what_it_was():
    counters = Counters()
    call = CallRecord("save", 1, 1, {"done": 1}, 8, {"copy": 0.5}, 1.0)
    counters.add(call)
    before = counters.snapshot()
    counters.add(call)
    assert before["save"]["hashes_by_fate"] == {"done": 1}
    assert counters.snapshot()["save"]["hashes_by_fate"] == {"done": 2}


def test_no_call_is_lost_when_threads_count_at_once():
    counters = Counters()
    call = CallRecord("load", 2, 1, {"done": 1, "absent": 1}, 8, {}, 0.0)
    threads = [
        threading.Thread(target=lambda: [counters.add(call) for _ in range(500)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counters.snapshot()["load"]["calls"] == 2000
    assert counters.snapshot()["load"]["hashes_by_fate"] == {"done": 2000, "absent": 2000}


def test_laps_leave_no_time_out_and_count_none_twice():
    before = time.monotonic()
    tally = Tally()
    for name in ("wait", "pool", "copy", "pool"):
        tally.lap(name)
    assert list(tally.phases) == ["wait", "pool", "copy"]
    assert 0 < sum(tally.phases.values()) <= time.monotonic() - before + 1e-6
