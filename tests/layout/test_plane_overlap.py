from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from layout_examples import untimed

from ems.layout.overlap import overlapping_pair
from ems.layout.plane import Plane


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
    pair = overlapping_pair(planes)
    if pair is None:
        assert not sharing
    else:
        assert frozenset(each.index for each in pair) in sharing


@untimed
@given(
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 9), st.integers(1, 9), st.integers(-40, 40)
)
def test_pages_of_different_strides_are_compared_byte_by_byte(nbytes, others, gap, its_gap, off):
    one = plane(0, 100, 7, nbytes, nbytes + gap)
    other = plane(1, 100 + off, 5, others, others + its_gap)
    assert (overlapping_pair([one, other]) is None) == (not bytes_of(one) & bytes_of(other))


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
