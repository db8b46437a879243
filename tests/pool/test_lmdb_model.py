"""The memory pool's model, for LMDB: evictions happen at commit, and spare nobody who reads."""

import shutil
import tempfile
from pathlib import Path

from contracts.host_memory import MappedMemory
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, precondition, rule
from test_memory_model import SOME, Content, MemoryPoolAgreesWithDict, payload_of

from ems.pool.base import Miss
from ems.pool.extents import aligned
from ems.pool.lmdb.pool import LmdbPool
from ems.pool.lmdb.record import charge_of
from ems.pool.lmdb.settings import LmdbSettings


class LmdbPoolAgreesWithDict(MemoryPoolAgreesWithDict):
    @initialize(entries=st.integers(4, 16), shards=st.integers(1, 2))
    def open(self, entries, shards):
        self.parent = Path(tempfile.mkdtemp(prefix="ems-tests-", dir="/dev/shm"))
        self.capacity_nbytes = entries * charge_of(1)
        self.segment_nbytes = self.capacity_nbytes // shards
        self.pool = LmdbPool(
            MappedMemory(),
            LmdbSettings(
                path=self.parent / "pool",
                capacity_nbytes=self.capacity_nbytes,
                staging_nbytes=1 << 20,
                shards=shards,
            ),
        )
        self.stored = {}
        self.why = {}
        self.places = []
        self.held = []
        self.evictions = 0

    def teardown(self):
        super().teardown()
        if hasattr(self, "parent"):
            shutil.rmtree(self.parent)

    @precondition(lambda self: self.places)
    @rule(chance=SOME)
    def commit(self, chance):
        places = self.pick(self.places, chance)
        keys = [place.key for place in places]
        new = len(set(keys)) == len(keys) and self.stored.keys().isdisjoint(keys)
        # a key that is there may be evicted by the first of a call and come back with a later one
        for together in [places] if new else [[place] for place in places]:
            self.pool.commit(together)
            for place in together:
                self.note_committed(place)
            self.note_evictions(spared=())

    def note_committed(self, place):
        self.places.remove(place)
        stored = self.stored.get(place.key)
        if stored is None or stored.tokens < place.tokens:
            self.stored[place.key] = Content(place.address, place.tokens, payload_of(place))
            self.why.pop(place.key, None)

    def let_pinning_settle(self):
        """There is no pinning."""

    def note_evictions(self, spared):
        for key, info in zip(list(self.stored), self.pool.lookup(list(self.stored)), strict=True):
            if info is None:
                assert key not in spared
                del self.stored[key]
                self.why[key] = Miss.EVICTED
                self.evictions += 1

    @invariant()
    def the_sums_are_exact(self):
        if not hasattr(self, "pool"):
            return
        stats = self.pool.stats()
        stored = sum(charge_of(len(one.payload)) for one in self.stored.values())
        assert stored <= self.capacity_nbytes
        assert stats.reserved_nbytes == sum(aligned(place.nbytes) for place in self.places)
        assert stats.held_nbytes == sum(aligned(held.nbytes) for held, _ in self.held)
        assert stats.used_nbytes == stored + stats.reserved_nbytes + stats.held_nbytes
        assert stats.used_nbytes <= stats.backed_nbytes <= stats.capacity_nbytes
        assert stats.largest_free_nbytes <= stats.backed_nbytes - stats.used_nbytes
        assert stats.entries == len(self.stored)
        assert stats.evictions == self.evictions


TestLmdbPoolAgreesWithDict = LmdbPoolAgreesWithDict.TestCase
TestLmdbPoolAgreesWithDict.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, print_blob=True
)
