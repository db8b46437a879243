"""Saves and loads under way: what they may do is worked out beside them, and held against them.

A call is exact if its end can be told when it is submitted: its bytes are noted at once, since
calls that touch the same hash or block keep their order. Any other is open: what it did is looked
at when it has ended, and until then no other call touches what it touches. Calls of different NPUs
keep no order, so they never share a hash.
"""

import time
from collections import Counter

import numpy as np
from history_model import prefix

from ems import CcKvOption, CcResult, EmsErrorCode, EmsException

_PATIENCE = 60
_CLEAN = {0, 60_000}
"""Milliseconds of time-outs that do not pass."""


class Call:
    """One save or load."""

    def __init__(self, request, *, writes, timeout, faults=(), least=0):
        self.request, self.writes, self.timeout, self.least = request, writes, timeout, least
        self.codes = set()
        if timeout not in _CLEAN:
            self.codes.add(EmsErrorCode.EMS_IO_TIMEOUT)
        if any(isinstance(fault.failure, EmsException) for fault in faults):
            self.codes.add(EmsErrorCode.EMS_IO_ERROR)
        elif any(fault.failure for fault in faults):
            self.codes.add(EmsErrorCode.EMS_INTERNAL_ERROR)
        self.evicts = any(fault.evict for fault in faults)
        self.exact = self.dropped = self.local_only = False
        self.may_break = False
        """Whether a copy may fail meanwhile."""
        self.lost = False
        """Whether its NPU was lost before."""
        self.fails_alone = True
        """Whether it can fail for no other reason."""
        self.write_local = True
        self.alone = True
        """Whether no other save was under way at the same time."""
        self.expected = None
        self.future = self.end = None

    def __repr__(self):
        wanted = self.request
        return (
            f"<{'load' if self.writes else 'save'} {wanted.form} {wanted.arguments} "
            f"timeout={self.timeout} {'exact' if self.exact else 'open'} "
            f"expected={self.expected} end={self.end!r}>"
        )


def shares(one, other):
    """Whether the order of two calls matters."""
    both_load, both_save = one.writes and other.writes, not (one.writes or other.writes)
    mine, theirs = one.request, other.request
    if not both_load and not mine.keys.isdisjoint(theirs.keys):
        return True
    return not both_save and bool(np.isin(mine.bytes, theirs.bytes).any())


def holds(now, place, data):
    """Whether these positions of the memory hold the first of these bytes."""
    return now[place].tobytes() == data[: len(place)]


