import time

import pytest
from bounded import within
from moody_pool import MoodyPool
from preamble import BS, OPT, POOL, block, boot, cache, planes, poison, same, sl

import ems.client
from ems import CcKvOption, CcResult, EmsErrorCode, EmsException
from ems.pool.registry import open_pool
from ems.simulator.control import knobs
from ems.transfer import slices


@pytest.fixture
def one_block_slices(monkeypatch):
    monkeypatch.setattr(slices, "SLICE_NBYTES", 1)


@pytest.fixture
def boom(monkeypatch):
    """A pool whose second commit raises what no pool should."""
    pools = []

    def open_boom(url, memory):
        pools.append(MoodyPool(open_pool(url, memory), {"commit": 2}, error=RuntimeError))
        return pools[-1]

    monkeypatch.setattr(ems.client, "open_pool", open_boom)


@pytest.mark.usefixtures("boom", "one_block_slices")
def test_an_exception_in_a_worker_ends_its_request_alone_and_the_worker_lives():
    # case 14
    cc = boot()
    kv = cache()
    cc.register_kvcache(kv)
    future = cc.async_save(sl(0, 1, 2), [131, 132, 133], [BS] * 3, OPT)
    for _ in range(2):
        with pytest.raises(EmsException, match="commit went wrong") as failed:
            within(future.result)
        assert failed.value.status_code() == EmsErrorCode.EMS_INTERNAL_ERROR
    assert cc.is_ready(future) is True
    assert future
    assert within(cc.async_save(sl(4), [134], [BS], OPT).result) == CcResult(1, 1)
    assert cc.exists([131], OPT) == CcResult(1, 1)
    assert cc.exists([132], OPT) == CcResult(0, 1)
    assert cc.save(sl(0, 1, 2), [131, 132, 133], [BS] * 3, OPT) == CcResult(3, 3)
    assert cc.pool_stats().reserved_nbytes == 0


@pytest.mark.usefixtures("one_block_slices")
def test_a_load_that_times_out_moves_no_byte_after_it_has_ended():
    cc = boot()
    kv = cache(blocks=16, shape=(BS, 8, 256))
    cc.register_kvcache(kv)
    hashes = list(range(8))
    assert cc.save(sl(*range(8)), hashes, [BS] * 8, OPT) == CcResult(8, 8)
    poison(kv, *range(8, 16))
    before = block(kv, 15)
    with knobs(GBPS_H2D="0.001"):
        future = cc.async_load(sl(*range(8, 16)), hashes, [BS] * 8, CcKvOption(timeout=100))
        with pytest.raises(EmsException) as failed:
            within(future.result)
        assert failed.value.status_code() == EmsErrorCode.EMS_IO_TIMEOUT
        assert cc.is_ready(future)
        first = [plane.cpu().clone() for plane in planes(kv)]
        time.sleep(0.3)
        second = [plane.cpu() for plane in planes(kv)]
    assert same(first, second)
    assert same(block(kv, 15), before), "what had not been started was started"
    assert cc.load(sl(*range(8, 16)), hashes, [BS] * 8, OPT) == CcResult(8, 8)
    assert same(block(kv, 15), block(kv, 7))
    assert cc.pool_stats().held_nbytes == 0


@pytest.mark.usefixtures("one_block_slices")
def test_a_save_that_times_out_leaves_whole_entries_or_none():
    cc = boot()
    kv = cache(blocks=16, shape=(BS, 8, 256))
    cc.register_kvcache(kv)
    hashes = list(range(8))
    with knobs(GBPS_D2H="0.001"):
        future = cc.async_save(sl(*range(8)), hashes, [BS] * 8, CcKvOption(timeout=150))
        with pytest.raises(EmsException) as failed:
            within(future.result)
    assert failed.value.status_code() == EmsErrorCode.EMS_IO_TIMEOUT
    assert cc.pool_stats().reserved_nbytes == 0
    poison(kv, *range(8, 16))
    loaded = cc.load(sl(*range(8, 16)), hashes, [BS] * 8, OPT).success
    assert loaded < 8
    assert all(same(block(kv, 8 + at), block(kv, at)) for at in range(loaded))
    assert cc.save(sl(*range(8)), hashes, [BS] * 8, OPT) == CcResult(8, 8)


def test_a_request_whose_deadline_passes_while_it_waits_for_the_caller_times_out():
    cc = boot()
    kv = cache()
    cc.register_kvcache(kv)
    with knobs(DELAY="*=500000"):
        kv[0][0][1].fill_(3)
        future = cc.async_save(sl(1), [5], [BS], CcKvOption(timeout=50))
        with pytest.raises(EmsException) as failed:
            within(future.result)
    assert failed.value.status_code() == EmsErrorCode.EMS_IO_TIMEOUT
    assert cc.exists([5], OPT) == CcResult(0, 1)
    assert cc.save(sl(1), [5], [BS], OPT) == CcResult(1, 1)


def test_no_limit_means_that_a_slow_request_ends_well():
    cc = boot(pool=POOL)
    kv = cache()
    cc.register_kvcache(kv)
    with knobs(DELAY="copy_d2h=200000"):
        assert cc.save(sl(1), [5], [BS], CcKvOption(timeout=0)) == CcResult(1, 1)


@pytest.mark.parametrize("timeout", [10**13, 10**400], ids=["10^13", "10^400"])
def test_a_time_out_beyond_all_measure_is_as_good_as_none(cc, timeout):
    future = cc.async_save(sl(1), [5], [BS], CcKvOption(timeout=timeout))
    assert within(future.result) == CcResult(1, 1)
