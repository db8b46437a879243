"""A few thousand of the examples that the long run makes by the million."""

import json
import time
from contextlib import closing

import fuzz_run
import pytest


def test_whatever_comes_from_outside_is_understood_or_refused_in_one_line():
    assert "understood" in fuzz_run.run(6000, time.time_ns())


def test_an_example_is_made_again_from_its_seed_and_number():
    def outcomes():
        with closing(fuzz_run.Fuzz("7")) as fuzz:
            for number in range(200):
                fuzz.example(number)
            return fuzz.understood, fuzz.refused

    assert outcomes() == outcomes()


@pytest.mark.parametrize("spoil", [lambda text: text[:-1], lambda text: text + "\n"])
def test_a_target_that_fails_tells_its_example(spoil, monkeypatch):
    def target(random):
        return json.loads(spoil("{}"))["absent"]

    with closing(fuzz_run.Fuzz("7")) as fuzz:
        monkeypatch.setattr(fuzz, "_targets", {target: (1, ())})
        monkeypatch.setattr(fuzz, "_weights", [1])
        monkeypatch.setattr(fuzz, "_calls", [target])
        with pytest.raises(AssertionError, match="seed '7', example 3, target: "):
            fuzz.example(3)
