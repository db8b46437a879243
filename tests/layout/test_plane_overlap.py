from itertools import combinations, product

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from layout_examples import untimed

from ems.layout.overlap import overlapping_pairs, share_only_equal_blocks
from ems.layout.plane import Plane


def overlapping_pair(planes):
    return next(overlapping_pairs(planes), None)


def plane(index, address, num_blocks, nbytes, stride):
    return Plane(0, index, address, num_blocks, 1, 1, nbytes, "int8", 1, stride)


def bytes_of(each):
    return {
        each.address + block * each.block_stride + i
        for block in range(each.num_blocks)
        for i in range(each.block_nbytes)
    }


@st.composite
def places(draw):
    """Planes in a few dozen bytes; often of one stride, as in pages."""
    common = draw(st.none() | st.integers(6, 12))
    found = []
    for index in range(draw(st.integers(1, 5))):
        nbytes = draw(st.integers(1, 4))
        stride = common or draw(st.integers(nbytes, 12))
        found.append(
            plane(index, draw(st.integers(1, 40)), draw(st.integers(1, 6)), nbytes, stride)
        )
    return found


@given(places())
@settings(untimed, max_examples=1000)
def test_two_planes_are_found_exactly_where_two_share_a_byte(planes):
    sharing = {
        frozenset((one.index, other.index))
        for one, other in combinations(planes, 2)
        if bytes_of(one) & bytes_of(other)
    }
    pairs = [frozenset(each.index for each in pair) for pair in overlapping_pairs(planes)]
    assert (len(pairs), set(pairs)) == (len(sharing), sharing)


@untimed
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(-40, 40)
)
def test_pages_of_different_strides_are_compared_byte_by_byte(nbytes, others, gap, its_gap, off):
    one = plane(0, 100, 7, nbytes, nbytes + gap)
    other = plane(1, 100 + off, 5, others, others + its_gap)
    assert (overlapping_pair([one, other]) is None) == (not bytes_of(one) & bytes_of(other))


@untimed
@given(
    st.integers(1, 8),
    st.integers(1, 8),
    st.integers(8, 10),
    st.integers(8, 10),
    st.integers(-20, 20),
)
def test_planes_that_overlap_share_only_equal_blocks_exactly_where_no_others_meet(
    nbytes, others, stride, its_stride, off
):
    one = plane(0, 100, 9, nbytes, stride)
    other = plane(1, 100 + off, 9, others, its_stride)
    meeting = {
        (i, j)
        for i, j in product(range(9), range(9))
        if one.address + i * stride < other.address + j * its_stride + others
        and other.address + j * its_stride < one.address + i * stride + nbytes
    }
    assume(meeting)
    expected = stride == its_stride and all(i == j for i, j in meeting)
    assert share_only_equal_blocks(one, other) == expected


@pytest.mark.parametrize("base", [64, (1 << 40) + 64, (1 << 62)])
def test_k_and_v_of_all_layers_in_one_page_share_nothing(base):
    block = 128 * 1024
    planes = [plane(i, base + i * block, 70_000, block, 64 * block) for i in range(64)]
    assert overlapping_pair(planes) is None
    shifted = [*planes, plane(64, planes[5].end - 1, 1, 2, 2)]
    assert {each.index for each in overlapping_pair(shifted)} == {5, 64}


def test_the_last_place_of_a_page_may_not_reach_into_the_next_page():
    assert overlapping_pair([plane(0, 100, 3, 4, 8), plane(1, 104, 3, 4, 8)]) is None
    assert overlapping_pair([plane(0, 100, 3, 4, 8), plane(1, 105, 3, 4, 8)]) is not None
    # the other way round, where the page's places wrap at a multiple of the stride
    assert overlapping_pair([plane(0, 102, 3, 4, 8), plane(1, 106, 3, 4, 8)]) is None
    assert overlapping_pair([plane(0, 103, 3, 4, 8), plane(1, 106, 3, 4, 8)]) is not None


def test_tensors_that_touch_do_not_overlap():
    assert overlapping_pair([plane(0, 100, 4, 8, 8), plane(1, 132, 4, 8, 8)]) is None
    assert overlapping_pair([plane(0, 100, 4, 8, 8), plane(1, 131, 4, 8, 8)]) is not None


def test_no_plane_and_one_plane_overlap_nothing():
    assert overlapping_pair([]) is None
    assert overlapping_pair([plane(0, 100, 4, 8, 8)]) is None
