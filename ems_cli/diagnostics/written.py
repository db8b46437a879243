"""Reads a value that follows a small grammar, and points at what does not."""

import re
from typing import Final, NoReturn

from ems_cli.diagnostics.bad_input import BadInput

_WIDTH: Final = 64
_BEFORE: Final = 40
_SPACE: Final = re.compile(r"\s*")
_NUMBER: Final = re.compile(r"\d{1,15}")
_WORD: Final = re.compile(r"[\w.]+")


class Written:
    """A text and how far it has been read; blanks between its parts do not count."""

    def __init__(self, text: str, *, option: str) -> None:
        """Start at the beginning.

        Raises:
            BadInput: the text has characters that cannot be shown.
        """
        self.text = text
        self.at = 0
        self._option = option
        if not text.isprintable():
            raise BadInput("it has characters that cannot be printed", option=option)

    def refuse(self, wanted: str, at: int | None = None) -> NoReturn:
        """Say what is wanted, and point at where it is missing.

        Raises:
            BadInput: always.
        """
        place = self.at if at is None else at
        raise BadInput(wanted, option=self._option, pointer=_pointer(self.text, place))

    @property
    def ended(self) -> bool:
        """Whether nothing is left."""
        self._match(_SPACE)
        return self.at >= len(self.text)

    def accept(self, mark: str) -> bool:
        """Take `mark` if it comes next."""
        self._match(_SPACE)
        found = self.text.startswith(mark, self.at)
        if found:
            self.at += len(mark)
        return found

    def expect(self, mark: str, wanted: str) -> None:
        """Take `mark`.

        Raises:
            BadInput: something else comes next.
        """
        if not self.accept(mark):
            self.refuse(wanted)

    def number(self, wanted: str, *, least: int = 1) -> int:
        """Take a number.

        Raises:
            BadInput: none comes next, or a smaller one.
        """
        self._match(_SPACE)
        start = self.at
        found = self._match(_NUMBER)
        if not found or int(found) < least:
            self.refuse(wanted, start)
        return int(found)

    def word(self) -> str:
        """Take letters, digits, dots and underscores; maybe none."""
        self._match(_SPACE)
        return self._match(_WORD)

    @property
    def number_follows(self) -> bool:
        """Whether a number comes next."""
        self._match(_SPACE)
        return _NUMBER.match(self.text, self.at) is not None

    def _match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            return ""
        self.at = found.end()
        return found[0]


def _pointer(text: str, place: int) -> str:
    """Return the text around a place, and below it a caret that points there."""
    first = max(0, place - _BEFORE) if len(text) > _WIDTH else 0
    shown = text[first : first + _WIDTH]
    cut = "…" if first else ""
    more = "…" if first + _WIDTH < len(text) else ""
    return f"  {cut}{shown}{more}\n  {' ' * (len(cut) + place - first)}^"
