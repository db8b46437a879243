"""A memory pool against a dict, with every operation in any order."""

import random
import time
from dataclasses import dataclass

from contracts.host_memory import MappedMemory
from contracts.pool_engine import read, soon, write
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from ems.pool.base import EntryInfo, Held, Miss, Place, PoolKey, Refused
from ems.pool.extents import aligned
from ems.pool.memory import MemoryPool

KEYS = [PoolKey(name) for name in "abcdefghijkl"]
TOKENS = st.integers(1, 3)
SOME = st.randoms(use_true_random=False)


@dataclass(frozen=True)
class Content:
    """What the model knows of an entry."""

    address: int
    tokens: int
    payload: bytes


class MemoryPoolAgreesWithDict(RuleBasedStateMachine):
    """The model learns of evictions from look-ups, and checks that each was allowed."""

    @initialize(entries=st.integers(4, 16), segments=st.integers(1, 3))
    def open(self, entries, segments):
        self.memory = MappedMemory()
        self.segment_nbytes = aligned(entries * 64 // segments)
        self.pool = MemoryPool(
            self.memory, capacity_nbytes=entries * 64, segment_nbytes=self.segment_nbytes
        )
        self.let_pinning_settle()
        self.stored = {}
        self.why = {}
        self.places = []
        self.held = []
        self.evictions = 0

    def teardown(self):
        if hasattr(self, "pool"):
            self.pool.close()
            self.pool.abort(self.places)
            self.pool.release([held for held, _ in self.held])

    @rule(data=st.data(), chance=SOME)
    def reserve(self, data, chance):
        keys = data.draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=6))
        tokens = [chance.randint(1, 3) for _ in keys]
        nbytes = [chance.choice([1, 64, 64, 65, 128, 192, 300]) for _ in keys]
        idle = not self.places and not self.held
        answers = self.pool.reserve(keys, tokens, nbytes, deadline=soon())
        self.let_pinning_settle()
        for key, at_least, answer in zip(keys, tokens, answers, strict=True):
            stored = self.stored.get(key)
            enough = stored is not None and stored.tokens >= at_least
            assert (answer is Refused.ALREADY_THERE) == enough
        self.note_evictions(spared=self.full(keys, tokens))
        for key, answer, size in zip(keys, answers, nbytes, strict=True):
            if isinstance(answer, Place):
                assert (answer.key, answer.nbytes) == (key, size)
                assert answer.address % 64 == 0
                self.places.append(answer)
                write(answer, payload_of(answer))
            elif answer is Refused.NO_SPACE and key not in self.stored:
                self.why[key] = Miss.SAVE_FAILED
        if idle and len(keys) == 1 and nbytes[0] <= self.segment_nbytes:
            assert answers != [Refused.NO_SPACE]

    @precondition(lambda self: self.places)
    @rule(chance=SOME)
    def commit(self, chance):
        places = self.pick(self.places, chance)
        self.pool.commit(places)
        for place in places:
            self.places.remove(place)
            stored = self.stored.get(place.key)
            if stored is None or stored.tokens < place.tokens:
                self.stored[place.key] = Content(place.address, place.tokens, payload_of(place))
                self.why.pop(place.key, None)

    @precondition(lambda self: self.places)
    @rule(chance=SOME)
    def abort(self, chance):
        places = self.pick(self.places, chance)
        self.pool.abort(places)
        for place in places:
            self.places.remove(place)
            if place.key not in self.stored:
                self.why[place.key] = Miss.SAVE_FAILED

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=5), tokens=TOKENS)
    def acquire(self, keys, tokens):
        found = self.pool.acquire(keys, [tokens] * len(keys), deadline=None)
        for key, one in zip(keys, found, strict=True):
            stored = self.stored.get(key)
            if stored is None:
                assert one is self.why.get(key, Miss.ABSENT)
            elif stored.tokens < tokens:
                assert one is Miss.TOO_SHORT
            else:
                assert isinstance(one, Held)
                assert (one.key, one.tokens, one.nbytes) == (
                    key,
                    stored.tokens,
                    len(stored.payload),
                )
                self.held.append((one, stored.payload))

    @precondition(lambda self: self.held)
    @rule(chance=SOME)
    def release(self, chance):
        released = self.pick(self.held, chance)
        for one in released:
            self.held.remove(one)
        self.pool.release([held for held, _ in released])

    @rule(keys=st.lists(st.sampled_from(KEYS), max_size=3))
    def remove(self, keys):
        assert self.pool.remove(keys) == sum(key in self.stored for key in set(keys))
        for key in keys:
            self.stored.pop(key, None)
            self.why.pop(key, None)

    @rule()
    def clear(self):
        assert self.pool.clear() == len(self.stored)
        self.stored.clear()
        self.why.clear()

    def let_pinning_settle(self):
        """Wait for the other thread: the same steps must come to the same end each time."""
        pinning = self.pool._pinning
        end = soon()
        while True:
            with pinning.lock:
                if not pinning._under_way_nbytes and not pinning._next_nbytes():
                    return
            assert time.monotonic() < end
            time.sleep(0)

    def pick(self, members, chance):
        return chance.sample(members, chance.randint(1, len(members)))

    def full(self, keys, tokens):
        """The keys of a call that were stored with enough tokens."""
        return {
            key
            for key, at_least in zip(keys, tokens, strict=True)
            if key in self.stored and self.stored[key].tokens >= at_least
        }

    def note_evictions(self, spared):
        """Take over what the pool evicted, if it was allowed to."""
        held = {one.address for one, _ in self.held}
        for key, info in zip(list(self.stored), self.pool.lookup(list(self.stored)), strict=True):
            if info is None:
                assert key not in spared
                assert self.stored[key].address not in held
                del self.stored[key]
                self.why[key] = Miss.EVICTED
                self.evictions += 1

    @invariant()
    def lookups_agree(self):
        if not hasattr(self, "pool"):
            return
        expected = [
            EntryInfo(stored.tokens, len(stored.payload)) if stored else None
            for stored in map(self.stored.get, KEYS)
        ]
        assert self.pool.lookup(KEYS) == expected
        assert sorted(self.pool.keys()) == sorted(self.stored)

    @invariant()
    def what_is_held_or_reserved_keeps_its_bytes(self):
        if not hasattr(self, "pool"):
            return
        for held, payload in self.held:
            assert read(held) == payload
        for place in self.places:
            assert read(place) == payload_of(place)

    @invariant()
    def the_sums_are_exact(self):
        if not hasattr(self, "pool"):
            return
        stats = self.pool.stats()
        reserved = {place.address: aligned(place.nbytes) for place in self.places}
        held = {one.address: aligned(one.nbytes) for one, _ in self.held}
        stored = {one.address: aligned(len(one.payload)) for one in self.stored.values()}
        assert stats.reserved_nbytes == sum(reserved.values())
        assert stats.held_nbytes == sum(held.values())
        assert stats.used_nbytes == sum({**reserved, **held, **stored}.values())
        assert len(reserved.keys() | held.keys() | stored.keys()) == len(reserved) + len(
            held.keys() | stored.keys()
        )
        assert stats.used_nbytes <= stats.backed_nbytes <= stats.capacity_nbytes
        assert stats.largest_free_nbytes <= stats.backed_nbytes - stats.used_nbytes
        assert stats.entries == len(self.stored)
        assert stats.evictions == self.evictions


def payload_of(place):
    """Bytes that tell one reservation from another, also of the same key."""
    seed = f"{place.key} {place.tokens} {place.nbytes} {place.address}"
    return random.Random(seed).randbytes(place.nbytes)  # noqa: S311 - a pattern, not a secret


TestMemoryPoolAgreesWithDict = MemoryPoolAgreesWithDict.TestCase
TestMemoryPoolAgreesWithDict.settings = settings(
    max_examples=120, stateful_step_count=40, deadline=None, print_blob=True
)
