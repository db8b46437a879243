"""One request in a place of its own: a pool, a cache, and all below them that can fail."""

import ctypes
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager
from unittest import mock

from bounded import within
from contracts.mooncake_cluster import eventually
from faults_engines import probe_lmdb, probe_mooncake
from preamble import BS, OPT, boot, cache, planes, sl

import ems.client
from ems import (
    CcFuture,
    CcKvOption,
    CcResult,
    Ems,
    EmsException,
    KvBufferWrapper,
    StoreLayerGroupDesc,
)
from ems.device.acl import Acl, AclError
from ems.pool.base import Held
from ems.pool.faulty import FaultyPool
from ems.pool.memory import MemoryPool
from ems.pool.registry import open_pool
from ems.pool.tiered import TieredPool
from ems.pool.wrapper import PoolWrapper
from ems.simulator.control import counter, set_fault, setting
from ems.transfer import slices

BLOCKS = (1, 2, 3)
INTO = (9, 10, 11)
ENTRY_NBYTES = 512
SHORT = CcKvOption(timeout=60)
DELAY_SECONDS = 0.15
"""Longer than the time-out of a request that hangs."""
LATE_SECONDS = 10.0
"""How late a request may be seen to end, beyond its time-out and what hangs; the host is busy."""
RUNTIME = (
    "record_event",
    "event_complete",
    "synchronize_stream",
    "create_stream",
    "create_event",
    "copy_batch",
    "malloc_host",
)
POOL = ("lookup", "reserve", "commit", "abort", "acquire", "release")
_RETRY_SECONDS = 0.05
_AGAIN_SECONDS = 10.0


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
    """Stands before the runtime's calls: counts them; one fails or is late, or its stream is."""

    def __init__(self, stack):
        self.arm()
        for name in RUNTIME:
            stack.enter_context(
                mock.patch.object(Acl, name, self._before(name, getattr(Acl, name)))
            )
        stack.callback(set_fault, "DELAY", setting("DELAY"))

    def arm(self, name=None, nth=0, *, seconds=0.0, lasting=False):
        """Fail at the nth call, and at all later ones where `lasting`; or be late by `seconds`."""
        self.calls, self._due = Counter(), (name, nth, seconds, lasting)

    def _before(self, name, call):
        def probed(acl, *arguments):
            self.calls[name] += 1
            due, nth, seconds, lasting = self._due
            if due == name and (self.calls[name] == nth or (lasting and self.calls[name] > nth)):
                if not seconds:
                    raise AclError(name, 507052)
                if name != "create_stream":
                    time.sleep(seconds)
                    return call(acl, *arguments)
                return _slowed(call(acl, *arguments), seconds)
            return call(acl, *arguments)

        return probed


def _slowed(stream, seconds):
    """Return the stream, on which everything takes so long from now on."""
    number = ctypes.c_int32()
    runtime = ctypes.CDLL("libascendcl.so")
    assert not runtime.aclrtStreamGetId(ctypes.c_void_p(stream), ctypes.byref(number))
    set_fault("DELAY", f"stream:{number.value}={seconds * 1e6:.0f}")
    return stream


class Kept(PoolWrapper):
    """An engine that serves one place after the other: leaving a cluster takes a second."""

    def close(self):
        """Stay; whoever made the engine closes it."""


