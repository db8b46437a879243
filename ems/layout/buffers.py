"""Keys and buffers of callers that address device memory themselves (the SDK's V0 form)."""

import operator
import struct
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from ems.common.addressing import KvBufferWrapper
from ems.common.exception import InvalidArgument, shown
from ems.layout.copy_plan import Spans, Uints
from ems.layout.key import PoolKey, buffer_keys
from ems.layout.slots import Ints

_LONGEST_KEY = 127
_LIMIT = 1 << 63
_PLACE_BITS = 20
"""Buffers are compared for conflicts by the MiB they lie in: coarse, and never too fine."""


@dataclass(frozen=True)
class BufferPart:
    """A request of keys and buffers; a `Part`. The buffers of one key, joined, are its value."""

    caller_keys: Sequence[str]
    key_prefix: str
    addresses: Ints
    """Of all buffers, key after key."""
    lengths: Ints
    """Bytes of each buffer."""
    counts: Ints
    """Buffers of each key; they add up to the buffers."""

    @cached_property
    def keys(self) -> list[PoolKey]:
        """See `Part.keys`."""
        return buffer_keys(self.key_prefix, self.caller_keys)

    @cached_property
    def nbytes(self) -> Ints:
        """See `Part.nbytes`."""
        return np.add.reduceat(self.lengths, self._first)

    @property
    def tokens(self) -> Ints:
        """See `Part.tokens`; the length of a value is its bytes."""
        return self.nbytes

    @property
    def window(self) -> int | None:
        """See `Part.window`."""
        return None

    @property
    def space(self) -> Hashable:
        """See `Part.space`."""
        return "buffers"

    @cached_property
    def places(self) -> list[int]:
        """See `Part.places`."""
        first = self.addresses >> _PLACE_BITS
        last = (self.addresses + self.lengths - 1) >> _PLACE_BITS
        places = {int(at) for at in np.unique(first)}
        for start, end in zip(first[last > first], last[last > first], strict=True):
            places.update(range(int(start), int(end) + 1))
        return sorted(places)

    @cached_property
    def _first(self) -> Ints:
        """Position of each key's first buffer."""
        first: Ints = np.cumsum(self.counts) - self.counts
        return first

    def spans(self, which: Ints, addresses: Uints, stored: Ints) -> Spans:  # noqa: ARG002
        """See `Part.spans`."""
        counts = self.counts[which]
        ends = np.cumsum(counts)
        rows = np.arange(ends[-1]) - np.repeat(ends - counts - self._first[which], counts)
        lengths = self.lengths[rows]
        before = np.cumsum(lengths) - lengths
        within = before - np.repeat(before[ends - counts], counts)
        # neighbouring buffers may be two allocations, so they stay spans of their own
        return Spans(
            self.addresses[rows].astype(np.uint64),
            np.repeat(addresses, counts) + within.astype(np.uint64),
            lengths.astype(np.uint64),
        )


def part_of_buffers(key_list: Any, value_list: Any, *, key_prefix: str, writes: bool) -> BufferPart:
    """Return the part of a call with key_list and value_list.

    Args:
        key_list: different str shorter than 128 characters, or `PrimaryKey` (any object with such
            a `key`).
        value_list: for each key a list of `KvBufferWrapper`.
        key_prefix: what the keys of this caller have in common.
        writes: for loads, whose buffers must not overlap.

    Raises:
        InvalidArgument: with the argument, index and value.
    """
    keys = _parse_keys(key_list)
    values = _parse_values(value_list, len(keys))
    buffers = list(chain.from_iterable(values))
    if set(map(type, buffers)) != {KvBufferWrapper}:
        _refuse_foreign_buffer(values)
    addresses, lengths = _columns(values, buffers)
    counts = np.fromiter(map(len, values), np.int64, len(values))
    part = BufferPart(keys, key_prefix, addresses, lengths, counts)
    if writes:
        _check_apart(part)
    return part


