"""Slots to runs: which tokens of which blocks a request names.

A slot is one token's place: `block_id * block_size + offset`. A request names them by the 10^5, so
everything here works on arrays of int64.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from ems.common.exception import InvalidArgument, shown

Ints: TypeAlias = npt.NDArray[np.int64]

_NO_INT64 = (struct.error, TypeError)
"""What `struct` raises; TypeError is from a `__index__` that refuses, as a float tensor's does."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Consecutive slots inside one block and one chunk, as columns of equal length."""

    slot: Ints
    """First slot of the run."""
    length: Ints
    """Tokens."""
    chunk: Ints
    """Which hash of the request the run belongs to; ascending."""
    position: Ints
    """Place of the run's first token in its chunk."""

    def of_chunks(self, chunks: Ints) -> "Runs":
        """Return the runs of some chunks, given in ascending order."""
        first = np.searchsorted(self.chunk, chunks, "left")
        counts = np.searchsorted(self.chunk, chunks, "right") - first
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        rows = np.repeat(first, counts) + within
        return Runs(self.slot[rows], self.length[rows], self.chunk[rows], self.position[rows])


def parse_ints(name: str, values: Any, *, kinds: str = "iu") -> Ints:
    """Return a caller's list, array or CPU tensor of integers as int64, without loss.

    `kinds` are those of an array's elements that are accepted, as numpy names them.

    Raises:
        InvalidArgument: it is no such thing, is empty, or an element is no 64-bit integer; the
            index is named.
    """
    if hasattr(values, "__array__") and not isinstance(values, np.ndarray):
        values = as_array(name, values)
    if isinstance(values, np.ndarray):
        return _checked_array(name, values, kinds)
    if not isinstance(values, Sequence) or isinstance(values, str | bytes | bytearray):
        raise InvalidArgument(f"{name} must be a list of ints, not {shown(values)}")
    if not values:
        raise InvalidArgument(f"{name} is empty")
    try:
        packed = struct.pack(f"{len(values)}q", *values)
    except _NO_INT64:
        raise _first_bad(name, values) from None
    return np.frombuffer(packed, np.int64)


def as_array(name: str, values: Any) -> npt.NDArray[Any]:
    """Return what numpy makes of an array-like.

    Raises:
        InvalidArgument: it lies on an NPU, which would have to be waited for.
    """
    try:
        return np.asarray(values)
    except (TypeError, RuntimeError, ValueError) as error:
        raise InvalidArgument(f"{name} must be in host memory: {error}") from error


def _checked_array(name: str, values: npt.NDArray[Any], kinds: str) -> Ints:
    if values.ndim != 1 or not values.size:
        raise InvalidArgument(
            f"{name} must be a non-empty list of ints, not an array of shape {values.shape}"
        )
    if values.dtype.kind not in kinds:
        raise InvalidArgument(f"{name} must hold integers, not {values.dtype}")
    if values.dtype.kind == "u" and values.max() > np.iinfo(np.int64).max:
        raise _first_bad(name, values.tolist())
    # a copy: the caller may reuse its array while the request is on its way
    return np.array(values, np.int64)


def _first_bad(name: str, values: Sequence[Any]) -> InvalidArgument:
    for index, value in enumerate(values):
        if not _fits_int64(value):
            return InvalidArgument(f"{name}[{index}] is {shown(value)}, not a 64-bit int")
    return InvalidArgument(f"{name} changed while it was read")


def _fits_int64(value: Any) -> bool:
    try:
        struct.pack("q", value)
    except _NO_INT64:
        return False
    return True


def check_range(name: str, slots: Ints, num_slots: int, *, start: int = 0) -> None:
    """Refuse slots outside the cache. `start` is the position of the first one.

    Raises:
        InvalidArgument: naming the first one's position and value.
    """
    if slots.min() >= 0 and slots.max() < num_slots:
        return
    index = int(np.flatnonzero((slots < 0) | (slots >= num_slots))[0])
    raise InvalidArgument(
        f"{name}[{start + index}] is slot {slots[index]}; the registered cache has slots 0 to "
        f"{num_slots - 1}"
    )


def check_distinct(name: str, slots: Ints, num_slots: int, *, start: int = 0) -> None:
    """Refuse a slot that is named twice: two tokens cannot be loaded into one place.

    `start` is the position of the first one.

    Raises:
        InvalidArgument: naming the slot and both positions.
    """
    taken = np.zeros(num_slots, np.bool_)
    taken[slots] = True
    if np.count_nonzero(taken) == slots.size:
        return
    order = np.argsort(slots, kind="stable")
    repeat = int(np.flatnonzero(np.diff(slots[order]) == 0)[0])
    first, second = int(order[repeat]), int(order[repeat + 1])
    raise InvalidArgument(
        f"{name}[{start + first}] and {name}[{start + second}] are both slot {slots[first]}; "
        "a slot can be loaded once"
    )


def whole_blocks(slots: Ints, tokens: Ints, block_size: int) -> Ints | None:
    """Return the block of each chunk where every chunk is one whole block in order, else None."""
    if slots.size != tokens.size * block_size or (tokens != block_size).any():
        return None
    rows = slots.reshape(tokens.size, block_size)
    first = rows[:, 0]
    if (first % block_size).any() or (rows[:, 1:] != rows[:, :-1] + 1).any():
        return None
    return first // block_size


def runs_of(slots: Ints, tokens: Ints, block_size: int) -> Runs:
    """Return the maximal runs of `slots`, in order.

    `tokens` are those of each chunk; a chunk of none has no runs.
    """
    ends = np.cumsum(tokens)
    starts = ends - tokens
    cut = np.empty(slots.size, np.bool_)
    np.not_equal(slots[1:], slots[:-1] + 1, out=cut[1:])
    cut[1:] |= slots[1:] % block_size == 0
    cut[starts[tokens > 0]] = True
    at = np.flatnonzero(cut)
    length = np.diff(at, append=slots.size)
    chunk = np.searchsorted(ends, at, side="right")
    return Runs(slots[at], length, chunk, at - starts[chunk])
