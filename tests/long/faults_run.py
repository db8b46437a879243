"""Every step of a small request fails once: each way of saying it, each way of waiting, each pool.

A request is made once to count its steps: copies, launches, calls of the runtime and of the pool.
Then it is made again for every step, with exactly that one failing. Each time: the request ends in
one way, a failure has the code that fits, what the pool shows is whole, a load touches its blocks
alone, nothing moves afterwards, no place and no hold is lost, and no thread or memory stays.
"""

import ctypes
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from unittest import mock

_TESTS = Path(__file__).parent.parent
sys.path += [str(_TESTS), str(_TESTS / "sdk")]

from bounded import within  # noqa: E402 - the paths must be known
from preamble import BS, OPT, boot, cache, planes, sl  # noqa: E402

import ems.client  # noqa: E402
from ems import (  # noqa: E402
    CcFuture,
    CcKvOption,
    CcResult,
    Ems,
    EmsErrorCode,
    EmsException,
    KvBufferWrapper,
    StoreLayerGroupDesc,
)
from ems.common.exception import PoolUnavailable  # noqa: E402
from ems.device.acl import Acl, AclError  # noqa: E402
from ems.pool.base import Held  # noqa: E402
from ems.pool.faulty import Fault, FaultyPool  # noqa: E402
from ems.pool.registry import open_pool  # noqa: E402
from ems.pool.tiered import TieredPool  # noqa: E402
from ems.simulator.control import counter, knobs  # noqa: E402
from ems.transfer import slices  # noqa: E402

UNIT, AMOUNT = "rounds of every point", 10

FORMS = ("slots", "tokens", "chunks", "buffers")
CALLS = ("save", "load", "async_save", "async_load")
POOLS = ("memory", "lmdb", "tiered")
BLOCKS = (1, 2, 3)
INTO = (9, 10, 11)
SHORT = CcKvOption(timeout=60)
DELAY_SECONDS = 0.15
"""Longer than the time-out of a request that hangs."""
_RUNTIME = ("record_event", "event_complete", "synchronize_stream")
_POOL = ("lookup", "reserve", "commit", "abort", "acquire", "release")
_FITS = {
    "runtime": {EmsErrorCode.EMS_INTERNAL_ERROR},
    "pool": {EmsErrorCode.EMS_IO_ERROR},
    "hang": {EmsErrorCode.EMS_IO_TIMEOUT},
}


class Probed(FaultyPool):
    """Counts; fails to say so after it has given memory back, as an engine must."""

    @property
    def calls(self):
        return Counter(self._calls)

    def arm(self, *faults):
        with self._lock:
            self._calls.clear()
            self.faults = list(faults)

    def abort(self, places):
        self.inner.abort(places)
        self._before("abort")

    def release(self, held):
        self.inner.release(held)
        self._before("release")


class Runtime:
    """Stands before the runtime's calls: counts them, and fails one."""

    def __init__(self, stack):
        self.arm()
        for name in _RUNTIME:
            stack.enter_context(mock.patch.object(Acl, name, self.before(name, getattr(Acl, name))))

    def arm(self, name=None, nth=0):
        self.calls, self.due = Counter(), (name, nth)

    def before(self, name, call):
        def probed(acl, *arguments):
            self.calls[name] += 1
            if self.due == (name, self.calls[name]):
                raise AclError(name, 507052)
            return call(acl, *arguments)

        return probed


