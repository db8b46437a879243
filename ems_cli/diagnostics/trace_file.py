"""Request traces: which kind a file is, and what its lines say.

The kind is told by the names of the fields alone. Numbers tell nothing: 16, 64 and 512 tokens per
hash are all in use, and so are seconds and milliseconds.
"""

import enum
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ems_cli.diagnostics.bad_input import BadInput

_BAILIAN: Final = frozenset({"chat_id", "parent_chat_id"})
_OTHER_TOOLS: Final = frozenset(
    {"session_id", "delay", "messages", "tools", "text_input", "text", "extra"}
)
_SESSIONS: Final = frozenset({"requests", "hash_id_scope"})
_SHOWN: Final = 12
_LATEST: Final = 1e18
"""No timestamp is as large; nor is infinity, or what is no number."""


class Kind(enum.Enum):
    """Who wrote a trace."""

    MOONCAKE = "Mooncake"
    BAILIAN = "Qwen-Bailian"
    MOONCAKE_LIKE = "Mooncake-like, of another tool"


_BLOCK_TOKENS: Final = {Kind.MOONCAKE: 512, Kind.BAILIAN: 16}
_TICKS_PER_SECOND: Final = {Kind.MOONCAKE: 1000.0, Kind.BAILIAN: 1.0, Kind.MOONCAKE_LIKE: 1000.0}


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a trace."""

    line: int
    hash_ids: tuple[int, ...]
    input_length: int
    """Tokens."""
    seconds: float | None
    """When it arrived, from some start."""

    def tokens(self, block_tokens: int) -> list[int]:
        """Return the tokens of each hash: whole blocks, and what is left in the last one."""
        whole = [block_tokens] * (len(self.hash_ids) - 1)
        return [*whole, self.input_length - block_tokens * len(whole)]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a line."""

    line: int
    text: str


@dataclass(frozen=True, slots=True)
class Trace:
    """A trace that was read; requests are only those of good lines."""

    kind: Kind
    block_tokens: int
    requests: tuple[Request, ...]
    problems: tuple[Problem, ...]
    """The first ones."""
    problem_count: int
    notes: tuple[str, ...]


class _LineError(Exception):
    """A line is wrong; the text says how."""


def read_trace(path: Path, block_tokens: int | None) -> Trace:
    """Return the trace in `path`; `block_tokens` wins over what its kind says.

    Raises:
        BadInput: it cannot be read, is empty, is of a kind that is not replayed, or of one that
            does not say how many tokens a hash stands for.
    """
    lines = _Lines(path)
    kind: Kind | None = None
    requests: list[Request] = []
    for number, text in lines:
        try:
            fields = _object(text)
            if kind is None:
                kind = _kind_of(fields, path)
                block_tokens = _block_tokens(kind, block_tokens)
            requests.append(_request(fields, number, kind, block_tokens or 1))
        except _LineError as error:
            lines.note_problem(number, str(error))
    if kind is None or block_tokens is None:
        if lines.problem_count:
            raise BadInput(
                f"{path}, line {lines.problems[0].line}: {lines.problems[0].text}", option=_FILE
            )
        raise BadInput(f"{path} is empty: it has no request", option=_FILE)
    if not requests and not lines.problem_count:
        raise BadInput(f"{path} has no request", option=_FILE)
    notes = [*lines.notes, *_order_notes(requests)]
    return Trace(
        kind,
        block_tokens,
        tuple(requests),
        tuple(lines.problems),
        lines.problem_count,
        tuple(notes),
    )


