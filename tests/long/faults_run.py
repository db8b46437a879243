"""Every step of a small request fails once: each way of saying it, each way of waiting, each pool.

A request is made once to count its steps: copies, launches, streams, events, calls of the pool, and
what the pool's engine puts and gets. Then it is made again for every step, with exactly that one
failing or hanging. Each time: the request ends in one way and in time, a failure has the code that
fits, it is counted as it ended, what the pool shows is whole, a load touches its blocks alone,
nothing moves afterwards, no place and no hold is lost, no thread, stream or memory stays, and a
later request works, or the NPU is lost and stays so for one reason.
"""

import sys
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import product
from pathlib import Path
from unittest import mock

import lmdb
import torch

_TESTS = Path(__file__).parent.parent
sys.path += [str(Path(__file__).parent), str(_TESTS), str(_TESTS / "sdk")]

from bounded import within  # noqa: E402 - the paths must be known
from contracts.mooncake_cluster import WHY_NOT, cluster, eventually  # noqa: E402
from faults_place import (  # noqa: E402
    DELAY_SECONDS,
    POOL,
    SHORT,
    Kept,
    placed,
)
from preamble import OPT  # noqa: E402

from ems import CcResult, Ems, EmsErrorCode, EmsException  # noqa: E402
from ems.common.exception import PoolUnavailable  # noqa: E402
from ems.device import ascend  # noqa: E402
from ems.device.acl import Acl  # noqa: E402
from ems.pool.faulty import Fault  # noqa: E402
from ems.pool.registry import open_pool  # noqa: E402
from ems.simulator.control import counter, knobs  # noqa: E402
from ems.transfer.pipeline import Pipeline  # noqa: E402

UNIT, AMOUNT = "rounds of every point", 3

FORMS = ("slots", "tokens", "chunks", "buffers")
CALLS = ("save", "load", "async_save", "async_load")
LOCAL_POOLS = ("memory", "lmdb", "tiered")
POOLS = LOCAL_POOLS if WHY_NOT else (*LOCAL_POOLS, "mooncake")
_LOSES = ("record_event", "event_complete", "synchronize_stream")
_CREATES = ("create_stream", "create_event")
_MAY_PASS = {
    "runtime": {"event_complete"},
    "pool": {"lookup", "abort", "release"},
    "hang": {"create_stream", "lookup", "commit", "abort", "release"},
}
"""What may go wrong without a request's failing for it."""
_FITS = {
    "runtime": {EmsErrorCode.EMS_INTERNAL_ERROR},
    "pool": {EmsErrorCode.EMS_IO_ERROR},
    "hang": {EmsErrorCode.EMS_IO_TIMEOUT},
}
_FOREVER_SECONDS, _PATIENCE_SECONDS = 0.6, 0.1
"""How long a copy takes that is taken for one that never ends, and after how long it is."""
_PINNING_SECONDS = 4.0
_WELL = CcResult(3, 3)
_PINS = {"memory": 4, "tiered": 3}
"""How many pieces of pinned memory a pool takes, where it is more than one."""
OWN_NBYTES, RPC_FAILED, _GONE = 0, None, set()
if not WHY_NOT:
    from ems.pool.mooncake.codes import NOT_FOUND, RPC_FAILED, TRANSFER_FAILED
    from ems.pool.mooncake.connection import OWN_NBYTES

    _GONE = {NOT_FOUND, TRANSFER_FAILED}