class Place:
    """A pool, a cache and a request on it."""

    def __init__(self, form, call, pool, home, stack):
        self.form, self.call = form, call
        self.saves = call.endswith("save")
        self.runtime = Runtime(stack)
        stack.enter_context(mock.patch.object(slices, "SLICE_NBYTES", 1))
        shared = f"lmdb://{home}/pool?capacity=4MiB&staging=1MiB"
        local = "memory://?capacity=1MiB&segment=1MiB"

        def opened(url, memory):
            if pool == "memory":
                self.pool = self.whole = Probed(open_pool(local, memory))
            else:
                self.pool = self.whole = Probed(open_pool(shared, memory))
            if pool == "tiered":
                self.whole = TieredPool(open_pool(local, memory), self.pool)
            return self.whole

        stack.enter_context(mock.patch.object(ems.client, "open_pool", opened))
        self.cc = boot()
        stack.callback(Ems.shutdown)
        self.kv = cache()
        groups = [StoreLayerGroupDesc(BS, [0]), StoreLayerGroupDesc(BS, [1])]
        self.cc.register_kvcache(self.kv, groups if form == "chunks" else None)
        self.whole.clear()
        if not self.saves:
            assert self.request("save", BLOCKS, OPT) == CcResult(3, 3)
            self.golden = self.stored()

    def request(self, name, blocks, option):
        call = getattr(self.cc, name)
        if self.form == "slots":
            made = call(sl(*blocks), [31, 32, 33], [BS] * 3, option)
        elif self.form == "tokens":
            made = call(
                slot_mapping=sl(*blocks),
                token_ids=list(range(3 * BS)),
                mask=[1] * 3 * BS,
                option=option,
            )
        elif self.form == "chunks":
            descs = [[(block * BS, BS) for block in blocks] for _ in range(2)]
            made = call(hashes=[31, 32, 33], chunk_descs=descs, option=option)
        else:
            ends = [[plane[block] for plane in planes(self.kv)] for block in blocks]
            values = [[KvBufferWrapper(one.data_ptr(), 128) for one in row] for row in ends]
            made = call(option, ["a", "b", "c"], values)
        if isinstance(made, CcFuture):
            try:
                first = made.result()
            except EmsException as failure:
                try:
                    made.result()
                except EmsException as again:
                    assert again.status_code() == failure.status_code()  # noqa: PT017 - not pytest's
                else:
                    raise AssertionError("a future ended in two ways") from failure
                raise
            assert made.result() == first
            return first
        return made

    def memory(self):
        return [plane.cpu().clone() for plane in planes(self.kv)]

    def stored(self):
        """Return what the pool shows, byte for byte."""
        keys = sorted(self.whole.keys())
        seen = {}
        for key in keys:
            [held] = self.whole.acquire([key], [1], deadline=None)
            assert isinstance(held, Held), (key, held)
            seen[key] = ctypes.string_at(held.address, held.nbytes)
            self.whole.release([held])
        return seen

    def trial(self, option):
        """Make the request; return its result or its failure."""
        try:
            return within(self.request, self.call, BLOCKS if self.saves else INTO, option)
        except EmsException as failure:
            return failure

    def check_memory(self, before, ended):
        after = self.memory()
        time.sleep(0.005)
        for old, new, later in zip(before, after, self.memory(), strict=True):
            assert bool((new == later).all()), "a byte moved after the end"
            named = () if self.saves else INTO
            for block in range(len(old)):
                if block not in named:
                    assert bool((new[block] == old[block]).all()), f"block {block} was touched"
        if not self.saves and isinstance(ended, CcResult):
            for at in range(ended.success):
                for new in after:
                    assert bool((new[INTO[at]] == new[BLOCKS[at]]).all()), "loaded, and wrong"

    def check_pool(self, ended, golden):
        stats = self.whole.stats()
        assert (stats.reserved_nbytes, stats.held_nbytes) == (0, 0), stats
        seen = self.stored()
        for key, content in seen.items():
            assert content == golden[key], f"{key} is not what was saved"
        if self.saves and isinstance(ended, CcResult):
            whole = len(golden) // 3 * ended.success
            assert len(seen) >= whole, f"{ended}, but only {len(seen)} entries"


@contextmanager
def placed(form, call, pool):
    """Give a place for one request; afterwards nothing of it is left."""
    lost = []
    pinned, threads = counter("pinned_nbytes"), set(threading.enumerate())
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "unraisablehook", lost.append))
        stack.enter_context(mock.patch.object(threading, "excepthook", lost.append))
        home = tempfile.mkdtemp(prefix="ems-faults-", dir="/dev/shm")
        stack.callback(shutil.rmtree, home)
        yield Place(form, call, pool, home, stack)
    assert not lost, lost
    assert counter("pinned_nbytes") == pinned, "pinned memory is lost"
    left = [one for one in threading.enumerate() if one not in threads and not one.daemon]
    assert not left, left


