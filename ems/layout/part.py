"""A request seen as entries of the pool: the one form in which every kind of call is moved."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from ems.layout.copy_plan import Spans, Uints, entry_nbytes, plan_spans
from ems.layout.key import PoolKey, make_keys
from ems.layout.layer_group import LayerGroup
from ems.layout.request import Chunks, Request
from ems.layout.slots import Ints


class Part(Protocol):
    """What a request moves between one kind of entry and device memory: an entry per hash.

    Cheap to make, on the caller's thread; what is costly is worked out when a worker asks for it.
    """

    @property
    def keys(self) -> Sequence[PoolKey]:
        """One per hash of the request; may repeat."""

    @property
    def tokens(self) -> Ints:
        """Length of each entry, in the unit that decides whether a stored one is long enough.

        0 where the request has no entry of the hash here.
        """

    @property
    def nbytes(self) -> Ints:
        """Size of each entry."""

    @property
    def window(self) -> int | None:
        """Tokens at the end of a prefix that are needed of these entries; None: all."""

    @property
    def space(self) -> Hashable:
        """Within which `places` can be compared."""

    @property
    def places(self) -> Sequence[int]:
        """Where device memory is touched; requests without a common place cannot meet."""

    def spans(self, which: Ints, addresses: Uints, stored: Ints) -> Spans:
        """Return the copies between device memory and the entries of hashes `which` (ascending).

        `addresses` and `stored` are the host addresses and token counts of those entries.
        """


@dataclass(frozen=True)
class GroupPart:
    """The chunks of a request in one layer group of a registered cache."""

    group: LayerGroup
    chunks: Chunks
    hashes: Sequence[int | bytes | str]
    key_prefix: str

    @cached_property
    def keys(self) -> list[PoolKey]:
        """See `Part.keys`."""
        return make_keys(self.key_prefix, self.hashes)

    @property
    def tokens(self) -> Ints:
        """See `Part.tokens`."""
        return self.chunks.tokens

    @cached_property
    def nbytes(self) -> Ints:
        """See `Part.nbytes`."""
        return entry_nbytes(self.group, self.chunks.tokens)

    @property
    def window(self) -> int | None:
        """See `Part.window`."""
        return self.group.window

    @property
    def space(self) -> Hashable:
        """See `Part.space`; places are blocks."""
        return self.group.space

    @cached_property
    def places(self) -> list[int]:
        """See `Part.places`."""
        blocks: list[int] = np.unique(self.chunks.touched_blocks).tolist()
        return blocks

    def spans(self, which: Ints, addresses: Uints, stored: Ints) -> Spans:
        """See `Part.spans`."""
        return plan_spans(self.group, self.chunks, which, addresses, stored)


def parts_of(
    request: Request, groups: Sequence[LayerGroup], key_prefixes: Sequence[str]
) -> list[GroupPart]:
    """Return the parts of a request, one per layer group."""
    return [
        GroupPart(group, chunks, request.hashes, prefix)
        for group, chunks, prefix in zip(groups, request.chunks, key_prefixes, strict=True)
    ]
