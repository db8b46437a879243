"""The state machine: random steps of a process that uses the SDK, and what must hold after each."""

import random
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from contracts.mooncake_cluster import eventually
from history_caches import NBYTES, Memory
from history_calls import Call, Calls, shares
from history_model import prefix
from history_pools import Pools
from history_requests import Requests

from ems import Ems, EmsErrorCode, EmsException
from ems.common.exception import PoolUnavailable
from ems.pool.faulty import Fault
from ems.simulator.control import counter, knobs, set_fault

_STEPS = {
    "transfer": 58,
    "exists": 10,
    "fill": 12,
    "settle": 7,
    "look": 4,
    "register": 2.5,
    "slow": 0.6,
    "broken copy": 0.4,
    "threads": 0.6,
    "faults": 5,
    "refused": 2,
    "init again": 0.3,
    "shutdown": 0.22,
}
_DELAYS = ("copy_h2d=1500,copy_d2h=1500", "copy_h2d=3000", "copy_d2h=3000")
_SLOW_STEPS = 6
_BREAKS = {"FAIL_COPY": "copies", "FAIL_LAUNCH": "launches"}
"""What makes a copy fail, and what counts them."""
_THREADS = 3
_MOST_PENDING = 6
_INVALID = EmsErrorCode.EMS_INVALID_ARGUMENT


