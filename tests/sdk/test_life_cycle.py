import threading

import pytest
import torch
from bounded import within
from contracts.host_memory import ScarceMemory
from preamble import BS, OPT, POOL, boot, buf, cache, poison, sl

import ems.client
from ems import (
    CcConfig,
    CcConfig_v1,
    CcKvOption,
    CcResult,
    ContextCache_v1,
    ContextCaching,
    Ems,
    EmsConfig,
    EmsErrorCode,
    EmsException,
    KVCacheType,
)
from ems.device.ascend import PinnedMemory
from ems.simulator.control import counter, knobs

V1 = CcConfig_v1(rank_id=0, device_id=0, model_id="m-a")


def code_of(call, *arguments):
    with pytest.raises(EmsException) as failed:
        call(*arguments)
    return failed.value.status_code()


def refusal(call, *arguments):
    with pytest.raises(EmsException) as refused:
        call(*arguments)
    assert refused.value.status_code() == EmsErrorCode.EMS_INVALID_ARGUMENT
    return str(refused.value)


@pytest.fixture
def scarce(monkeypatch):
    """A host that gives no pinned memory until the test lets it."""
    memory = ScarceMemory(0)
    monkeypatch.setattr(PinnedMemory, "allocate", lambda self, nbytes: memory.allocate(nbytes))
    monkeypatch.setattr(PinnedMemory, "free", lambda self, address: memory.free(address))
    monkeypatch.setattr(ems.client, "_HEALTH_SECONDS", 0.3)
    yield memory
    Ems.shutdown()


def test_before_init_there_is_no_object_and_health_is_a_bool():
    assert Ems.get_cc() is None
    assert Ems.check_health() is True


def test_the_object_is_one_and_of_one_class():
    cc = boot()
    assert cc is Ems.get_cc()
    assert type(cc) is ContextCaching is ContextCache_v1


def test_an_equal_second_init_changes_nothing():
    cc = boot()
    cc.register_kvcache(cache())
    assert boot() is cc
    assert cc.save(sl(0), [1], [BS], OPT).success == 1


@pytest.mark.parametrize(
    "other",
    [
        {"model_id": "m-b"},
        {"rank_id": 1},
        {"device_id": 1},
        {"access_id": "t"},
        {"pool": "memory:"},
    ],
    ids=str,
)
def test_a_different_second_init_is_refused_and_the_first_stays(other):
    cc = boot()
    assert "different configuration" in refusal(lambda: boot(**other))
    assert Ems.get_cc() is cc


def test_a_configuration_is_read_once_and_may_change_afterwards():
    config = EmsConfig(cc_config_v1=CcConfig_v1(0, 0, "m-a"), pool=POOL)
    config.cc_config_v1.kvcache_type = "MLA"
    Ems.init(config)
    config.cc_config_v1.kvcache_type = KVCacheType.MLA
    Ems.init(config)
    config.cc_config_v1.kvcache_type = KVCacheType.GQA
    assert "different configuration" in refusal(Ems.init, config)


def test_without_a_cc_config_init_succeeds_and_there_is_no_object():
    Ems.init(EmsConfig())
    assert Ems.get_cc() is None
    assert Ems.check_health() is True
    Ems.init(EmsConfig())
    assert "different configuration" in refusal(boot)


def test_both_configurations_are_refused():
    both = EmsConfig(cc_config=CcConfig(0, 0, "m"), cc_config_v1=V1)
    assert "not both" in refusal(Ems.init, both)
    assert Ems.get_cc() is None


@pytest.mark.parametrize("config", [None, V1, {}, "config", EmsConfig], ids=repr)
def test_what_is_no_configuration_is_refused(config):
    assert "EmsConfig" in refusal(Ems.init, config)


@pytest.mark.parametrize("device_id", [-1, "0", None, True, 1.0], ids=repr)
def test_a_device_id_of_a_wrong_kind_is_refused_by_value(device_id):
    # case 23
    assert repr(device_id) in refusal(lambda: boot(device_id=device_id))


def test_a_device_id_beyond_the_visible_ones_is_refused_with_their_number_and_the_variable():
    # case 23
    text = refusal(lambda: boot(device_id=torch.npu.device_count()))
    assert str(torch.npu.device_count()) in text
    assert "ASCEND_RT_VISIBLE_DEVICES" in text


