"""A layer group: where its planes lie, as arrays, worked out once."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from ems.layout.plane import Plane


@dataclass(frozen=True)
class LayerGroup:
    """Layers that are stored alike: what one hash owns in them is one entry."""

    index: int
    layer_ids: tuple[int, ...]
    block_size: int
    """Tokens in a block of its tensors."""
    num_blocks: int
    """Blocks that every plane has; slots beyond them are refused."""
    store_block_size: int | None
    """The most tokens of one hash; None without a description: no limit."""
    planes: tuple[Plane, ...]
    """Each tensor once, in the order of registration; the order of an entry's parts."""
    fingerprint: str
    """Digest of all that gives the bytes their meaning."""
    space: int
    """The first of the groups that share its memory: in a space, equal block ids are one place."""
    window: int | None = None
    """Tokens at the end of a prefix that are needed of these layers; None: all of the prefix."""

    @property
    def num_slots(self) -> int:
        """The first slot that is not in the cache."""
        return self.num_blocks * self.block_size

    @cached_property
    def token_nbytes(self) -> int:
        """Bytes of one token over all planes."""
        return sum(plane.token_nbytes for plane in self.planes)

    @cached_property
    def plane_addresses(self) -> npt.NDArray[np.uint64]:
        """Address of each plane's block 0."""
        return np.array([plane.address for plane in self.planes], np.uint64)

    @cached_property
    def plane_strides(self) -> npt.NDArray[np.uint64]:
        """Bytes from one block to the next, of each plane."""
        return np.array([plane.block_stride for plane in self.planes], np.uint64)

    @cached_property
    def plane_token_nbytes(self) -> npt.NDArray[np.uint64]:
        """Bytes of one token, of each plane."""
        return np.array([plane.token_nbytes for plane in self.planes], np.uint64)

    @cached_property
    def plane_block_nbytes(self) -> npt.NDArray[np.uint64]:
        """Bytes of one block, of each plane."""
        return np.array(self.plane_token_nbytes * np.uint64(self.block_size), np.uint64)

    @cached_property
    def layouts(self) -> dict[int, npt.NDArray[np.uint64]]:
        """Where parts start in entries of so many tokens; kept for `copy_plan`."""
        return {}

    @cached_property
    def has_neighbours(self) -> bool:
        """Whether a block of some plane may end where one of the next plane begins."""
        ends = self.plane_addresses + self.plane_block_nbytes
        gaps = self.plane_addresses[1:] - ends[:-1]
        alike = self.plane_strides[1:] == self.plane_strides[:-1]
        return bool((~alike | (gaps == 0)).any())
