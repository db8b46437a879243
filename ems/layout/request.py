"""What one call asks to move: its hashes, and the slots that each owns in each layer group."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ems.common.exception import InvalidArgument
from ems.layout.key import parse_hashes
from ems.layout.layer_group import LayerGroup
from ems.layout.registration import Registration
from ems.layout.sharing import sharing_pair
from ems.layout.slots import (
    Ints,
    Runs,
    check_distinct,
    check_range,
    parse_ints,
    runs_of,
    whole_blocks,
)


@dataclass(frozen=True)
class Chunks:
    """What the hashes of a request own in the layer groups of one block size.

    Made on the caller's thread; what is derived from it is worked out on a worker's.
    """

    slots: Ints
    tokens: Ints
    """Tokens of each hash; they add up to the slots."""
    block_size: int

    @cached_property
    def block_ids(self) -> Ints | None:
        """The block of each hash where all are whole blocks: the common case, needs no runs."""
        return whole_blocks(self.slots, self.tokens, self.block_size)

    @cached_property
    def runs(self) -> Runs:
        """The chunks as runs."""
        return runs_of(self.slots, self.tokens, self.block_size)

    @cached_property
    def touched_blocks(self) -> Ints:
        """Blocks that hold a named slot; may repeat."""
        return self.runs.slot // self.block_size if self.block_ids is None else self.block_ids


@dataclass(frozen=True)
class Request:
    """One call's work, checked: nothing in it can fail for a reason the caller could mend."""

    hashes: Sequence[int | bytes | str]
    chunks: tuple[Chunks, ...]
    """One for each layer group of the registration."""


def request_of_slots(  # noqa: PLR0913 - the SDK's three lists, and how they are meant
    registration: Registration,
    slot_mapping: Any,
    hashes: Any,
    offsets: Any,
    *,
    writes: bool,
    start: int = 0,
) -> Request:
    """Return the request of a call with slot_mapping, hashes and offsets.

    Hash i owns the next `offsets[i]` tokens of `slot_mapping`. `writes` is for loads, where no slot
    may be named twice. `start` is the position of the first slot in what the caller passed.

    Raises:
        InvalidArgument: with the argument, index and value.
    """
    slots = parse_ints("slot_mapping", slot_mapping)
    owners = parse_hashes(hashes)
    tokens = parse_ints("offsets", offsets)
    if len(owners) != tokens.size:
        raise InvalidArgument(f"there are {len(owners)} hashes and {tokens.size} offsets")
    if tokens.min() < 1:
        index = int(np.flatnonzero(tokens < 1)[0])
        raise InvalidArgument(
            f"offsets[{index}] is {tokens[index]}; a hash owns at least one token"
        )
    if (total := sum(tokens.tolist())) != slots.size:
        raise InvalidArgument(
            f"offsets add up to {total} tokens, slot_mapping has {slots.size} slots"
        )
    _check_one_meaning(registration)
    for group in registration.groups:
        _check_store_block_size(group, tokens)
    num_slots = min(group.num_slots for group in registration.groups)
    check_range("slot_mapping", slots, num_slots, start=start)
    if writes:
        check_distinct("slot_mapping", slots, num_slots, start=start)
    chunks = Chunks(slots, tokens, registration.groups[0].block_size)
    return Request(owners, (chunks,) * len(registration.groups))


def _check_one_meaning(registration: Registration) -> None:
    sizes = sorted({group.block_size for group in registration.groups})
    if len(sizes) > 1:
        raise InvalidArgument(
            f"slot_mapping is ambiguous: the layer groups have blocks of {sizes} tokens; "
            "pass chunk_descs"
        )
    if (pair := sharing_pair(registration.groups)) is not None:
        one, other = pair
        raise InvalidArgument(
            f"slot_mapping is ambiguous: layer groups {one.index} and {other.index} share memory, "
            "a block belongs to one of them; pass chunk_descs"
        )


def _check_store_block_size(group: LayerGroup, tokens: Ints) -> None:
    most = group.store_block_size
    if most is not None and tokens.max() > most:
        index = int(np.flatnonzero(tokens > most)[0])
        raise InvalidArgument(
            f"offsets[{index}] is {tokens[index]}; store_layer_group_desc[{group.index}] stores at "
            f"most {most} tokens under one hash"
        )