def test_a_rank_beyond_the_local_devices_is_fine_and_another_device_is_only_warned_about(caplog):
    # case 23
    cc = boot(rank_id=8)
    cc.register_kvcache([[buf(device="npu:1"), buf(device="npu:1")]])
    [warning] = [record for record in caplog.records if record.levelname == "WARNING"]
    assert "npu:1" in warning.getMessage()
    assert "device_id is 0" in warning.getMessage()
    assert cc.save(sl(0), [1], [BS], OPT).success == 1


def test_planes_on_two_devices_are_refused_with_both():
    # case 23
    text = refusal(boot().register_kvcache, [[buf(device="npu:0"), buf(device="npu:1")]])
    assert "npu:0" in text
    assert "npu:1" in text


def test_after_a_refused_init_another_one_works():
    refusal(lambda: boot(pool="nonsense://"))
    assert Ems.get_cc() is None
    assert boot() is not None


def test_a_pool_that_is_not_up_can_be_waited_for_by_check_health_and_then_initialised(scarce):
    # case 25, as the known client does it
    assert code_of(boot) == EmsErrorCode.EMS_RECOVERD_ERROR
    assert Ems.get_cc() is None
    assert Ems.check_health() is False
    scarce.limit_nbytes = 1 << 30
    assert Ems.check_health() is True
    assert boot() is not None


def test_a_failed_init_leaves_no_pool_behind(scarce):
    before = set(threading.enumerate())
    for _ in range(3):
        assert code_of(boot) == EmsErrorCode.EMS_RECOVERD_ERROR
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()
    assert scarce.live_nbytes == 0


def test_an_init_that_fails_after_its_pool_was_opened_leaves_none_behind(monkeypatch):
    def refused(*_):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr("ems.context_caching.Recorder", refused)
    before = counter("pinned_nbytes"), set(threading.enumerate())
    assert code_of(boot) == EmsErrorCode.EMS_INTERNAL_ERROR
    for thread in set(threading.enumerate()) - before[1]:
        thread.join(10)
    assert (counter("pinned_nbytes"), set(threading.enumerate())) == before


def test_a_fault_within_init_is_an_ems_exception_and_does_not_look_healthy(monkeypatch):
    def fail(url, memory):
        raise RuntimeError("boom")

    monkeypatch.setattr(ems.client, "open_pool", fail)
    assert code_of(boot) == EmsErrorCode.EMS_INTERNAL_ERROR
    assert Ems.check_health() is False
    monkeypatch.undo()
    boot()
    assert Ems.check_health() is True


def test_shutdown_can_be_repeated_and_init_works_afterwards():
    Ems.shutdown()
    first = boot()
    Ems.shutdown()
    Ems.shutdown()
    assert Ems.get_cc() is None
    assert Ems.check_health() is True
    second = boot(model_id="another")
    assert second is not first
    second.register_kvcache(cache())
    assert second.save(sl(0), [1], [BS], OPT).success == 1


def test_shutdown_gives_everything_back():
    boot().register_kvcache(cache())
    Ems.shutdown()
    before = counter("pinned_nbytes"), counter("streams")
    for _ in range(3):
        cc = boot()
        cc.register_kvcache(cache())
        cc.save(sl(0), [1], [BS], OPT)
        cc.load(sl(0), [1], [BS], OPT)
        Ems.shutdown()
    assert (counter("pinned_nbytes"), counter("streams")) == before


def test_every_call_after_shutdown_is_refused_with_what_to_do():
    cc = boot()
    cc.register_kvcache(cache())
    Ems.shutdown()
    for call in (
        lambda: cc.save(sl(0), [1], [BS], OPT),
        lambda: cc.async_load(sl(0), [1], [BS], OPT),
        lambda: cc.exists([1], OPT),
        lambda: cc.register_kvcache(cache()),
    ):
        assert "Ems.init" in refusal(call)


def test_futures_can_be_read_after_shutdown():
    cc = boot()
    cc.register_kvcache(cache())
    with knobs(DELAY="copy_d2h=50000"):
        futures = [cc.async_save(sl(at), [at], [BS], OPT) for at in range(4)]
        Ems.shutdown()
    assert [future.result() for future in futures] == [CcResult(1, 1)] * 4


