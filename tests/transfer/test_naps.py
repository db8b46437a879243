from itertools import islice

import pytest

from ems.transfer import naps as module
from ems.transfer.naps import Pace, naps


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless the test sets it."""
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


def test_naps_grow_from_prompt_to_cheap_and_no_further():
    found = list(islice(naps(), 50))
    assert found == sorted(found)
    assert found[0] == 20e-6
    assert found[-1] == found[-2] == 200e-6


@pytest.mark.usefixtures("clock")
def test_nothing_is_expected_of_the_first_copy():
    assert list(islice(Pace().naps(1 << 30, 100.0), 5)) == list(islice(naps(), 5))


@pytest.mark.usefixtures("clock")
def test_a_copy_is_left_alone_for_most_of_what_the_last_one_took():
    pace = Pace()
    pace.note(1 << 20, 1e-3)
    first = next(pace.naps(2 << 20, 100.0))
    assert 1e-3 < first < 2e-3


def test_what_has_passed_of_the_time_is_not_waited_for_again(clock):
    pace = Pace()
    pace.note(1 << 20, 1e-3)
    pause = pace.naps(1 << 20, 100.0)
    first = next(pause)
    clock[0] += first
    assert list(islice(pause, 5)) == list(islice(naps(), 5))


@pytest.mark.usefixtures("clock")
def test_a_deadline_is_looked_at_during_the_longest_copy():
    pace = Pace()
    pace.note(1, 1.0)
    assert max(islice(pace.naps(1 << 40, 100.0), 10)) <= 5e-3


@pytest.mark.usefixtures("clock")
def test_the_fastest_of_late_is_expected_and_forgotten_in_time():
    pace = Pace()
    pace.note(1 << 20, 1e-3)
    quick = next(pace.naps(1 << 20, 100.0))
    pace.note(1 << 20, 2e-3)
    assert quick < next(pace.naps(1 << 20, 100.0)) < 1.5 * quick
    for _ in range(50):
        pace.note(1 << 20, 2e-3)
    assert next(pace.naps(1 << 20, 100.0)) == pytest.approx(2 * quick)
