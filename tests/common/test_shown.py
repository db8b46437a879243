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
    assert shown(value) == f"a {type(value).__name__} too long to be written"