def test_saves_that_are_pending_at_shutdown_are_stored_or_counted_as_given_up(monkeypatch, caplog):
    # case 49
    monkeypatch.setattr(ems.client, "_SHUTDOWN_SECONDS", 0.2)
    cc = boot()
    cc.register_kvcache(cache())
    with knobs(DELAY="copy_d2h=150000"):
        futures = [
            cc.async_save(sl(at), [310 + at], [BS], CcKvOption(timeout=0)) for at in range(8)
        ]
        within(Ems.shutdown)
    ends = []
    for future in futures:
        try:
            ends.append(within(future.result))
        except EmsException as failure:
            ends.append(failure.status_code())
    stored = ends.count(CcResult(1, 1))
    assert stored < 8
    [warning] = [each.getMessage() for each in caplog.records if "given up" in each.getMessage()]
    assert int("".join(filter(str.isdigit, warning))) >= 8 - stored


def test_later_blocks_of_a_save_are_stored_though_an_earlier_one_found_no_room():
    # case 49
    cc = boot(pool="memory://?capacity=4KiB&segment=4KiB")
    cc.register_kvcache(cache(layers=1, blocks=64))
    hashes, offsets = [1, 2, 3], [BS, 160, BS]
    assert cc.save(sl(0, *range(1, 41), 41), hashes, offsets, OPT) == CcResult(1, 3)
    assert [cc.exists([each], OPT).success for each in hashes] == [1, 0, 1]


def test_every_request_before_a_registration_says_what_is_missing():
    cc = boot()
    for call in (
        lambda: cc.save(sl(0), [1], [BS], OPT),
        lambda: cc.async_load(sl(0), [1], [BS], OPT),
        lambda: cc.exists([1], OPT),
    ):
        assert "register_kvcache first" in refusal(call)


@pytest.mark.parametrize("future", [None, 3, "future", object()], ids=lambda it: type(it).__name__)
def test_what_is_no_future_is_refused(cc, future):
    refusal(cc.is_ready, future)
    refusal(cc.get_result, future)


def test_health_is_a_bool_from_any_thread_at_any_time():
    # case 51
    seen = [within(Ems.check_health)]
    cc = boot()
    seen.append(within(Ems.check_health))
    cc.register_kvcache(cache())
    seen.extend(within(lambda: [Ems.check_health() for _ in range(50)]))
    Ems.shutdown()
    seen.append(within(Ems.check_health))
    assert all(value is True for value in seen)


def test_health_stays_a_bool_while_others_initialise_and_shut_down():
    # case 51
    seen = []
    stop = threading.Event()

    def ask():
        while not stop.is_set():
            seen.append(Ems.check_health())

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    for _ in range(3):
        boot().register_kvcache(cache())
        Ems.shutdown()
    stop.set()
    asking.join(60)
    assert not asking.is_alive()
    assert {type(value) for value in seen} == {bool}


def test_a_failed_copy_ends_health_and_later_calls_until_the_next_init(monkeypatch):
    cc = boot(device_id=7)
    kv = cache(device="npu:7")
    cc.register_kvcache(kv)
    with knobs(FAIL_COPY="1"):
        assert code_of(cc.save, sl(0), [1], [BS], OPT) == EmsErrorCode.EMS_INTERNAL_ERROR
    assert Ems.check_health() is False
    assert code_of(cc.save, sl(0), [2], [BS], OPT) == EmsErrorCode.EMS_INTERNAL_ERROR
    assert cc.exists([1], OPT) == CcResult(0, 1)
    assert cc.pool_stats().reserved_nbytes == 0


def test_a_vendor_sample_with_tensors_on_the_cpu_is_refused_by_layer_plane_and_device():
    Ems.init(
        EmsConfig(cc_config=CcConfig(rank_id=8, device_id=0, model_id="llama2-13b"), pool=POOL)
    )
    tensors = [[torch.randn((2, 4, 2, 4)).half() for _ in range(2)] for _ in range(2)]
    text = refusal(Ems.get_cc().register_kvcache, tensors)
    assert "layer 0 plane 0" in text
    assert "cpu" in text


def test_a_dropped_future_runs_to_its_end(cc, kv):
    with knobs(DELAY="copy_d2h=50000"):
        cc.async_save(sl(0), [900], [BS], OPT)
    poison(kv, 9)
    assert cc.load(sl(9), [900], [BS], OPT) == CcResult(1, 1)
