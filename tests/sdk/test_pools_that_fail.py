"""Pools that fail, come back and fill up; caches that are exchanged under load; the end."""

import itertools
import threading

import pytest
from bounded import within
from faulty_boot import boot_faulty
from preamble import BS, OPT, block, boot, cache, planes, poison, same, sl

from ems import CcKvOption, CcResult, Ems, EmsErrorCode, EmsException
from ems.common.exception import PoolUnavailable, RequestTimeout
from ems.pool.faulty import Fault
from ems.simulator.control import knobs

AWAY = PoolUnavailable("the pool is away")


def code_of(call, *arguments, **named):
    with pytest.raises(EmsException) as failed:
        call(*arguments, **named)
    return failed.value.status_code()


def test_a_pool_that_is_lost_fails_each_call_once_and_serves_again_when_it_is_back(monkeypatch):
    # cases 25 and 47
    cc, pool = boot_faulty(monkeypatch)
    kv = cache()
    cc.register_kvcache(kv)
    want = block(kv, 0)
    cc.save(sl(0), [1], [BS], OPT)
    pool.faults = [Fault(operation, 0, failure=AWAY) for operation in ("reserve", "acquire")]
    pool.faults.append(Fault("lookup", 0, failure=AWAY))
    assert code_of(cc.save, sl(1, 2), [2, 3], [BS] * 2, OPT) == EmsErrorCode.EMS_IO_ERROR
    assert code_of(cc.load, sl(1, 2), [1, 3], [BS] * 2, OPT) == EmsErrorCode.EMS_IO_ERROR
    assert cc.exists([1], OPT) == CcResult(0, 1)
    pool.faults = []
    assert cc.load(sl(5), [1], [BS], OPT) == CcResult(1, 1)
    assert same(block(kv, 5), want)
    assert cc.save(sl(1, 2), [2, 3], [BS] * 2, OPT) == CcResult(2, 2)
    stats = cc.pool_stats()
    assert (stats.reserved_nbytes, stats.held_nbytes) == (0, 0)


@pytest.mark.parametrize("operation", ["commit", "abort", "release"])
def test_a_failure_on_the_way_loses_no_memory_and_the_next_try_works(monkeypatch, operation):
    # cases 8 and 24
    cc, pool = boot_faulty(monkeypatch)
    cc.register_kvcache(cache())
    cc.save(sl(0), [1], [BS], OPT)
    pool.faults = [Fault(operation, 0, failure=AWAY)]
    for call, arguments in ((cc.save, (sl(1), [2], [BS], OPT)), (cc.load, (sl(5), [1], [BS], OPT))):
        try:
            call(*arguments)
        except EmsException as failure:
            assert failure.status_code() == EmsErrorCode.EMS_IO_ERROR  # noqa: PT017 - may succeed
    pool.faults = []
    assert cc.save(sl(1), [2], [BS], OPT) == CcResult(1, 1)
    assert cc.load(sl(5, 6), [1, 2], [BS] * 2, OPT) == CcResult(2, 2)


def test_a_save_that_failed_is_seen_by_nobody(monkeypatch):
    # case 8
    cc, pool = boot_faulty(monkeypatch)
    cc.register_kvcache(cache())
    pool.faults = [Fault("commit", 0, failure=AWAY)]
    assert code_of(cc.save, sl(0, 1), [71, 72], [BS] * 2, OPT) == EmsErrorCode.EMS_IO_ERROR
    pool.faults = []
    assert cc.exists([71, 72], OPT) == CcResult(0, 2)
    assert cc.load(sl(4), [71], [BS], OPT) == CcResult(0, 1)
    assert cc.save(sl(0, 1), [71, 72], [BS] * 2, OPT) == CcResult(2, 2)
    stats = cc.pool_stats()
    assert (stats.reserved_nbytes, stats.held_nbytes) == (0, 0)


def test_what_is_evicted_between_look_up_and_load_ends_the_run(monkeypatch):
    # case 7
    cc, pool = boot_faulty(monkeypatch)
    kv = cache()
    cc.register_kvcache(kv)
    cc.save(sl(0, 1, 2), [61, 62, 63], [BS] * 3, OPT)
    [gone] = [key for key in pool.keys() if key.endswith(f"-i{62:x}")]  # noqa: SIM118
    pool.faults = [Fault("acquire", 0, evict=(gone,))]
    assert cc.exists([61, 62, 63], OPT) == CcResult(3, 3)
    poison(kv, 5, 6)
    assert cc.load(sl(4, 5, 6), [61, 62, 63], [BS] * 3, OPT) == CcResult(1, 3)
    assert all(bool((part == -9).all()) for part in block(kv, 5) + block(kv, 6))


