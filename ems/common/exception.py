"""Every failure the SDK reports.

EmsException             EMS_INTERNAL_ERROR     a fault inside this library
├── InvalidArgument      EMS_INVALID_ARGUMENT   the caller can fix this; the pool is fine
├── PoolUnavailable      EMS_IO_ERROR           the pool did not answer, or refused
├── RequestTimeout       EMS_IO_TIMEOUT         the request did not end within its time-out
├── DeviceFailed         EMS_INTERNAL_ERROR     the NPU refused or failed; it counts as lost
└── NotReadyYet          EMS_RECOVERD_ERROR     `Ems.init` failed, and may be tried again
"""

import enum
from typing import Any, ClassVar


class EmsErrorCode(enum.Enum):
    """What kind of failure an `EmsException` is; compare with `==`.

    The names are the SDK's; it does not publish their numbers, so the values here are ours.
    Any code but EMS_INVALID_ARGUMENT tells known callers to stop using the pool until
    `Ems.check_health` is True again; EMS_RECOVERD_ERROR makes them call `Ems.init` again.
    """

    EMS_INVALID_ARGUMENT = 1
    EMS_IO_ERROR = 2
    EMS_IO_TIMEOUT = 3
    EMS_INTERNAL_ERROR = 4
    EMS_RECOVERD_ERROR = 5  # spelt so by the SDK's callers
    EMS_RECOVERED_ERROR = EMS_RECOVERD_ERROR


class EmsException(Exception):  # noqa: N818 - the SDK's name
    """Base of every failure; `status_code()` is the SDK's way to ask which."""

    code: ClassVar[EmsErrorCode] = EmsErrorCode.EMS_INTERNAL_ERROR

    def status_code(self) -> EmsErrorCode:
        """Return the code callers branch on."""
        return self.code

    def message(self) -> str:
        """Return what happened, in words; the same text as `str()`."""
        return str(self)


class InvalidArgument(EmsException):
    """An argument, a configuration or the order of calls is wrong; nothing has been moved."""

    code = EmsErrorCode.EMS_INVALID_ARGUMENT


class PoolUnavailable(EmsException):
    """The memory pool did not answer, or refused."""

    code = EmsErrorCode.EMS_IO_ERROR


class RequestTimeout(EmsException):
    """The request did not end within its time-out; none of its bytes move any more."""

    code = EmsErrorCode.EMS_IO_TIMEOUT


class DeviceFailed(EmsException):
    """The NPU refused or failed an operation; this process makes no further copies on it."""

    code = EmsErrorCode.EMS_INTERNAL_ERROR


class NotReadyYet(EmsException):
    """`Ems.init` failed because the pool is not up; calling it again later may succeed."""

    code = EmsErrorCode.EMS_RECOVERD_ERROR


def shown(value: Any) -> str:
    """Return `value` for an error text: its repr on one line, cut to what a log line can bear."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - an int too long for Python to write, or a caller's own class
        text = f"a {type(value).__name__} that cannot be written"
    text = text[: 4 * _SHOWN]
    if not text.isprintable():  # arrays come in lines, a class may write anything
        words = " ".join(text.split())
        text = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in words)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


_SHOWN = 80