class Place:
    """A pool, a cache and a request on it.

    `kept` is an engine to use instead of one of its own, `url` that of a pool to use instead. With
    `segments_of_entries` memory of this process is pinned a piece at a time, and there are four.
    """

    def __init__(  # noqa: PLR0913
        self, form, call, pool, home, stack, *, kept=None, url=None, segments_of_entries=False
    ):
        self.form, self.call = form, call
        self.saves = call.endswith("save")
        self.runtime = Runtime(stack)
        self.engine = {"lmdb": probe_lmdb, "tiered": probe_lmdb, "mooncake": probe_mooncake}.get(
            pool, lambda _: None
        )(stack)
        """What is called to put and to get, where the pool is not memory of this process."""
        self._kept, self._kind, self._small = kept, pool, segments_of_entries
        self._shared = url or f"lmdb://{home}/pool?capacity=4MiB&staging=1MiB"
        stack.enter_context(mock.patch.object(slices, "SLICE_NBYTES", 1))
        stack.enter_context(mock.patch.object(ems.client, "open_pool", self._opened))
        stack.callback(Ems.shutdown)
        self.kv = cache()

    @property
    def is_shared(self):
        """Whether the pool is a cluster, whose nodes may fail by themselves."""
        return self._kind == "mooncake"

    def start(self):
        """Initialise, register; store what is to be loaded."""
        self.cc = boot()
        groups = [StoreLayerGroupDesc(BS, [0]), StoreLayerGroupDesc(BS, [1])]
        self.cc.register_kvcache(self.kv, groups if self.form == "chunks" else None)
        self.whole.clear()
        if not self.saves:
            assert self.request("save", BLOCKS, OPT) == CcResult(3, 3)
            self.golden = self.stored()

    def _opened(self, _, memory):
        if self._kept:
            self.pool = self.whole = Probed(self._kept)
        elif self._kind == "memory":
            self.pool = self.whole = Probed(self._memory(memory))
        else:
            self.pool = self.whole = Probed(open_pool(self._shared, memory))
        if self._kind == "tiered":
            self.whole = TieredPool(self._memory(memory), self.pool)
        return self.whole

    def _memory(self, memory):
        segment = ENTRY_NBYTES if self._small else 1 << 20
        return MemoryPool(
            memory,
            capacity_nbytes=4 * segment if self._small else segment,
            segment_nbytes=segment,
            retry_seconds=_RETRY_SECONDS,
        )

    def arm(self):
        """Nothing fails from now on, and counts start anew."""
        self.runtime.arm()
        self.pool.arm()
        if self.engine:
            self.engine.arm()

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
        return _end_of(made) if isinstance(made, CcFuture) else made

    def memory(self):
        return [plane.cpu().clone() for plane in planes(self.kv)]

    def stored(self):
        """Return what the pool shows, byte for byte."""
        seen = {}
        for key in sorted(self.whole.keys()):
            held = self._held(key)
            seen[key] = ctypes.string_at(held.address, held.nbytes)
            self.whole.release([held])
        return seen

    def _held(self, key):
        until = time.monotonic() + _AGAIN_SECONDS
        while True:
            [held] = self.whole.acquire([key], [1], deadline=None)
            if isinstance(held, Held):
                return held
            assert self.is_shared, (key, held)
            assert time.monotonic() < until, (key, held)
            time.sleep(0.01)

    def trial(self, option, *, hangs=0.0, calls=1):
        """Make the request; return its result or its failure.

        It ends by its time-out, or by what `hangs` once that lets go; and is counted, as it ended,
        if it is one of the `calls` that begin.
        """
        before, began = self._counted(), time.monotonic()
        try:
            ended = within(self.request, self.call, BLOCKS if self.saves else INTO, option)
        except EmsException as failure:
            ended = failure
        late = time.monotonic() - began - option.timeout / 1e3
        assert late <= hangs + LATE_SECONDS, f"ended {late:.1f} s after its time-out"
        now = self._counted()
        if calls:
            self._check_counts(ended, {name: now[name] - before[name] for name in now})
        else:
            assert now == before, "a call that was refused is counted"
        return ended

    def _counted(self):
        mine = self.cc.counters().get("save" if self.saves else "load", {})
        counts = Counter(mine.get("hashes_by_fate", {}))
        for name in ("calls", "hashes", "nbytes"):
            counts[f"all {name}"] = mine.get(name, 0)
        counts["all failed"] = mine.get("failed", 0)
        return counts

    def _check_counts(self, ended, made):
        calls, hashes = made.pop("all calls"), made.pop("all hashes")
        nbytes, failed = made.pop("all nbytes"), made.pop("all failed")
        assert (calls, hashes, sum(made.values())) == (1, 3, 3), made
        assert failed == isinstance(ended, EmsException), f"{failed} are counted for {ended}"
        if failed:
            assert made["failed"] == 3, made
            return
        done = made.get("done", 0)
        assert ended.total == 3, ended
        if not (self.saves and self.form == "chunks"):  # which may have one group of a hash there
            assert nbytes == done * ENTRY_NBYTES, f"{nbytes} bytes are counted for {made}"
        if self.saves:
            assert ended.success <= done + made.get("already_there", 0), (ended, made)
        else:
            assert ended.success == done, (ended, made)

    def check_memory(self, before, ended):
        """Only named blocks have changed, what was loaded is right, and nothing moves any more."""
        after = self.memory()
        time.sleep(0.005)
        # of a load that tells how many, nothing behind them is written
        named = () if self.saves else INTO
        if isinstance(ended, CcResult):
            named = named[: ended.success]
        for old, new, later in zip(before, after, self.memory(), strict=True):
            assert bool((new == later).all()), "a byte moved after the end"
            for block in range(len(old)):
                if block not in named:
                    assert bool((new[block] == old[block]).all()), f"block {block} was touched"
                elif isinstance(ended, CcResult):
                    wanted = new[BLOCKS[INTO.index(block)]]
                    assert bool((new[block] == wanted).all()), "loaded, and wrong"

    def check_pool(self, ended, golden):
        """Nothing is out, every entry is whole, and as many are there as were told."""
        stats = self.whole.stats()
        assert (stats.reserved_nbytes, stats.held_nbytes) == (0, 0), stats
        seen = self.check_entries(golden)
        if self.saves and isinstance(ended, CcResult):
            whole = len(golden) // 3 * ended.success
            assert len(seen) >= whole, f"{ended}, but only {len(seen)} entries"

    def check_entries(self, golden):
        """What the pool shows is what was saved; return it."""
        seen = self.stored()
        for key, content in seen.items():
            assert content == golden[key], f"{key} is not what was saved"
        return seen


def _end_of(future):
    """Return a future's result or raise its failure, the same when asked again."""
    try:
        first = future.result()
    except EmsException as failure:
        try:
            future.result()
        except EmsException as again:
            assert again is failure  # noqa: PT017 - not pytest's
        else:
            raise AssertionError("a future ended in two ways") from failure
        raise
    assert future.result() == first
    return first


@contextmanager
def placed(form, call, pool, *, start=True, gives_back=True, **settings):
    """Give a place for one request; afterwards nothing of it is left.

    Unless it `gives_back` its memory, which it must not while something may still move there.
    """
    lost = []
    pinned, threads = counter("pinned_nbytes"), set(threading.enumerate())
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(sys, "unraisablehook", lost.append))
        stack.enter_context(mock.patch.object(threading, "excepthook", lost.append))
        home = tempfile.mkdtemp(prefix="ems-faults-", dir="/dev/shm")
        stack.callback(shutil.rmtree, home)
        place = Place(form, call, pool, home, stack, **settings)
        if start:
            place.start()
        yield place
    assert not lost, lost
    if gives_back:  # what the pool was just pinning goes when that has ended
        assert eventually(lambda: counter("pinned_nbytes") == pinned), "memory stays pinned"
    else:
        assert counter("pinned_nbytes") > pinned, "what may still move was given back"
    left = [one for one in threading.enumerate() if one not in threads and not one.daemon]
    assert not left, left
