"""The URL that chooses a pool engine and its settings."""

from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import parse_qsl, unquote, urlsplit

from ems.common.exception import InvalidArgument, shown
from ems.common.secret import masked
from ems.common.units import parse_nbytes


@dataclass(frozen=True, slots=True)
class PoolUrl:
    """`scheme://host:port/path?name=value&…`, taken apart and not yet judged."""

    text: str
    scheme: str
    host: str
    port: int | None
    path: str
    query: tuple[tuple[str, str], ...]

    @classmethod
    def parse(cls, text: str) -> "PoolUrl":
        """Return `text` taken apart.

        Raises:
            InvalidArgument: it is no URL of a pool.
        """
        try:
            parts = urlsplit(text)
            query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)
            port = parts.port
        except ValueError as error:
            raise InvalidArgument(
                f"the pool {shown(masked(text))} is not a URL: {shown(masked(str(error)))}"
            ) from error
        if not parts.scheme or not text[len(parts.scheme) :].startswith("://"):
            raise InvalidArgument(
                f"the pool {shown(masked(text))} is not a URL; write for example "
                "memory://?capacity=8GiB"
            )
        if "@" in parts.netloc or "#" in text:
            raise InvalidArgument(
                f"the pool {shown(masked(text))}: a user or a fragment (#) has no meaning"
            )
        path = unquote(parts.path)
        return cls(text, parts.scheme, parts.hostname or "", port, path, tuple(query))

    def options(self, known: Collection[str]) -> dict[str, str]:
        """Return the values of the query by name.

        Raises:
            InvalidArgument: a name is not in `known`, or is given twice.
        """
        values: dict[str, str] = {}
        for name, value in self.query:
            if name not in known:
                raise self.refusal(
                    f"{shown(name)} is unknown; known are {', '.join(sorted(known))}"
                )
            if name in values:
                raise self.refusal(f"{name} is given twice")
            values[name] = value
        return values

    def nbytes(self, name: str, value: str) -> int:
        """Return the size that option `name` has.

        Raises:
            InvalidArgument: `value` is not a size.
        """
        try:
            return parse_nbytes(value)
        except ValueError as error:
            raise self.refusal(f"{name}: {error}") from error

    def refusal(self, why: str) -> InvalidArgument:
        """Return the error that says what is wrong with this URL."""
        return InvalidArgument(f"the pool {shown(masked(self.text))}: {why}")
