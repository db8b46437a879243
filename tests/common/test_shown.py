import numpy as np
import pytest

from ems.common.exception import shown


def test_a_short_value_is_shown_as_python_writes_it():
    assert shown("1") == "'1'"
    assert shown("x" * 78) == f"'{'x' * 78}'"


def test_a_long_value_is_cut():
    assert shown("x" * 79) == f"'{'x' * 79}…"
    assert shown(list(range(1000))).endswith("…")


@pytest.mark.parametrize(
    "value", [10**5000, -(10**5000), [10**5000]], ids=["int", "below 0", "list"]
)
def test_an_int_that_python_does_not_write_is_shown_all_the_same(value):
    assert shown(value) == f"a {type(value).__name__} that cannot be written"


class Odd:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return self.text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros((2, 2), np.int64), "array([[0, 0], [0, 0]])"),
        (Odd("a\n\tb"), "a b"),
        (Odd("a\x1b[2Jb"), "a\\x1b[2Jb"),
        (Odd("a\n" * 10**6), "a " * 40 + "…"),
    ],
    ids=["array", "lines", "escape", "long"],
)
def test_a_value_is_shown_on_one_line_whatever_it_writes(value, text):
    assert shown(value) == text


def test_a_value_that_cannot_write_itself_is_shown_by_its_type():
    assert shown(Odd(None)) == "a Odd that cannot be written"