def test_health_follows_the_pool_and_heals_with_it(monkeypatch):
    # case 51
    cc, pool = boot_faulty(monkeypatch)
    assert within(Ems.check_health) is True

    failures = [AWAY, RequestTimeout("slow"), RuntimeError("a fault"), OSError(5, "I/O")]

    def fail(*, deadline):
        raise failures.pop()

    while failures:
        with monkeypatch.context() as patch:
            patch.setattr(pool, "check_health", fail)
            assert within(Ems.check_health) is False
        assert within(Ems.check_health) is True
    assert cc is Ems.get_cc()


def test_health_can_be_asked_while_a_request_hangs_and_a_cache_is_exchanged():
    # case 51
    cc = boot()
    cc.register_kvcache(cache())
    with knobs(DELAY="copy_d2h=300000"):
        future = cc.async_save(sl(0), [1], [BS], OPT)
        swap = threading.Thread(target=cc.register_kvcache, args=(cache(blocks=8),))
        swap.start()
        assert within(Ems.check_health) is True
        assert not cc.is_ready(future)
        swap.join()
    assert future.result() == CcResult(1, 1)


def test_neither_look_ups_nor_failed_loads_nor_dropped_futures_keep_memory_from_saves():
    # case 24
    cc = boot(pool="memory://?capacity=8KiB&segment=8KiB")  # sixteen blocks
    cc.register_kvcache(cache())
    for number in range(300):
        assert cc.save(sl(number % 8), [10_000 + number], [BS], OPT) == CcResult(1, 1)
        cc.exists([10_000 + number, 1], OPT)
        cc.async_load(sl(8, 9), [10_000 + number, 1], [BS] * 2, OPT)
    assert cc.save(sl(0), [99_999], [BS], OPT) == CcResult(1, 1)
    cc.load(sl(1), [99_999], [BS], OPT)
    assert cc._transfers.drain(60)
    assert cc.pool_stats().held_nbytes == 0


def test_requests_of_other_threads_go_on_while_the_cache_is_exchanged_again_and_again():
    # case 30
    cc = boot()
    caches = [cache(), cache(blocks=12)]
    for kv in caches:
        for plane in planes(kv):
            plane[3].fill_(7)
    cc.register_kvcache(caches[0])
    stop, ends = threading.Event(), set()

    def work(thread):
        for turn in itertools.count(thread * 1_000_000):
            ends.add(cc.save(sl(3), [turn], [BS], OPT))
            ends.add(cc.load(sl(4 + thread), [turn], [BS], OPT))
            if stop.is_set():
                return

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(20):
        within(cc.register_kvcache, caches[turn % 2])
    stop.set()
    for thread in threads:
        within(thread.join)
    assert ends == {CcResult(1, 1)}
    for kv, number in itertools.product(caches, (4, 5)):
        right = {bool((part == 7).all()) for part in block(kv, number)}
        assert len(right) == 1, "all planes of a block or none"


def test_an_object_of_an_earlier_init_stays_shut_and_the_new_one_is_another():
    old = boot()
    old.register_kvcache(cache())
    future = old.async_save(sl(0), [1], [BS], OPT)
    Ems.shutdown()
    new = boot()
    new.register_kvcache(cache())
    assert new is not old
    assert old.is_ready(future)
    assert old.get_result(future) == new.get_result(future) == CcResult(1, 1)
    for call in (
        lambda: old.save(sl(0), [2], [BS], OPT),
        lambda: old.load(OPT, ["k"], []),
        lambda: old.exists([1], OPT),
        lambda: old.register_kvcache(cache()),
    ):
        assert code_of(call) == EmsErrorCode.EMS_INVALID_ARGUMENT
    assert new.save(sl(0), [2], [BS], OPT) == CcResult(1, 1)


def test_an_entry_that_a_slow_load_reads_is_not_given_to_others(monkeypatch):
    # case 33
    cc = boot(pool="memory://?capacity=2KiB&segment=2KiB")  # four blocks
    kv = cache()
    cc.register_kvcache(kv)
    want = block(kv, 0)
    cc.save(sl(0), [231], [BS], OPT)
    with knobs(DELAY="copy_h2d=50000"):
        future = cc.async_load(sl(7), [231], [BS], CcKvOption(timeout=0))
        for number in range(16):
            cc.save(sl(1), [232 + number], [BS], OPT)
        assert future.result().success in {0, 1}
    if future.result().success:
        assert same(block(kv, 7), want)
