"""Requests that name, for each layer group and hash, a run of consecutive slots."""

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ems.common.addressing import ChunkDesc
from ems.common.exception import InvalidArgument, shown
from ems.layout.key import parse_hashes
from ems.layout.layer_group import LayerGroup
from ems.layout.registration import Registration
from ems.layout.request import Chunks, Request
from ems.layout.sharing import check_apart, sharing_pair
from ems.layout.slots import check_distinct

_PAIR = 2


def request_of_chunks(
    registration: Registration, hashes: Any, chunk_descs: Any, *, writes: bool
) -> Request:
    """Return the request of a call with hashes and chunk_descs.

    `chunk_descs[group][i]` names the slots that hash i owns in that layer group: an object with
    start_slot and length, a pair, or a dict. In a group with a window it may be None: that hash
    keeps nothing there. `writes` is for loads, where no slot may be named twice.

    Raises:
        InvalidArgument: with the argument, indices and value.
    """
    owners = parse_hashes(hashes)
    groups = registration.groups
    _check_outer(chunk_descs, len(groups))
    chunks = tuple(
        _chunks(group, _inner(group, chunk_descs[group.index], len(owners)), writes=writes)
        for group in groups
    )
    unused = ~np.logical_or.reduce([each.tokens > 0 for each in chunks])
    if unused.any():
        raise InvalidArgument(f"hashes[{int(np.argmax(unused))}] owns no slot in any layer group")
    if sharing_pair(groups) is not None:
        check_apart(groups, [each.touched_blocks for each in chunks])
    return Request(owners, chunks)


def _check_outer(chunk_descs: Any, groups: int) -> None:
    if not isinstance(chunk_descs, list | tuple):
        raise InvalidArgument(f"chunk_descs must be a list of lists, not {shown(chunk_descs)}")
    if len(chunk_descs) != groups:
        raise InvalidArgument(
            f"chunk_descs has {len(chunk_descs)} lists, the registered cache {groups} layer groups"
        )


def _inner(group: LayerGroup, descs: Any, hashes: int) -> Sequence[Any]:
    where = f"chunk_descs[{group.index}]"
    if not isinstance(descs, list | tuple):
        raise InvalidArgument(f"{where} must be a list, not {shown(descs)}")
    if len(descs) != hashes:
        raise InvalidArgument(f"{where} has {len(descs)} chunks for {hashes} hashes")
    return descs


def _chunks(group: LayerGroup, descs: Sequence[Any], *, writes: bool) -> Chunks:
    pairs = [_pair(group, index, desc) for index, desc in enumerate(descs)]
    start, tokens = np.array(pairs, np.int64).T.copy()
    first_token = np.cumsum(tokens) - tokens
    slots = np.arange(tokens.sum()) + np.repeat(start - first_token, tokens)
    if writes and slots.size:
        check_distinct(f"chunk_descs[{group.index}]: slot", slots, group.num_slots)
    return Chunks(slots, tokens, group.block_size)


def _pair(group: LayerGroup, index: int, desc: Any) -> tuple[int, int]:
    """Return start_slot and length of one description; length 0 for none."""
    where = f"chunk_descs[{group.index}][{index}]"
    if desc is None and group.window is not None:
        return 0, 0
    start, length = (
        _integer(f"{where}.{name}", value)
        for name, value in zip(("start_slot", "length"), _fields(where, desc), strict=True)
    )
    most = group.num_slots if group.store_block_size is None else group.store_block_size
    if not 0 < length <= most:
        raise InvalidArgument(f"{where}.length is {length}; it must be 1 to {most} tokens")
    if not 0 <= start <= group.num_slots - length:
        raise InvalidArgument(
            f"{where} names slots {start} to {start + length - 1}; the registered cache has slots "
            f"0 to {group.num_slots - 1} in layer group {group.index}"
        )
    return start, length


def _fields(where: str, desc: Any) -> tuple[Any, Any]:
    if isinstance(desc, ChunkDesc):
        return desc.start_slot, desc.length
    if isinstance(desc, list | tuple) and len(desc) == _PAIR:
        return desc[0], desc[1]
    if isinstance(desc, Mapping) and set(desc) == {"start_slot", "length"}:
        return desc["start_slot"], desc["length"]
    if hasattr(desc, "start_slot") and hasattr(desc, "length"):
        return desc.start_slot, desc.length
    raise InvalidArgument(
        f"{where} must have start_slot and length, as attributes, a pair or a dict, "
        f"not {shown(desc)}"
    )


def _integer(where: str, value: Any) -> int:
    try:
        if not isinstance(value, bool):
            return operator.index(value)
    except TypeError:
        pass
    raise InvalidArgument(f"{where} must be an int, not {shown(value)}")
