import re

import pytest

from ems.common import exception
from ems.common.exception import EmsErrorCode, EmsException

FAILURES = [EmsException, *EmsException.__subclasses__()]
OURS = [failure for failure in FAILURES if failure.__module__ == exception.__name__]


@pytest.mark.parametrize("failure", OURS, ids=lambda failure: failure.__name__)
def test_every_failure_has_a_code_and_a_line_in_the_table(failure):
    code = failure("why").status_code()
    assert isinstance(code, EmsErrorCode)
    assert re.search(rf"\b{failure.__name__} +{code.name}\b", exception.__doc__)


def test_the_table_names_no_failure_that_is_not_there():
    named = re.findall(r"^\W*(\w+) +EMS_\w+", exception.__doc__, re.MULTILINE)
    assert sorted(named) == sorted(failure.__name__ for failure in OURS)


@pytest.mark.parametrize("failure", OURS, ids=lambda failure: failure.__name__)
def test_the_text_and_the_message_are_the_same(failure):
    assert str(failure("npu:3 is gone")) == failure("npu:3 is gone").message() == "npu:3 is gone"


def test_the_misspelt_code_and_the_right_spelling_are_one_member():
    assert EmsErrorCode.EMS_RECOVERED_ERROR is EmsErrorCode.EMS_RECOVERD_ERROR
    assert EmsErrorCode.EMS_RECOVERED_ERROR.name == "EMS_RECOVERD_ERROR"


def test_codes_differ_and_have_the_names_of_the_sdk():
    assert [code.name for code in EmsErrorCode] == [
        "EMS_INVALID_ARGUMENT",
        "EMS_IO_ERROR",
        "EMS_IO_TIMEOUT",
        "EMS_INTERNAL_ERROR",
        "EMS_RECOVERD_ERROR",
    ]


def test_only_the_callers_own_mistakes_leave_the_service_healthy():
    healthy = [
        failure
        for failure in OURS
        if failure("").status_code() == EmsErrorCode.EMS_INVALID_ARGUMENT
    ]
    assert healthy == [exception.InvalidArgument]
