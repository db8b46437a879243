"""The pool's names: namespace, layer group, fingerprint and hash; unambiguous, of bounded length.

A key is `ems1-<namespace>-<group>-<fingerprint>-<hash>`. Namespace and fingerprint are digests of
complete, length-delimited descriptions (JSON), so "a"+"bc" and "ab"+"c" differ and nothing is cut.
"""

import hashlib
import json
import operator
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NewType, cast

from ems.common.exception import InvalidArgument, shown
from ems.layout.slots import as_array

PoolKey = NewType("PoolKey", str)
"""The pool's name of an entry: ASCII, shorter than 256 characters."""

_VERSION = "ems1"
_WIDEST = 64
"""Hexadecimal digits up to which a hash stands in the key as it is; 256 bits."""
_BOUND = 1 << 4 * _WIDEST


@dataclass(frozen=True, slots=True)
class Namespace:
    """Everything but the hash and the layout that keeps entries apart."""

    access_id: str | None
    model_id: str
    llm_engine: str
    tp_world_size: int | None
    """None where all ranks of a TP group hold the same data (MLA)."""
    rank_in_tp_group: int | None
    pp_world_size: int
    rank_in_pp_group: int


def digest(description: Any) -> str:
    """Return 128 bits, in hexadecimal, of a description made of JSON's types."""
    text = json.dumps(description, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def key_prefix(namespace: Namespace, group: int, fingerprint: str) -> str:
    """Return what the keys of one layer group have in common."""
    return f"{_VERSION}-{digest(asdict(namespace))}-{group}-{fingerprint}-"


def parse_hashes(hashes: Any) -> list[int | bytes | str]:
    """Return the caller's hashes without loss: ints (also numpy's), bytes or str digests.

    Raises:
        InvalidArgument: it is no list, is empty, or holds something else; the index is named.
    """
    if hasattr(hashes, "__array__"):
        hashes = as_array("hashes", hashes).tolist()
    if not isinstance(hashes, Sequence) or isinstance(hashes, str | bytes | bytearray):
        raise InvalidArgument(f"hashes must be a list of ints, not {shown(hashes)}")
    if not hashes:
        raise InvalidArgument("hashes is empty")
    if set(map(type, hashes)) == {int}:
        return list(hashes)
    return [_parse_hash(index, value) for index, value in enumerate(hashes)]


def _parse_hash(index: int, value: Any) -> int | bytes | str:
    if isinstance(value, str | bytes) and value:
        return value
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass  # no int, or one that refuses, such as a tensor of floats
    raise InvalidArgument(
        f"hashes[{index}] is {shown(value)}; a hash is an int, or a digest as bytes or str"
    )


def make_keys(prefix: str, hashes: Sequence[int | bytes | str]) -> list[PoolKey]:
    """Return one key per hash. Different hashes, also of different types, have different keys."""
    if set(map(type, hashes)) == {int}:
        ints = cast("Sequence[int]", hashes)
        if min(ints) > -_BOUND and max(ints) < _BOUND:
            return [PoolKey(f"{prefix}i{value:x}") for value in ints]
    return [PoolKey(prefix + _written(value)) for value in hashes]


def buffer_key_prefix(access_id: str | None, model_id: str) -> str:
    """Return what the keys of one caller's buffers have in common."""
    return f"{_VERSION}-{digest([access_id, model_id])}-buffers-"


def buffer_keys(prefix: str, caller_keys: Sequence[str]) -> list[PoolKey]:
    """Return one key per key of the caller's own; different ones have different keys."""
    return [PoolKey(prefix + _written(key)) for key in caller_keys]


def _written(value: int | bytes | str) -> str:
    if isinstance(value, int):
        kind, text = "i", f"{value:x}"
    elif isinstance(value, bytes):
        kind, text = "b", value.hex()
    else:
        kind, text = "s", value.encode("utf-8", "surrogatepass").hex()
    if len(text.removeprefix("-")) <= _WIDEST:  # as in `make_keys`: the sign does not count
        return kind + text
    return kind.upper() + hashlib.sha256(text.encode()).hexdigest()
