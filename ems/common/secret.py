"""What must not be told: secrets in texts and in configurations."""

import re
from dataclasses import dataclass
from typing import Final

MASK: Final = "***"
_NAMES: Final = "key|token|secret|passw|credential|auth"
SECRET_NAME: Final = re.compile(_NAMES, re.IGNORECASE)
_IN_URL: Final = re.compile(
    rf"""([?&;][^=&\s"']*(?:{_NAMES})[^=&\s"']*=)[^&\s"'…]+""", re.IGNORECASE
)
_USER_IN_URL: Final = re.compile(r"(://)[^/@\s\"']+@")


def masked(text: str) -> str:
    """Return `text` without what a URL in it carries: values of secret names, and users."""
    return _USER_IN_URL.sub(rf"\1{MASK}@", _IN_URL.sub(rf"\1{MASK}", text))


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """A text that is not written by itself: not in a repr, a log or a traceback with locals."""

    value: str

    def __repr__(self) -> str:
        return MASK
