from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ems.pool.extents import ALIGNMENT, Extents, aligned

BASE = 1 << 20


def extents_of(*sizes, base=BASE):
    """Segments that touch one another, which is the harder case."""
    extents = Extents()
    for size in sizes:
        extents.add_segment(base, size)
        base += size
    return extents


@given(st.integers(1, 1 << 40))
def test_an_aligned_size_is_the_next_multiple(nbytes):
    assert aligned(nbytes) % ALIGNMENT == 0
    assert nbytes <= aligned(nbytes) < nbytes + ALIGNMENT


def test_nothing_still_has_a_place_of_its_own():
    assert aligned(0) == ALIGNMENT


def test_an_exact_extent_is_preferred_to_a_larger_one():
    extents = extents_of(64 * 10)
    starts = extents.take(64, 10)
    for start in (starts[1], starts[4], starts[5], starts[6]):
        extents.give(start)
    assert extents.take(64, 1) == [starts[1]]
    assert extents.take(64 * 3, 1) == [starts[4]]


def test_the_smallest_larger_extent_is_cut():
    extents = extents_of(64 * 8)
    starts = extents.take(64, 8)
    for start in (*starts[0:4], *starts[5:7]):
        extents.give(start)
    assert extents.take(64, 1) == [starts[5]]
    assert extents.largest_free_nbytes == 64 * 4


def test_extents_of_two_segments_never_grow_together():
    extents = extents_of(128, 128)
    for start in extents.take(64, 4):
        extents.give(start)
    assert extents.largest_free_nbytes == 128
    assert extents.whole_segments == 2
    assert extents.take(256, 1) == []


def test_what_does_not_fit_is_not_taken():
    extents = extents_of(128, 128)
    assert len(extents.take(128, 5)) == 2
    assert extents.take(64, 1) == []
    assert extents.used_nbytes == 256


@given(st.lists(st.sampled_from([64, 128, 192]), max_size=12), st.integers(1, 6))
def test_taking_many_is_taking_one_many_times(before, count):
    many, ones = extents_of(1024, 512), extents_of(1024, 512)
    for at, size in enumerate(before):
        taken = [extents.take(size, 1) for extents in (many, ones)]
        if at % 2 and taken[0]:
            many.give(*taken[0])
            ones.give(*taken[1])
    assert many.take(128, count) == [start for _ in range(count) for start in ones.take(128, 1)]


def test_a_neighbourhood_goes_upwards_over_free_and_taken():
    extents = extents_of(64 * 6)
    _a, b, c, d, _e, _f = extents.take(64, 6)
    extents.give(c)
    assert extents.neighbourhood(b, 64 * 3, may_go=lambda _: True) == [b, d]


def test_a_neighbourhood_turns_downwards_at_what_may_not_go():
    extents = extents_of(64 * 6)
    a, b, c, d, e, _f = extents.take(64, 6)
    extents.give(b)
    assert extents.neighbourhood(d, 64 * 4, may_go=lambda start: start != e) == [d, c, a]


def test_a_neighbourhood_ends_with_its_segment():
    extents = extents_of(128, 128)
    a, b, c, _d = sorted(extents.take(64, 4))
    assert extents.neighbourhood(b, 128, may_go=lambda _: True) == [b, a]
    assert extents.neighbourhood(c, 192, may_go=lambda _: True) == []


class ExtentsAgreeWithAMap(RuleBasedStateMachine):
    """The model is one owner for each 64 bytes."""

    def __init__(self):
        super().__init__()
        self.extents = Extents()
        self.segments = []
        self.taken = {}

    @precondition(lambda self: len(self.segments) < 4)
    @rule(units=st.integers(1, 8), gap=st.sampled_from([0, 64]))
    def add(self, units, gap):
        start = self.segments[-1][1] + gap if self.segments else BASE
        self.extents.add_segment(start, units * 64)
        self.segments.append((start, start + units * 64))

    @rule(units=st.integers(1, 5), count=st.integers(1, 4))
    def take(self, units, count):
        sizes = {end - start for start, end in self.free()}
        starts = self.extents.take(units * 64, count)
        if units * 64 in sizes:
            assert starts
        assert len(starts) == min(count, sum(size // (units * 64) for size in self.sizes()))
        for start in starts:
            assert any(low <= start and start + units * 64 <= high for low, high in self.free())
            self.taken[start] = units * 64

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def give(self, data):
        start = data.draw(st.sampled_from(sorted(self.taken)))
        del self.taken[start]
        self.extents.give(start)

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), units=st.integers(1, 6), kept=st.integers(0, 5))
    def neighbourhood(self, data, units, kept):
        start = data.draw(st.sampled_from(sorted(self.taken)))
        fixed = sorted(self.taken)[kept : kept + 1]
        going = self.extents.neighbourhood(start, units * 64, may_go=lambda it: it not in fixed)
        assert len(set(going)) == len(going)
        if going:
            assert start in going
            assert set(going) <= self.taken.keys()
            for one in going:
                del self.taken[one]
                self.extents.give(one)
            assert max(self.sizes()) >= units * 64

    def free(self):
        """The free extents by the model, whole."""
        found = []
        for low, high in self.segments:
            at = low
            for start in sorted(start for start in self.taken if low <= start < high):
                if at < start:
                    found.append((at, start))
                at = start + self.taken[start]
            if at < high:
                found.append((at, high))
        return found

    def sizes(self):
        return [high - low for low, high in self.free()]

    @invariant()
    def the_sums_are_exact(self):
        assert self.extents.backed_nbytes == sum(high - low for low, high in self.segments)
        assert self.extents.used_nbytes == sum(self.taken.values())
        assert self.extents.largest_free_nbytes == max(self.sizes(), default=0)
        assert self.extents.whole_segments == sum(one in self.free() for one in self.segments)


TestExtentsAgreeWithAMap = ExtentsAgreeWithAMap.TestCase