def _parse_keys(key_list: Any) -> list[str]:
    if not isinstance(key_list, list | tuple) or not key_list:
        raise InvalidArgument(f"key_list must be a non-empty list of str, not {shown(key_list)}")
    keys: list[Any] = [
        key if isinstance(key, str) else getattr(key, "key", key) for key in key_list
    ]
    for index, key in enumerate(keys):
        if not isinstance(key, str) or not 0 < len(key) <= _LONGEST_KEY:
            raise InvalidArgument(
                f"key_list[{index}] must be a str of 1 to {_LONGEST_KEY} characters, "
                f"not {shown(key_list[index])}"
            )
    if len(set(keys)) != len(keys):
        seen: dict[str, int] = {}
        for index, key in enumerate(keys):
            if (first := seen.setdefault(key, index)) != index:
                raise InvalidArgument(
                    f"key_list[{index}] repeats key_list[{first}]: {shown(key)}; keys must differ"
                )
    return keys


def _parse_values(value_list: Any, keys: int) -> Sequence[Sequence[Any]]:
    if not isinstance(value_list, list | tuple):
        raise InvalidArgument(f"value_list must be a list of lists, not {shown(value_list)}")
    if len(value_list) != keys:
        raise InvalidArgument(f"there are {keys} keys and {len(value_list)} values")
    for index, value in enumerate(value_list):
        if not isinstance(value, list | tuple) or not value:
            raise InvalidArgument(
                f"value_list[{index}] must be a non-empty list of KvBufferWrapper, "
                f"not {shown(value)}"
            )
    return value_list


def _refuse_foreign_buffer(values: Sequence[Sequence[Any]]) -> None:
    for index, value in enumerate(values):
        for at, buffer in enumerate(value):
            if not isinstance(buffer, KvBufferWrapper):
                raise InvalidArgument(
                    f"value_list[{index}][{at}] must be a KvBufferWrapper, not {shown(buffer)}"
                )


def _columns(
    values: Sequence[Sequence[KvBufferWrapper]], buffers: Sequence[KvBufferWrapper]
) -> tuple[Ints, Ints]:
    """Return the addresses and the lengths of all buffers, each a positive int."""
    try:
        packed = struct.pack(f"{2 * len(buffers)}q", *chain.from_iterable(buffers))
    except (struct.error, TypeError):  # TypeError is from an `__index__` that refuses
        raise _first_bad(values) from None
    table = np.frombuffer(packed, np.int64)
    addresses, lengths = table.reshape(-1, 2).T.copy()
    if (
        table.min() < 1
        or (lengths > _LIMIT - 1 - addresses).any()
        or any(isinstance(buffers[at // 2][at % 2], bool) for at in np.flatnonzero(table == 1))
    ):
        raise _first_bad(values)
    return addresses, lengths


def _first_bad(values: Sequence[Sequence[KvBufferWrapper]]) -> InvalidArgument:
    for index, value in enumerate(values):
        for at, buffer in enumerate(value):
            where = f"value_list[{index}][{at}]"
            for field, number in buffer._asdict().items():
                if reason := _why_not(field, number):
                    return InvalidArgument(f"{where}.{field} {reason}")
            if operator.index(buffer.data_ptr) + operator.index(buffer.length) >= _LIMIT:
                return InvalidArgument(
                    f"{where} is {buffer.length} bytes at {buffer.data_ptr:#x}; it must end below "
                    "2^63"
                )
    return InvalidArgument("value_list changed while it was read")


def _why_not(field: str, number: Any) -> str | None:
    try:
        value = None if isinstance(number, bool) else operator.index(number)
    except TypeError:
        value = None
    if value is None:
        hint = f"; call it: {field}()" if callable(number) else ""
        return f"must be an int, not {shown(number)}{hint}"
    if not 0 < value < _LIMIT:
        return f"is {shown(number)}; it must be positive and below 2^63"
    return None


def _check_apart(part: BufferPart) -> None:
    order = np.argsort(part.addresses, kind="stable")
    starts = part.addresses[order]
    meeting = np.flatnonzero(starts[1:] < starts[:-1] + part.lengths[order][:-1])
    if not meeting.size:
        return
    pair = sorted(order[meeting[0] : meeting[0] + 2].tolist())
    names = " and ".join(name_of_buffer(part, row) for row in pair)
    raise InvalidArgument(f"{names} overlap; a byte can be loaded once")


def name_of_buffer(part: BufferPart, row: int) -> str:
    """Return how messages call the buffer at `row` of all buffers."""
    key = int(np.searchsorted(np.cumsum(part.counts), row, side="right"))
    return f"value_list[{key}][{row - int(part.counts[:key].sum())}]"