class _Lines:
    """The lines of a file that hold something; keeps what is wrong with others."""

    def __init__(self, path: Path) -> None:
        self.problems: list[Problem] = []
        self.problem_count = 0
        self.notes: list[str] = []
        self._path = path

    def note_problem(self, line: int, text: str) -> None:
        """Count a wrong line and keep the first ones."""
        self.problem_count += 1
        if len(self.problems) < _SHOWN:
            self.problems.append(Problem(line, text))

    def __iter__(self) -> Iterator[tuple[int, str]]:
        """Yield line numbers and texts; raises BadInput where the file cannot be read."""
        try:
            with self._path.open("rb") as file:
                for number, raw in enumerate(file, 1):
                    yield from self._line(number, raw)
        except OSError as error:
            raise BadInput(f"cannot read {self._path}: {error.strerror}", option=_FILE) from error

    def _line(self, number: int, raw: bytes) -> Iterator[tuple[int, str]]:
        try:
            text = raw.decode("utf-8-sig" if number == 1 else "utf-8").strip()
        except UnicodeDecodeError as error:
            self.note_problem(number, f"byte {error.start} is no UTF-8")
            return
        if text and not raw.endswith(b"\n") and _is_cut(text):
            self.notes.append(
                f"line {number}, the last one, is cut off in the middle and left out: the file is "
                "not complete"
            )
        elif text:
            yield number, text


def _is_cut(text: str) -> bool:
    """Whether a line without an end is the beginning of an object."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text.startswith("{") and not text.endswith("}")
    return False


def _object(text: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(text)
    except ValueError as error:
        column = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise _LineError(f"no JSON{column}: {getattr(error, 'msg', error)}") from error
    except RecursionError as error:
        raise _LineError("no JSON that can be read: nested too deep") from error
    if not isinstance(fields, dict):
        raise _LineError("no JSON object")
    return fields


def _kind_of(fields: Mapping[str, Any], path: Path) -> Kind:
    if _SESSIONS & fields.keys():
        raise BadInput(
            f"{path} has one session per line (requests, hash_id_scope), not one request; write "
            "its requests as lines with timestamp, input_length, output_length, hash_ids",
            option=_FILE,
        )
    if "hash_ids" not in fields:
        names = ", ".join(sorted(fields)) or "none"
        raise BadInput(
            f"{path} is no trace that is known: its first line has no hash_ids, but {names[:200]}",
            option=_FILE,
        )
    if fields.keys() >= _BAILIAN:
        return Kind.BAILIAN
    whole = {"timestamp", "input_length", "output_length"} <= fields.keys()
    return Kind.MOONCAKE if whole and not _OTHER_TOOLS & fields.keys() else Kind.MOONCAKE_LIKE


def _block_tokens(kind: Kind, given: int | None) -> int:
    tokens = given or _BLOCK_TOKENS.get(kind)
    if tokens is None:
        raise BadInput(
            "this kind of trace does not say how many tokens a hash stands for; 512, 64 and 16 "
            "are in use",
            option="--block-tokens",
        )
    return tokens


def _request(fields: Mapping[str, Any], line: int, kind: Kind, block_tokens: int) -> Request:
    if _SESSIONS & fields.keys():
        raise _LineError("a session among requests")
    ids, length = fields.get("hash_ids"), fields.get("input_length")
    if type(length) is not int or length < 1:
        raise _LineError(f"input_length is {length!r:.40}, not a number of tokens")
    if not isinstance(ids, list) or not all(type(one) is int for one in ids):
        raise _LineError("hash_ids is no list of integers")
    blocks = -(-length // block_tokens)
    if len(ids) != blocks:
        raise _LineError(
            f"input_length {length} is {blocks} blocks of {block_tokens} tokens, but hash_ids has "
            f"{len(ids)}"
        )
    time = fields.get("timestamp")
    if time is not None and not (type(time) in (int, float) and abs(time) < _LATEST):
        raise _LineError(f"timestamp is {time!r:.40}, not a number")
    seconds = None if time is None else time / _TICKS_PER_SECOND[kind]
    return Request(line, tuple(ids), length, seconds)


def _order_notes(requests: list[Request]) -> Iterator[str]:
    newest = float("-inf")
    for request in requests:
        if request.seconds is not None and request.seconds < newest:
            yield f"time goes back at line {request.line}; the order of the file counts"
            return
        newest = newest if request.seconds is None else request.seconds


_FILE = "FILE"