class Machine:
    """One process's history, made from a seed."""

    def __init__(self, seed, cluster=None):
        self.random = random.Random(seed)  # noqa: S311 - nothing is secret here
        self.memory = Memory(self.random.randrange(2**32))
        self.requests = Requests(self.random, self.memory)
        self.pools = Pools(self.random, cluster)
        self._callers = ThreadPoolExecutor(_THREADS + 1)
        self.steps = 0
        self.told = deque(maxlen=20)
        self.counts = Counter()
        self._idle_pinned, self._idle_streams = counter("pinned_nbytes"), counter("streams")
        self._slow_until = 0
        self._gone = None
        """The Context Caching object before the newest shutdown."""
        self._end_of_life()

    def close(self):
        """End what is under way; nothing may be left."""
        self._shutdown()

    def leave(self):
        """Leave nothing to whoever comes next, however this history has ended."""
        Ems.shutdown()
        self._callers.shutdown()
        for knob in ("DELAY", *_BREAKS):
            set_fault(knob, "")
        self.pools.close()

    def step(self):
        """Do the next thing, and check."""
        self.steps += 1
        if self.cc is None:
            self._init()
        elif self.calls.lost and self.random.random() < 0.03:
            self._shutdown()
        elif self.cache is None and self.random.random() < 0.3:
            self._register()
        else:
            [kind] = self.random.choices(list(_STEPS), list(_STEPS.values()))
            getattr(self, "_" + kind.replace(" ", "_"))()
        if self._slow_until and self.steps >= self._slow_until:
            set_fault("DELAY", "")
            self._slow_until = 0
        if self.random.random() < 0.5:
            self._look()

    def tell(self, *what):
        """Note what is done, for who has to find out why it went wrong."""
        self.told.append((self.steps, *what))
        self.counts[what[0]] += 1

    # what a step does

    def _init(self):
        if self._gone is not None and self.random.random() < 0.3:
            self._expect(_INVALID, self._gone.exists, [1])
            assert Ems.get_cc() is None
        self.pool = self.pools.pool()
        self._config, self.names = self.pools.configuration(self.pool)
        self.tell("init", self.pool.kind, self.pool.url, self.names)
        if self.pool.kind == "mooncake":  # which may take longer than it has, on a busy host
            assert eventually(self._is_up), "the cluster does not come up"
        else:
            Ems.init(self._config)
        self.cc = Ems.get_cc()
        self.calls = Calls(self.cc, self.memory, self.pool)

    def _is_up(self):
        try:
            Ems.init(self._config)
        except EmsException as failure:
            assert failure.status_code() == EmsErrorCode.EMS_RECOVERD_ERROR, failure  # noqa: PT017
            return False
        return True

    def _init_again(self):
        """An equal configuration changes nothing, another is refused."""
        cc = self.cc
        Ems.init(self._config)
        other, _ = self.pools.configuration(self.pool)
        other.access_id = "another"
        self.tell("init again")
        self._expect(_INVALID, Ems.init, other)
        assert Ems.get_cc() is cc
        self._check_health()

    def _register(self, cache=None):
        cache = cache or self.random.choice(self.memory.caches)
        self.tell("register", cache.name)
        self.cc.register_kvcache(cache.kvcache, cache.descriptions)
        self.cache = cache

    def _transfer(self):
        writes = self.random.random() < 0.55
        self._transfer_of(
            self.requests.request(self.cache, self.names, writes=writes), writes=writes
        )

    def _transfer_of(self, request, *, writes, least=0):
        call = self._call(request, writes=writes, least=least)
        if len(self.calls.pending) >= _MOST_PENDING:
            self._settle()
        way = self.random.choice(["at once", "at once", "later", "later", "dropped"])
        if call.timeout in {0, 60_000} and not self.faults and self.random.random() < 0.5:
            way = "at once" if way == "dropped" else way
        self.tell(_name_of(call), call, way)
        self.calls.start(call, way)
        if way == "at once":
            self.calls.settle(call)

    def _call(self, request, *, writes, least=0, in_time=False):
        """Return a call with some time-out, one that does not pass where `in_time`."""
        random = self.random
        timeout = 60_000 if random.random() < 0.5 else 0
        if not in_time and self.pool.ends_in_time:
            if self._slow_until and random.random() < 0.6:
                timeout = random.randint(1, 5)
            elif random.random() < 0.004:
                timeout = 1
        call = Call(request, writes=writes, timeout=timeout, faults=self.faults, least=least)
        call.local_only = writes and self.pool.kind == "tiered" and random.random() < 0.3
        call.write_local = random.random() < 0.8
        return call

    def _some_call(self, **how):
        writes = self.random.random() < 0.55
        request = self.requests.request(self.cache, self.names, writes=writes)
        return self._call(request, writes=writes, **how)

    def _broken_copy(self):
        """A copy fails, or its launch is refused: some call fails, and its NPU is lost."""
        if self.faults or self.calls.lost:
            return
        self._settle()
        self.memory.now()  # nothing but the library copies from here on
        knob, nth = self.random.choice(list(_BREAKS)), self.random.randint(1, 4)
        done, calls = counter(_BREAKS[knob]), []
        with knobs(**{knob: str(nth)}):
            for _ in range(self.random.randint(1, 4)):
                call = self._some_call(in_time=True)
                if any(shares(call, other) for other in self.calls.pending):
                    continue
                call.may_break = True
                self.tell(f"{_name_of(call)} while a copy fails", knob, nth, call)
                calls.append(call)
                self.calls.start(call, "later")
            self.calls.await_ends()
            done = counter(_BREAKS[knob]) - done
        self.calls.settle()
        lost = self.calls.lost
        assert bool(lost) == (done >= nth), f"{done} of {nth} {_BREAKS[knob]}, and lost are {lost}"
        self.counts["NPU lost"] += len(lost)
        self._check_idle()
        self._load_elsewhere([call for call in calls if call.request.device in lost])

    def _load_elsewhere(self, failed):
        """What a failed save has left in the pool is whole, or not there: another NPU can tell."""
        if self.cache is None:
            return
        names = [[group.signature for group in one.groups] for one in self.memory.caches]
        mine = names[self.memory.caches.index(self.cache)]
        twins = [one for one, name in zip(self.memory.caches, names, strict=True) if name == mine]
        twins = [one for one in twins if one.device not in self.calls.lost]
        if not twins:
            return
        self._register(self.random.choice(twins))
        for call in failed:
            if call.writes or call.request.form not in {"slots", "chunks"}:
                continue
            for hash_ in set(call.request.hashes):
                request = self.requests.request(self.cache, self.names, writes=True, hashes=[hash_])
                self._transfer_of(request, writes=True)

    def _threads(self):
        """Several threads call at the same time; what they share, one of them calls for."""
        self._settle()
        plans = [[] for _ in range(_THREADS)]
        for _ in range(self.random.randint(4, 9)):
            mine, call = self.random.choice(plans), self._some_call()
            others = [other for plan in plans if plan is not mine for other in plan]
            if any(shares(call, other) for other in others) or self.calls.rival_of(call):
                continue
            self.calls.prepare(call)
            self.tell(f"{_name_of(call)} of a thread", plans.index(mine), call)
            mine.append(call)
        running = [self._callers.submit(self._carry_out, plan) for plan in plans]
        running.append(self._callers.submit(self._ask, self.requests.hashes()))
        for one in running:
            one.result()
        self._settle()

    def _carry_out(self, plan):
        for at, call in enumerate(plan):
            self.calls.submit(call)
            if at % 2:
                self.cc.is_ready(call.future)

    def _ask(self, hashes):
        """Ask what may be asked at any time."""
        for _ in range(3):
            assert self.cc.pool_stats().used_nbytes >= 0
            assert Ems.get_cc() is self.cc
            if self.cache is not None:
                found = self.cc.exists(hashes, self.calls.option(60_000))
                assert 0 <= found.success <= found.total == len(hashes)

    def _exists(self):
        if self.cache is None:
            self._expect(_INVALID, self.cc.exists, [1])
            return
        hashes = self.requests.hashes()
        count = len(hashes)
        found = self.cc.exists(hashes, self.calls.option(60_000))
        self.tell("exists", hashes, found)
        assert found.total == count
        assert 0 <= found.success <= count
        if self.faults:
            return
        least, most = self._bounds(hashes)
        assert least <= found.success <= most, f"exists says {found}, not {least} to {most}"
        if self.pool.evicts and not self.calls.pending:
            self._load_what_exists(hashes, found.success)

    def _bounds(self, hashes):
        """Return how many of these must exist, and how many may."""
        store, groups = self.pool.store, self.cache.groups
        keys = [[(self.names[0], group.signature, one) for one in hashes] for group in groups]
        most = [[bool(store.may(key, 1)) for key in mine] for mine in keys]
        least = [[store.must(key, 1) for key in mine] for mine in keys]
        windows = [group.window for group in groups]
        if self.calls.saves:
            least = [[False] * len(hashes) for _ in groups]
            if any(not call.exact for call in self.calls.saves):
                return 0, len(hashes)
        lengths = [
            {one[0] for mine in keys for one in store.may(mine[at], 1)} or {1}
            for at in range(len(hashes))
        ]
        if any(windows) and (self.calls.saves or any(len(one) > 1 for one in lengths)):
            return 0, len(hashes)
        tokens = [max(one) for one in lengths]
        return prefix(least, windows, tokens), prefix(most, windows, tokens)

    def _load_what_exists(self, hashes, success):
        """What exists can be loaded, as long as nobody saves."""
        cache = self.cache
        single = all(group.window is None for group in cache.groups)
        if not success or not single or not cache.one_block_size or not self.pool.in_process:
            return
        named = {"slot_mapping": list(range(success)), "hashes": hashes[:success]}
        arguments = {**named, "offsets": [1] * success}
        request = self.requests.of_slots("slots", arguments, cache, self.names[0])
        self._transfer_of(request, writes=True, least=success if not self._slow_until else 0)

    def _fill(self):
        """Write other bytes where no call is under way, as an engine's kernels do."""
        if self.random.random() < 0.7 and self.cache is not None:
            group = self.random.choice(self.cache.groups)
            rows = group.rows[self.random.randrange(group.slots)]
            start = int(rows[0])
        else:
            start = self.random.randrange(NBYTES - 512)
        nbytes = self.random.choice([16, 128, 512])
        nbytes = min(nbytes, NBYTES - start)
        self.calls.settle_bytes(start, start + nbytes)
        self.tell("fill", start, nbytes)
        self.memory.fill(start, nbytes, self.random.randrange(1 << 15))

    def _settle(self):
        """Wait for everything; then nothing is held."""
        self.calls.settle()
        self.tell("settled")
        self._check_idle()

    def _check_idle(self):
        stats = self.cc.pool_stats()
        assert (stats.reserved_nbytes, stats.held_nbytes) == (0, 0), f"left over: {stats}"
        assert stats.used_nbytes <= stats.capacity_nbytes
        self._check_health()
        self.calls.check_counters()

    def _check_health(self):
        if self.pool.kind == "mooncake" and not self.calls.lost:
            assert eventually(Ems.check_health), "the cluster is not healthy any more"
            return
        health = Ems.check_health()
        assert health is not bool(self.calls.lost), f"{self.calls.lost} are lost, health: {health}"

    def _look(self):
        """Compare all of the memory with what it must hold, but for loads under way."""
        now = self.memory.now()
        if np.array_equal(now, self.memory.mirror):
            return
        differs = now != self.memory.mirror
        for call in self.calls.pending:
            if call.writes:
                differs[call.request.bytes] = False
        wrong = np.flatnonzero(differs)
        assert not wrong.size, (
            f"{wrong.size} bytes are not what they must be, the first at {wrong[:8]}; pending: "
            f"{self.calls.pending}"
        )

    def _slow(self):
        """Copies take long from now on; calls meet their time-outs."""
        if not self._slow_until:
            set_fault("DELAY", self.random.choice(_DELAYS))
            self._slow_until = self.steps + _SLOW_STEPS
            self.tell("slow")

    def _faults(self):
        """Let the pool fail from now on, or be well again."""
        if self.pool.kind != "faulty":
            return
        self.calls.settle()
        if self.faults:
            if any(fault.evict for fault in self.faults):
                self.pool.store.evict()
            self.faults = []
        else:
            self.faults = self._some_faults()
        self.pools.opened.faults = list(self.faults)
        self.tell("faults", [(one.operation, one.failure, one.evict) for one in self.faults])

    def _some_faults(self):
        random = self.random
        away = random.choice([PoolUnavailable("the pool is away"), RuntimeError("a fault")])
        keys = list(self.pools.opened.keys())
        if keys and random.random() < 0.4:
            gone = tuple(random.sample(keys, min(len(keys), 4)))
            return [Fault(random.choice(["acquire", "reserve"]), 0, evict=gone)]
        if random.random() < 0.2:
            operation = random.choice(["release", "abort", "commit", "acquire", "reserve"])
            return [Fault(operation, 0, delay_seconds=0.001)]
        operations = random.sample(["reserve", "acquire", "lookup", "commit"], 2)
        return [Fault(one, 0, failure=away) for one in operations]

    def _refused(self):
        """Calls that are wrong are refused, and nothing comes of them."""
        request = self.requests.request(self.cache, self.names, writes=True)
        arguments = {name: list(one) for name, one in request.arguments.items()}
        name = self.random.choice(list(arguments))
        spoilt = self.random.choice([None, 1.5, -1, 2**62, "\n"])
        if name == "hashes":
            spoilt = self.random.choice([None, 1.5, True])
        elif name == "key_list":
            spoilt = self.random.choice([None, "k" * 128, 3])
        elif name == "token_ids":
            spoilt = self.random.choice([None, "1", 0.5, 2**63])
        if name == "chunk_descs":
            at = self.random.choice(range(len(arguments[name])))
            arguments[name][at] = [*arguments[name][at]]
            arguments[name][at][0] = (-1, 1)
        else:
            # what a mask leaves out is in front, and need not be a slot
            at = -1 if "mask" in arguments else self.random.randrange(len(arguments[name]))
            arguments[name][at] = spoilt
        self.tell("refused", name, spoilt)
        call = self.random.choice([self.cc.async_load, self.cc.async_save])
        self._expect(_INVALID, call, **arguments)
        if self.random.random() < 0.3:
            self._expect(_INVALID, self.cc.register_kvcache, [[self.memory.mirror]])

    def _shutdown(self):
        if self.cc is None:
            return
        if self.random.random() < 0.5:
            self._settle()
        self.tell("shutdown", len(self.calls.pending))
        Ems.shutdown()
        self.calls.settle()
        assert Ems.get_cc() is None
        pinned = counter("pinned_nbytes")
        assert pinned == self._idle_pinned, f"{pinned} bytes stay pinned, not {self._idle_pinned}"
        streams = counter("streams") - self._idle_streams
        assert not streams, f"{streams} streams are left"
        assert not counter("canary_breaks")
        self._look()
        self.counts.update(self.calls.ends)
        self._gone = self.cc
        self._end_of_life()

    def _end_of_life(self):
        self.cc = self.cache = self.pool = self.calls = None
        self.faults = []

    def _expect(self, code, call, *arguments, **named):
        try:
            result = call(*arguments, **named)
        except EmsException as failure:
            assert failure.status_code() == code, repr(failure)  # noqa: PT017 - no test
            return
        raise AssertionError(f"{call} was not refused but gave {result}")


def _name_of(call):
    return "load" if call.writes else "save"
