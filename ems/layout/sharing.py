"""Layer groups that share memory, each block belonging to one of them at a time.

vLLM allots one buffer to a layer of every group and gives blocks of it to groups as they are needed
("Memory Layout" in docs/design/hybrid_kv_cache_manager.md of vllm-project/vllm; in vllm-ascend the
layers of a `KVCacheTensor.shared_by` have the same K and V). So a model with sliding windows
registers most of its tensors more than once. That is no wrong copy as long as a block id means the
same bytes in all groups, and no call names a block in two of them.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from ems.common.exception import InvalidArgument
from ems.layout.layer_group import LayerGroup
from ems.layout.overlap import overlapping_pairs, share_only_equal_blocks
from ems.layout.plane import Plane
from ems.layout.slots import Ints


def find_sharing(groups: Sequence[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Return the groups, those that share memory in one space.

    Raises:
        InvalidArgument: two tensors of a group overlap, or two of different groups otherwise than
            block by block.
    """
    group_of = {plane: group.index for group in groups for plane in group.planes}
    spaces = [group.space for group in groups]
    for one, other in overlapping_pairs(list(group_of)):
        if group_of[one] == group_of[other] or not share_only_equal_blocks(one, other):
            raise _overlap(one, other)
        joined, left = sorted((spaces[group_of[one]], spaces[group_of[other]]))
        spaces = [joined if space == left else space for space in spaces]
    return tuple(replace(group, space=space) for group, space in zip(groups, spaces, strict=True))


def sharing_pair(groups: Sequence[LayerGroup]) -> tuple[LayerGroup, LayerGroup] | None:
    """Return two groups that share memory, or None."""
    pairs = combinations(groups, 2)
    return next(((one, other) for one, other in pairs if one.space == other.space), None)


def check_apart(groups: Sequence[LayerGroup], blocks: Sequence[Ints]) -> None:
    """Refuse a block that is named in two groups which share it. `blocks` are those of each group.

    Raises:
        InvalidArgument: naming both groups and the block.
    """
    for one, other in combinations(groups, 2):
        if one.space != other.space:
            continue
        both = np.intersect1d(blocks[one.index], blocks[other.index])
        if both.size:
            raise InvalidArgument(
                f"chunk_descs[{one.index}] and chunk_descs[{other.index}] both name block "
                f"{both[0]}; these layer groups share memory, a block belongs to one of them"
            )


def _overlap(*pair: Plane) -> InvalidArgument:
    one, other = sorted(pair, key=lambda plane: (plane.layer, plane.index))
    return InvalidArgument(
        f"kvcache[{other.layer}][{other.index}] overlaps kvcache[{one.layer}][{one.index}]: "
        f"{other.address:#x}–{other.end:#x} and {one.address:#x}–{one.end:#x}; a tensor may be "
        "registered twice within one group, as a whole, and share blocks with other groups where "
        "a block id means the same bytes"
    )
