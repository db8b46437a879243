import threading

import pytest

from ems.common.exception import InvalidArgument
from ems.common.option import CcKvOption, checked_option


def test_no_option_means_the_defaults_of_the_sdk():
    assert checked_option(None) == CcKvOption(
        write_rcache=True, read_local_only=False, timeout=5000
    )


def test_what_is_checked_is_a_copy_that_later_changes_do_not_reach():
    option = CcKvOption(timeout=100)
    checked = checked_option(option)
    option.timeout = -1
    assert checked.timeout == 100


@pytest.mark.parametrize("timeout", [0, 1, 5000, 2**31])
def test_a_time_out_of_zero_or_more_milliseconds_is_kept(timeout):
    assert checked_option(CcKvOption(timeout=timeout)).timeout == timeout


@pytest.mark.parametrize("timeout", [-1, 1.0, "5000", None, True, [5]], ids=repr)
def test_a_time_out_that_is_no_number_of_milliseconds_is_refused_by_value(timeout):
    with pytest.raises(InvalidArgument) as refused:
        checked_option(CcKvOption(timeout=timeout))
    assert "option.timeout" in str(refused.value)
    assert repr(timeout) in str(refused.value)


@pytest.mark.parametrize("timeout", [10**13, 10**18, 10**400], ids=["10^13", "10^18", "10^400"])
def test_a_time_out_beyond_what_locks_can_wait_for_is_cut_to_it(timeout):
    seconds = checked_option(CcKvOption(timeout=timeout)).timeout / 1e3
    assert 10**8 < seconds < threading.TIMEOUT_MAX


@pytest.mark.parametrize("field", ["write_rcache", "read_local_only"])
@pytest.mark.parametrize("value", [0, 1, None, "yes"], ids=repr)
def test_a_switch_that_is_no_bool_is_refused_by_name_and_value(field, value):
    option = CcKvOption()
    setattr(option, field, value)
    with pytest.raises(InvalidArgument) as refused:
        checked_option(option)
    assert f"option.{field}" in str(refused.value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize("option", [5000, "fast", {"timeout": 1}, CcKvOption], ids=repr)
def test_what_is_no_option_is_refused(option):
    with pytest.raises(InvalidArgument, match="CcKvOption"):
        checked_option(option)