class Calls:
    """The calls of one life of `Ems`, in the order of submission."""

    def __init__(self, cc, memory, pool):
        self.cc, self.memory, self.pool = cc, memory, pool
        self.store = pool.store
        self.pending = []
        self.ends = Counter()
        self.lost = set()
        """The NPUs on which a copy has failed."""
        self._submitted = Counter()
        self._hashes = Counter()
        self._failed = Counter()
        self._dropped = False

    @property
    def saves(self):
        """Saves under way."""
        return [call for call in self.pending if not call.writes]

    def option(self, timeout, call=None):
        return CcKvOption(
            write_rcache=call is None or call.write_local,
            read_local_only=call is not None and call.local_only,
            timeout=timeout,
        )

    def start(self, call, way):
        """Submit a call: its future is read at once, later, or never."""
        if (rival := self.rival_of(call)) is not None:
            self.settle(rival)
        self.prepare(call)
        self.submit(call)
        if way == "dropped":
            call.future, call.dropped = None, True
            self._dropped = True
        elif way == "later":
            self.cc.is_ready(call.future)

    def prepare(self, call):
        """Note a call that is about to be submitted, and what will come of it."""
        if not call.writes:
            call.alone = not self.saves
            for other in self.pending:
                other.alone = False
        elif self.saves:
            call.alone = False
        call.lost = call.request.device in self.lost
        call.fails_alone = not call.codes
        if call.lost or call.may_break:
            call.codes.add(EmsErrorCode.EMS_INTERNAL_ERROR)
        self._predict(call)
        self._submitted[_name_of(call)] += 1
        self._hashes[_name_of(call)] += call.request.count
        self.pending.append(call)

    def submit(self, call):
        """Start a call that was prepared; from any thread."""
        call.started = time.monotonic()
        method = getattr(self.cc, f"async_{_name_of(call)}")
        call.future = method(**call.request.arguments, option=self.option(call.timeout, call))
        assert call.future

    def rival_of(self, call):
        """Return a call under way that has to be looked at before this one is submitted."""
        for other in reversed(self.pending):
            if not shares(call, other):
                continue
            apart = call.request.device != other.request.device
            exact = other.exact and not call.codes and self.pool.is_exact and not call.evicts
            if apart or not exact:
                return other
        return None

    def await_ends(self):
        """Wait for all calls; nothing is looked at yet."""
        for call in self.pending:
            self._wait(call)

    def settle(self, last=None):
        """Wait for all calls, or for those up to `last`, and hold them against the model."""
        while self.pending:
            call = self.pending[0]
            self._wait(call)
            self.pending.pop(0)
            self._judge(call)
            if call is last:
                break

    def settle_bytes(self, start, stop):
        """Wait until no call under way names any of these positions."""
        for call in reversed(self.pending):
            named = call.request.bytes
            if ((named >= start) & (named < stop)).any():
                self.settle(call)
                return

    def check_counters(self):
        """The library has counted what was asked for, once each."""
        if self.pending:
            return
        for name, calls in self._submitted.items():
            mine = self.cc.counters()[name]
            assert mine["calls"] == calls, f"{mine['calls']} {name}s are counted, not {calls}"
            assert mine["hashes"] == self._hashes[name] == sum(mine["hashes_by_fate"].values())
            if not self._dropped:
                assert mine["failed"] == self._failed[name]

    def _wait(self, call):
        if call.future is None:
            until = time.monotonic() + _PATIENCE
            while not self._all_counted():
                assert time.monotonic() < until, f"a dropped call does not end: {call}"
                time.sleep(0.0002)
            return
        try:
            call.end = self.cc.get_result(call.future)
        except EmsException as failure:
            call.end = failure
        # once and for all
        assert self.cc.is_ready(call.future)
        try:
            assert call.future.result() == call.end
        except EmsException as failure:
            assert failure is call.end  # noqa: PT017 - may succeed

    def _all_counted(self):
        counted = self.cc.counters()
        return all(
            counted.get(name, {"calls": 0})["calls"] == calls
            for name, calls in self._submitted.items()
        )

    def _predict(self, call):
        """Note what an exact call will have done."""
        wanted, store = call.request, self.store
        if call.lost or call.codes or call.evicts or not self.pool.is_exact or call.local_only:
            return
        if not call.writes:
            call.exact = True
            call.expected = prefix(self._saved(call), wanted.windows, wanted.tokens)
            self._note_saved(call, surely=True)
            return
        least, most = self._loadable(call)
        if least != most:
            return
        moves = []
        for part in wanted.parts:
            for at in range(least):
                if not part.tokens[at]:
                    continue
                versions = store.may(part.keys[at], part.tokens[at])
                data = {one[1][: part.nbytes(at)] for one in versions}
                if not data:
                    continue
                if len(data) > 1 or not store.must(part.keys[at], part.tokens[at]):
                    return
                moves.append((part.places[at], data.pop()))
        call.exact, call.expected = True, least
        for place, data in moves:
            self.memory.mirror[place] = np.frombuffer(data, np.uint8)

    def _saved(self, call):
        first = call.request.first
        return [[part.tokens[at] > 0 for at in first] for part in call.request.parts]

    def _loadable(self, call):
        """Return how many hashes must be found, and how many may."""
        wanted, store = call.request, self.store
        pairs = [list(zip(part.keys, part.tokens, strict=True)) for part in wanted.parts]
        most = [[bool(many and store.may(key, many)) for key, many in mine] for mine in pairs]
        least = [[bool(many and store.must(key, many)) for key, many in mine] for mine in pairs]
        if not call.writes:
            most = self._saved(call)
            least = [[mine[at] for at in wanted.first] for mine in least]
        bounds = [prefix(done, wanted.windows, wanted.tokens) for done in (least, most)]
        if call.evicts or call.local_only or (self.pool.evicts and not call.alone):
            bounds[0] = 0
        return bounds

    def _note_saved(self, call, *, surely):
        """Note what a save may have stored: surely all (True), or so many leading hashes."""
        wanted = call.request
        for part in wanted.parts:
            for at, key in enumerate(part.keys):
                if wanted.first[at] == at and part.tokens[at]:
                    data = self.memory.mirror[part.places[at]].tobytes()
                    certain = surely is True or (part.window is None and at < surely)
                    self.store.saved(key, part.tokens[at], data, surely=certain)

    def _judge(self, call):
        end = call.end
        self.ends["dropped" if end is None else type(end).__name__] += 1
        if isinstance(end, EmsException):
            self._failed[_name_of(call)] += 1
            assert end.status_code() in call.codes, f"{call}: {end!r}"
            if call.may_break:
                self.lost.add(call.request.device)
            if end.status_code() == EmsErrorCode.EMS_IO_TIMEOUT:
                early = call.started + call.timeout / 1e3 - time.monotonic()
                assert early <= 0, f"timed out {early} s too early: {call}"
        elif end is not None:
            assert end.total == call.request.count, f"{call}"
        if call.exact:
            wanted = CcResult(call.expected, call.request.count)
            assert call.dropped or end == wanted, f"{call} must end in {wanted}"
        elif call.lost:
            self._judge_lost(call)
        elif call.writes:
            self._judge_load(call)
        else:
            self._judge_save(call)

    def _judge_lost(self, call):
        """On an NPU that is lost nothing is copied; what needs no copy is answered as ever."""
        wanted, forgets = call.request, self.pool.evicts or call.evicts
        if call.writes:
            same = self._unchanged(self.memory.now(), wanted.bytes)
            assert same, f"{call}: written on an NPU that is lost"
            least, most = self._loadable(call)
            must, may = least > 0, most > 0
        else:
            least, most = self._loadable_when_saved(call)
            stored = [self._stored(call, there) for there in (self.store.must, self.store.may)]
            must, may = (not all(map(all, one)) for one in reversed(stored))
        if forgets:
            self.store.evict()
            least, must, may = 0, False, True
        if isinstance(call.end, CcResult):
            assert not must, f"{call} needs a copy"
            assert least <= call.end.success <= most, f"{call} must be {least} to {most}"
            assert not (call.writes and call.end.success), f"{call} needs a copy"
        elif call.end is not None and call.fails_alone:
            assert may, f"{call} needs no copy"

    def _loadable_when_saved(self, call):
        """Return how many hashes of a save must be done, and may, if only what is there counts."""
        wanted, served = call.request, self._saved(call)
        for there in (self.store.must, self.store.may):
            stored = [
                [one and two for one, two in zip(*mine, strict=True)]
                for mine in zip(self._stored(call, there), served, strict=True)
            ]
            yield prefix(stored, wanted.windows, wanted.tokens)

    def _stored(self, call, there):
        """Return, by part and hash, whether nothing of a save has to be copied."""
        first, parts = call.request.first, call.request.parts
        return [
            [not part.tokens[at] or bool(there(part.keys[at], part.tokens[at])) for at in first]
            for part in parts
        ]

    def _judge_save(self, call):
        least, most = self._loadable(call)
        surely = 0
        if isinstance(call.end, CcResult):
            least = max(least, call.least if call.alone else 0)
            assert least <= call.end.success <= most, f"{call} must be {least} to {most}"
            if not self.pool.evicts or (call.alone and self.pool.in_process):
                surely = call.end.success
        if self.pool.evicts or call.evicts:
            self.store.evict()
        self._note_saved(call, surely=0 if call.evicts else surely)

    def _judge_load(self, call):
        now = self.memory.now()
        wanted = call.request
        if isinstance(call.end, CcResult):
            least, most = self._loadable(call)
            least = max(least, call.least if call.alone else 0)
            assert least <= call.end.success <= most, f"{call} must be {least} to {most}"
            success = call.end.success
            for part in wanted.parts:
                for at in range(wanted.count):
                    if part.tokens[at]:
                        self._judge_entry(call, part, at, now, loaded=at < success)
            self._note_miss(call, success)
        elif not call.codes:  # dropped, and nothing can have failed
            for part in wanted.parts:
                for at in range(wanted.count):
                    if part.tokens[at]:
                        same = self._unchanged(now, part.places[at])
                        assert same or self._matching(now, part, at), f"{call}: wrong bytes at {at}"
        self.memory.mirror[wanted.bytes] = now[wanted.bytes]

    def _judge_entry(self, call, part, at, now, *, loaded):
        place, key = part.places[at], part.keys[at]
        if not loaded:
            assert self._unchanged(now, place), f"{call}: {at} has been written"
            return
        matching = self._matching(now, part, at)
        if part.window is not None and not matching:
            assert self._unchanged(now, place), f"{call}: wrong bytes at {at}"
            return
        assert matching, f"{call}: wrong bytes at {at}"
        if part.window is None and call.alone and not call.evicts:
            self.store.seen(key, matching)

    def _note_miss(self, call, success):
        [part, *others] = call.request.parts
        known = call.alone and not (call.local_only or call.evicts or others or part.window)
        if known and success < call.request.count and not self.store.keeps_all:
            self.store.missed(part.keys[success], part.tokens[success])

    def _unchanged(self, now, place):
        return np.array_equal(now[place], self.memory.mirror[place])

    def _matching(self, now, part, at):
        versions = self.store.may(part.keys[at], part.tokens[at])
        return [one for one in versions if holds(now, part.places[at], one[1])]


def _name_of(call):
    return "load" if call.writes else "save"
