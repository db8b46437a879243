"""Requests that name tokens instead of hashes."""

from typing import Any

import numpy as np

from ems.common.exception import InvalidArgument
from ems.layout.registration import Registration
from ems.layout.request import Request, request_of_slots
from ems.layout.slots import parse_ints
from ems.layout.token_hash import token_hashes


def request_of_tokens(
    registration: Registration, slot_mapping: Any, token_ids: Any, mask: Any, *, writes: bool
) -> Request | None:
    """Return the request of a call with slot_mapping, token_ids and mask, or None for nothing.

    All three have one element per token of the prompt; see `ems.layout.token_hash` for the hashes.
    `mask` is 0 or False for a prefix of whole blocks that is not to be moved, then 1 or True; None
    moves all. The last block may be partial.

    Raises:
        InvalidArgument: with the argument, index and value.
    """
    slots = parse_ints("slot_mapping", slot_mapping)
    tokens = parse_ints("token_ids", token_ids)
    if tokens.size != slots.size:
        raise InvalidArgument(f"there are {tokens.size} token_ids and {slots.size} slots")
    block_size = registration.groups[0].block_size
    skipped = _skipped_tokens(mask, tokens.size, block_size)
    if skipped == tokens.size:
        return None
    hashes = token_hashes(tokens, block_size)[skipped // block_size :]
    offsets = np.full(len(hashes), block_size, np.int64)
    offsets[-1] = tokens.size - skipped - block_size * (len(hashes) - 1)
    return request_of_slots(
        registration, slots[skipped:], hashes, offsets, writes=writes, start=skipped
    )


def _skipped_tokens(mask: Any, tokens: int, block_size: int) -> int:
    """Return how many leading tokens the mask leaves out."""
    if mask is None:
        return 0
    bits = parse_ints("mask", mask, kinds="biu")
    if bits.size != tokens:
        raise InvalidArgument(f"mask has {bits.size} elements for {tokens} token_ids")
    wrong = np.flatnonzero((bits != 0) & (bits != 1))
    if wrong.size:
        raise InvalidArgument(f"mask[{wrong[0]}] is {bits[wrong[0]]}, neither 0 nor 1")
    falls = np.flatnonzero(bits[1:] < bits[:-1])
    if falls.size:
        raise InvalidArgument(
            f"mask[{falls[0] + 1}] is 0 after a 1; it must be zeros first, then ones"
        )
    skipped = int(tokens - bits.sum())
    if skipped != tokens and skipped % block_size:
        raise InvalidArgument(
            f"mask leaves out {skipped} tokens, which is no multiple of Block_size {block_size}"
        )
    return skipped