class Case:
    """A request over a pool, and all that can go wrong with it.

    `kept` is an engine to use instead of one of the request's own, `url` that of a cluster.
    """

    def __init__(self, form, call, pool, kept=None, url=None):
        self.form, self.call, self.pool = form, call, pool
        self._kept, self._url = kept, url
        self._points = self._count()

    def ways(self, *, first):
        """Return the names of all that can go wrong, each with a function that lets it."""
        found = [(point, partial(self._fail_at, *point)) for point in self._points]
        if first and self._kept is None:  # what still moves keeps its memory
            found.append(("never ends", self._never_ends))
        if self.call == "save":
            for nth, lasting in product(range(1, _PINS.get(self.pool, 1) + 1), (False, True)):
                way = partial(self._refuse_pinning, nth, lasting=lasting)
                found.append((("pinning", nth, lasting), way))
        if self.call == "save" and self.pool == "memory":
            found.append(("pinning hangs", self._hang_pinning))
        return found

    def _placed(self, **settings):
        return placed(self.form, self.call, self.pool, kept=self._kept, **settings)

    def _count(self):
        """Return every point at which the request can fail; note what it stores otherwise."""
        with self._placed() as place:
            before = place.memory()
            place.arm()
            copies, launches = counter("copies"), counter("launches")
            ended = place.trial(OPT)
            copies, launches = counter("copies") - copies, counter("launches") - launches
            asked, called = Counter(place.runtime.calls), place.pool.calls
            used = Counter(place.engine.calls) if place.engine else Counter()
            assert ended == _WELL, ended
            place.check_memory(before, ended)
            self._golden = place.stored()
        assert copies
        assert asked["synchronize_stream"]
        points = [("copy", nth, "runtime") for nth in range(1, copies + 1)]
        # only launches from now on count; the request makes them on its own streams
        points += [("launch", nth, "runtime") for nth in range(1, launches + 1)]
        points += [("span", nth, "runtime") for nth in range(1, self._count_spans() + 1)]
        points += [("caller", 1, "runtime"), ("caller", 0, "hang"), ("copies", 0, "hang")]
        for name in ("copy_batch", "create_stream"):
            points += [(name, nth, "hang") for nth in range(1, asked[name] + 1)]
        for name in (*_LOSES, *_CREATES):
            # how often is asked depends on the moment: the first few are enough
            most = min(asked[name], 3) if name == "event_complete" else asked[name]
            points += [(name, nth, "runtime") for nth in range(1, most + 1)]
        for name in POOL:
            for kind in ("pool", "hang"):
                points += [(name, nth, kind) for nth in range(1, called[name] + 1)]
        if place.engine:
            for name, ways in place.engine.kinds.items():
                points += [(name, nth, way) for nth in range(1, used[name] + 1) for way in ways]
        return points

    def _count_spans(self):
        """Return how many launches the request makes on a runtime that copies span by span."""
        with self._placed() as place, _one_by_one():
            launches = counter("launches")
            assert place.trial(OPT) == _WELL
            return counter("launches") - launches

    def _fail_at(self, name, nth, kind):
        """Make the request with one point failing; return how it ended."""
        streams, hangs = counter("streams"), kind == "hang"
        with self._placed() as place:
            place.arm()
            before = place.memory()
            refused = (name, kind) == ("caller", "runtime")  # before it has begun
            late = DELAY_SECONDS if hangs else 0.0
            with _broken(place, name, nth, kind):
                ended = place.trial(SHORT if hangs else OPT, hangs=late, calls=1 - refused)
            met = not place.engine or place.engine.met
            place.arm()
            place.check_memory(before, ended)
            place.check_pool(ended, self._golden)
            code = ended.status_code() if isinstance(ended, EmsException) else None
            if kind not in _FITS:
                _check_engine(name, kind if met else None, ended)
            else:
                assert code is None or code in _FITS[kind], f"{code}: {ended}"
                assert code is not None or name in _MAY_PASS[kind], (
                    f"{name} was reported as {ended}"
                )
            lost = kind == "runtime" and name not in _CREATES
            _check_later(place, ended, self._golden, lost=lost)
        left = counter("streams") - streams
        assert not left, f"{left} streams are left"
        return "ended well" if code is None else code.name

    def _never_ends(self):
        """Let copies not end: the NPU is lost, and their memory is never used again."""
        patience = {"drain_seconds": _PATIENCE_SECONDS}
        with (
            mock.patch.dict(Pipeline.__init__.__kwdefaults__, patience),
            self._placed(gives_back=False) as place,
        ):
            place.arm()
            before = place.memory()
            with knobs(DELAY=f"{_copies(place)}={_FOREVER_SECONDS * 1e6:.0f}"):
                ended = place.trial(SHORT, hangs=_PATIENCE_SECONDS)
                assert isinstance(ended, EmsException), ended
                assert ended.status_code() is EmsErrorCode.EMS_INTERNAL_ERROR, ended
                time.sleep(2 * _FOREVER_SECONDS)  # until they have ended all the same
            place.check_memory(before, ended)
            stats = place.whole.stats()
            assert stats.reserved_nbytes + stats.held_nbytes, "what still moved was given back"
            place.check_entries(self._golden)
            _check_later(place, ended, self._golden, lost=True)
        return "lost for good"

    def _refuse_pinning(self, nth, *, lasting):
        """Let the host refuse pinned memory, once or from then on."""
        pinned = counter("pinned_nbytes")
        settings = {"start": False, "segments_of_entries": True, "url": self._url}
        with placed(self.form, self.call, self.pool, **settings) as place:
            place.runtime.arm("malloc_host", nth, lasting=lasting)
            failure = _failure_of(place.start)
            if failure is not None:
                assert nth == 1 or self.pool == "tiered", failure
                assert failure.status_code() is EmsErrorCode.EMS_RECOVERD_ERROR, failure
                assert Ems.get_cc() is None
                assert eventually(lambda: counter("pinned_nbytes") == pinned), "it keeps memory"
                place.runtime.arm()
                place.start()
            ended = place.trial(OPT)
            assert isinstance(ended, CcResult), ended
            if lasting and nth > 1 and self.pool == "memory" and self.form != "chunks":
                assert ended == CcResult(min(3, nth - 1), 3), f"{ended} with {nth - 1} segments"
            place.check_pool(ended, self._golden)
            place.arm()
            if self.pool == "memory":  # it asks the host again by itself, and has a piece in hand
                assert eventually(lambda: place.whole.stats().largest_free_nbytes), "it pins none"
            _check_later(place, ended, self._golden, lost=False)
        return "pinning refused"

    def _hang_pinning(self):
        """Let the host take its time to pin; a request waits for its deadline, and no longer."""
        with self._placed(start=False, segments_of_entries=True) as place:
            place.runtime.arm("malloc_host", 2, seconds=_PINNING_SECONDS)
            place.start()
            began = time.monotonic()
            ended = place.trial(SHORT)
            assert time.monotonic() - began < _PINNING_SECONDS / 2, "it has waited for the host"
            assert isinstance(ended, EmsException), ended
            assert ended.status_code() is EmsErrorCode.EMS_IO_TIMEOUT, ended
            place.check_pool(ended, self._golden)
            assert eventually(lambda: place.whole.stats().largest_free_nbytes), "it pins none"
            place.arm()
            _check_later(place, ended, self._golden, lost=False)
        return "pinning hung"


