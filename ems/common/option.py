"""Options of one call."""

import time
from dataclasses import dataclass
from typing import Any

from ems.common.exception import InvalidArgument, shown

_LONGEST = 10**12
"""Milliseconds, 31 years: what Python's locks can wait for; a longer time-out is cut to it."""


@dataclass
class CcKvOption:
    """How one save, load or exists is to be done. Read when the call is submitted, and checked."""

    write_rcache: bool = True
    """Keep what is saved also in the local tier of a tiered pool."""
    read_local_only: bool = False
    """Look only into the local tier of a tiered pool. Affects reads alone."""
    timeout: int = 5000
    """Milliseconds for the whole call, queueing included, from its submission; 0 is no limit (our
    choice: the SDK does not say)."""

    def deadline(self) -> float | None:
        """Return when a call that is submitted now must end, as `time.monotonic()` counts."""
        return time.monotonic() + self.timeout / 1e3 if self.timeout else None


def checked_option(option: Any) -> CcKvOption:
    """Return a copy of `option`, or the defaults for None.

    Raises:
        InvalidArgument: it is no CcKvOption, or a field has a wrong type or value.
    """
    if option is None:
        return CcKvOption()
    if not isinstance(option, CcKvOption):
        raise InvalidArgument(f"option must be a CcKvOption, not {shown(option)}")
    timeout: Any = option.timeout
    if type(timeout) is not int or timeout < 0:
        raise InvalidArgument(
            f"option.timeout must be milliseconds as an int, 0 for no limit, not {shown(timeout)}"
        )
    for name in ("write_rcache", "read_local_only"):
        if not isinstance(value := getattr(option, name), bool):
            raise InvalidArgument(f"option.{name} must be True or False, not {shown(value)}")
    return CcKvOption(option.write_rcache, option.read_local_only, min(timeout, _LONGEST))