def points_of(form, call, pool):
    """Return every point at which the request can fail, and what it stores where none does."""
    with placed(form, call, pool) as place:
        before = place.memory()
        place.runtime.arm()
        place.pool.arm()
        copies, launches = counter("copies"), counter("launches")
        ended = place.trial(OPT)
        copies, launches = counter("copies") - copies, counter("launches") - launches
        asked, called = Counter(place.runtime.calls), place.pool.calls
        assert ended == CcResult(3, 3), ended
        place.check_memory(before, ended)
        golden = place.stored()
    assert copies
    assert asked["synchronize_stream"]
    points = [("copy", nth, "runtime") for nth in range(1, copies + 1)]
    # only launches from now on count; the request makes them on its own streams
    points += [("launch", nth, "runtime") for nth in range(1, launches + 1)]
    points += [("copies hang", 0, "hang")]
    for name in _RUNTIME:
        # how often is asked depends on the moment: the first few are enough
        most = min(asked[name], 3) if name == "event_complete" else asked[name]
        points += [(name, nth, "runtime") for nth in range(1, most + 1)]
    for name in _POOL:
        for kind in ("pool", "hang"):
            points += [(name, nth, kind) for nth in range(1, called[name] + 1)]
    return points, golden


def fail_at(form, call, pool, point, golden):
    """Make the request with one point failing; return how it ended."""
    name, nth, kind = point
    with placed(form, call, pool) as place:
        place.runtime.arm(*((name, nth) if name in _RUNTIME else ()))
        broken = {}
        if name in _POOL:
            hangs = kind == "hang"
            away = None if hangs else PoolUnavailable("the pool is away")
            place.pool.arm(Fault(name, nth, DELAY_SECONDS if hangs else 0.0, away))
        elif name in {"copy", "launch"}:
            broken = {f"FAIL_{name.upper()}": str(nth)}
        elif kind == "hang":
            broken = {"DELAY": f"copy_{'d2h' if place.saves else 'h2d'}=100000"}
        else:
            place.pool.arm()
        before = place.memory()
        with knobs(**broken):
            ended = place.trial(SHORT if kind == "hang" else OPT)
        place.runtime.arm()
        place.pool.arm()
        place.check_memory(before, ended)
        place.check_pool(ended, golden)
        code = ended.status_code() if isinstance(ended, EmsException) else None
        assert code is None or code in _FITS[kind], f"{code}: {ended}"
        if kind == "runtime" and name in {"copy", "launch", *_RUNTIME[:1], _RUNTIME[2]}:
            assert code is not None, f"a failed {name} was reported as {ended}"
        _check_later(place, code, golden)
        return "ended well" if code is None else code.name


def _check_later(place, code, golden):
    """A later request works, or says that the device is lost."""
    again = place.trial(OPT)
    if isinstance(again, EmsException):
        failure = again
        assert code is EmsErrorCode.EMS_INTERNAL_ERROR, f"no later request works: {failure}"
        assert failure.status_code() is code
        assert not within(Ems.check_health), "a lost device is called healthy"
    else:
        assert again == CcResult(3, 3), again
        assert place.stored() == golden


def run(amount, seed, *, pools=POOLS, forms=FORMS, calls=CALLS):
    """Fail at every point `amount` times; return how often, and how the requests ended."""
    ends, points = Counter(), 0
    for turn in range(amount):
        for form, call, pool in product(forms, calls, pools):
            found, golden = points_of(form, call, pool)
            points += len(found) if not turn else 0
            for point in found:
                try:
                    ends[fail_at(form, call, pool, point, golden)] += 1
                except Exception as error:
                    raise AssertionError(f"{call} of {form} on {pool}, {point}") from error
    told = ", ".join(f"{count:,} {name}" for name, count in ends.most_common())
    return f"{points:,} points, {ends.total():,} failures: {told}"