def _failure_of(call):
    try:
        within(call)
    except EmsException as failure:
        return failure
    return None


def _one_by_one():
    return mock.patch.object(Acl, "has_batched_copy", new=False)


@contextmanager
def _broken(place, name, nth, kind):
    """Have a point fail, or hang, for the length of a block."""
    hangs = kind == "hang"
    with ExitStack() as stack:
        if name in {"copy", "launch"}:
            stack.enter_context(knobs(**{f"FAIL_{name.upper()}": str(nth)}))
        elif name == "span":  # while those before it are still on their way
            stack.enter_context(_one_by_one())
            stack.enter_context(knobs(FAIL_LAUNCH=str(nth), DELAY=f"{_copies(place)}=2000"))
        elif name == "copies":
            stack.enter_context(knobs(DELAY=f"{_copies(place)}=100000"))
        elif name == "caller" and hangs:
            busy = mock.patch.object(ascend.StreamWork, "finished", return_value=False)
            stack.enter_context(busy)
        elif name == "caller":
            refused = mock.patch.object(torch.npu.Event, "record", side_effect=RuntimeError("no"))
            stack.enter_context(refused)
        elif name in POOL:
            away = None if hangs else PoolUnavailable("the pool is away")
            place.pool.arm(Fault(name, nth, DELAY_SECONDS if hangs else 0.0, away))
        elif kind in _FITS and name in {*_LOSES, *_CREATES, "copy_batch"}:
            place.runtime.arm(name, nth, seconds=DELAY_SECONDS if hangs else 0.0)
        else:
            place.engine.arm(name, nth, kind)
        yield


