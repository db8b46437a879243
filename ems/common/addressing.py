"""How callers say what is to be moved, beside slots and hashes."""

from dataclasses import dataclass
from typing import NamedTuple


class KvBufferWrapper(NamedTuple):
    """A contiguous range of NPU memory; the bytes of several of them, joined, are one key's value.

    Callers make 10^5 and more of these and pass the same ones again and again: making one checks
    nothing (`save` and `load` do), and being tuples they are read without a look-up each.

    Requests of buffers keep their order among themselves where they meet in memory, and so do
    requests of registered slots; a request of buffers on registered tensors is not put in order
    with those of slots, so wait for the one before the other.
    """

    data_ptr: int
    """Address of the first byte, above 0: `tensor.data_ptr()`."""
    length: int
    """Bytes, above 0."""


@dataclass(frozen=True, slots=True)
class PrimaryKey:
    """A key of the caller's own. The SDK documents the name and not the fields.

    A str, or any object with such a `key`, is accepted in its place.
    """

    key: str
    """1 to 127 characters, unique in its call; callers put their rank and the hash into it."""


@dataclass(frozen=True, slots=True)
class ChunkDesc:
    """The slots that one hash owns in one layer group.

    The SDK documents the two fields and not the class: a pair, a dict or any object with these
    attributes is accepted in its place.
    """

    start_slot: int
    """`block_id * Block_size + offset` of the first token, with the Block_size of the group."""
    length: int
    """Tokens, in consecutive slots."""
