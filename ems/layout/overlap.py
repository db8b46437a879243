"""Do planes share bytes? Exact also for planes that interleave, such as K and V in one page."""

from collections.abc import Iterator, Sequence
from itertools import combinations, pairwise

import numpy as np

from ems.layout.plane import Plane


def overlapping_pairs(planes: Sequence[Plane]) -> Iterator[tuple[Plane, Plane]]:
    """Yield every two planes that share a byte. The planes' own blocks must not overlap."""
    for cluster in _clusters(planes):
        if len(cluster) > 1 and not _interleave(cluster):
            for pair in combinations(cluster, 2):
                if not _interleave(pair) and _share_a_byte(*pair):
                    yield pair


def share_only_equal_blocks(one: Plane, other: Plane) -> bool:
    """Whether two planes that overlap do so only in blocks of the same number."""
    stride, offset = one.block_stride, other.address - one.address
    # the other's next block begins behind this one, and its last ends before this one
    alone = one.block_nbytes - offset <= stride and other.block_nbytes + offset <= stride
    return other.block_stride == stride and alone


def _clusters(planes: Sequence[Plane]) -> Iterator[list[Plane]]:
    """Yield groups of planes whose address ranges are connected; others cannot overlap."""
    cluster: list[Plane] = []
    end = 0
    for plane in sorted(planes, key=lambda plane: plane.address):
        if cluster and plane.address >= end:
            yield cluster
            cluster = []
            end = 0
        cluster.append(plane)
        end = max(end, plane.end)
    if cluster:
        yield cluster


def _interleave(cluster: Sequence[Plane]) -> bool:
    """Whether all have one stride and disjoint places in it: the cheap proof for paged caches."""
    stride = cluster[0].block_stride
    if any(plane.block_stride != stride for plane in cluster):
        return False
    places = sorted((plane.address % stride, plane.block_nbytes) for plane in cluster)
    apart = all(a + nbytes <= b for (a, nbytes), (b, _) in pairwise(places))
    last, nbytes = places[-1]
    return apart and last + nbytes <= stride + places[0][0]


def _share_a_byte(one: Plane, other: Plane) -> bool:
    if one.num_blocks > other.num_blocks:
        one, other = other, one
    starts = one.address + np.arange(one.num_blocks, dtype=np.int64) * one.block_stride
    # the last block of `other` that starts before this block of `one` ends
    before_end = (starts + one.block_nbytes - 1 - other.address) // other.block_stride
    nearest = np.minimum(before_end, other.num_blocks - 1)
    ends = other.address + nearest * other.block_stride + other.block_nbytes
    return bool(((nearest >= 0) & (ends > starts)).any())