def _copies(place):
    return "copy_d2h" if place.saves else "copy_h2d"


def _check_engine(name, way, ended):
    """An engine that could not put or get says so, tries again, or misses; each in its place."""
    if way in {lmdb.Error, PoolUnavailable, RPC_FAILED or lmdb.Error}:
        assert isinstance(ended, EmsException), f"a failed {name} was reported as {ended}"
        assert ended.status_code() is EmsErrorCode.EMS_IO_ERROR, ended
    elif name == "get" and way in _GONE:  # the first of what is read at once
        assert ended == CcResult(0, 3), ended
    else:  # also None: how often it asks depends on the moment, and it did not come to that
        assert ended == _WELL, ended


def _check_later(place, ended, golden, *, lost):
    """A later request works, or says that the NPU is lost, and why; the reason stays."""
    if lost and isinstance(ended, EmsException):
        told = [place.trial(OPT) for _ in range(2)]
        for failure in told:
            assert isinstance(failure, EmsException), f"{failure} on an NPU that is lost"
            assert failure.status_code() is EmsErrorCode.EMS_INTERNAL_ERROR, failure
        assert str(told[0]) == str(told[1]), "it was lost for more than one reason"
        assert not Ems.check_health(), "a lost device is called healthy"
        return
    if place.is_shared:  # a node that failed just now is not asked for a while
        assert eventually(lambda: place.trial(OPT) == _WELL), "no later request works"
        assert eventually(Ems.check_health), "it does not become healthy again"
    else:
        again = place.trial(OPT)
        assert again == _WELL, f"the next request ends in {again}"
        assert Ems.check_health(), "it works, and is called ill"
    assert place.stored() == golden


def run(amount, seed, *, pools=POOLS, forms=FORMS, calls=CALLS, share=1):  # noqa: PLR0913
    """Fail at every point `amount` times; return how often, and how the requests ended.

    Of `share` points one is taken; which of them, the seed says.
    """
    ends, points = Counter(), 0
    with ExitStack() as stack:
        trial = stack.enter_context(cluster(lease_seconds=0.5)) if "mooncake" in pools else None
        url = trial and f"{trial.url}&staging=1MiB"
        for turn, pool in product(range(amount), pools):
            with _engine(url if pool == "mooncake" else None) as kept:
                for form, call in product(forms, calls):
                    case = Case(form, call, pool, kept, url if kept else None)
                    found = case.ways(first=not turn)[(seed + turn) % share :: share]
                    points += len(found) if not turn else 0
                    for point, fail in found:
                        try:
                            ends[fail()] += 1
                        except Exception as error:
                            what = f"{call} of {form} on {pool}, {point}, seed {seed}"
                            raise AssertionError(what) from error
    told = ", ".join(f"{count:,} {name}" for name, count in ends.most_common())
    return f"{points:,} points, {ends.total():,} failures: {told}"


@contextmanager
def _engine(url):
    """Keep one engine of a cluster for the block; None without one."""
    if url is None:
        yield None
        return
    pinned = counter("pinned_nbytes")
    engine = open_pool(url, ascend.PinnedMemory(0))
    try:
        assert eventually(lambda: _failure_of(partial(engine.check_health, deadline=None)) is None)
        yield Kept(engine)
        lent = engine._connection.staging
        assert eventually(lambda: lent.lent_nbytes == OWN_NBYTES), "staging memory is lost"
    finally:
        engine.close()
    assert counter("pinned_nbytes") == pinned, "pinned memory is lost"
