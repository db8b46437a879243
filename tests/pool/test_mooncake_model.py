"""The memory pool's model, for Mooncake with room for everything: it says nothing of evictions."""

import pytest
from contracts.mooncake_cluster import cluster, needs_mooncake, pool_of
from hypothesis import settings
from hypothesis.stateful import initialize, invariant
from test_memory_model import MemoryPoolAgreesWithDict

from ems.pool.extents import aligned

pytestmark = needs_mooncake


@pytest.fixture(scope="module", autouse=True)
def shared_pool():
    """One engine for all examples, each of which empties it."""
    with cluster() as trial, pool_of(trial) as pool:
        MooncakePoolAgreesWithDict.shared = pool
        yield


class MooncakePoolAgreesWithDict(MemoryPoolAgreesWithDict):
    shared = None
    segment_nbytes = 1 << 20

    @initialize()
    def open(self):
        self.pool = self.shared
        self.pool.clear()
        self.stored = {}
        self.why = {}
        self.places = []
        self.held = []
        self.evictions = 0

    def teardown(self):
        if hasattr(self, "pool"):
            self.pool.abort(self.places)
            self.pool.release([held for held, _ in self.held])

    def let_pinning_settle(self):
        """There is no pinning."""

    def note_evictions(self, spared):
        """There is room for all."""

    @invariant()
    def the_sums_are_exact(self):
        if not hasattr(self, "pool"):
            return
        stats = self.pool.stats()
        held = {one.address: aligned(one.nbytes) for one, _ in self.held}
        assert stats.reserved_nbytes == sum(aligned(place.nbytes) for place in self.places)
        assert stats.held_nbytes == sum(held.values())
        stored = sum(len(one.payload) for one in self.stored.values())
        assert stats.used_nbytes >= stored + stats.reserved_nbytes + stats.held_nbytes
        assert stats.used_nbytes <= stats.backed_nbytes <= stats.capacity_nbytes
        assert stats.entries == len(self.stored)
        assert stats.evictions == 0


TestMooncakePoolAgreesWithDict = MooncakePoolAgreesWithDict.TestCase
# no database: what a live cluster did in an earlier run is not to be repeated
TestMooncakePoolAgreesWithDict.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, print_blob=True, database=None
)
