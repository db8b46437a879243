"""The SDK called as its known clients call it: their sequences, types and expectations.

`BEHAVIOURS` maps what an implementation must do for those clients to run unmodified to the tests
that hold it.
"""

import ast
import importlib
import importlib.metadata
import os
import threading
import time
from pathlib import Path

import pytest
import torch
from bounded import PATIENCE, within
from client_likes import (
    ACCESS_ID,
    BLOCK_SIZE,
    ClientV0,
    ClientV1,
    Model,
    Prompt,
    chained_hashes,
    use_pool,
)
from contracts.host_memory import ScarceMemory
from preamble import BS, OPT, POOL, block, boot, cache, poison, same, sl
from rank_processes import Rank, each

import ems
from ems import (
    CcConfig,
    CcConfig_v1,
    CcFuture,
    CcKvOption,
    CcResult,
    Ems,
    EmsConfig,
    EmsErrorCode,
    EmsException,
    KvBufferWrapper,
)
from ems.cc_v1.cc_config import KVCacheType
from ems.device.ascend import PinnedMemory
from ems.simulator.control import counter, knobs

BEHAVIOURS = {
    1: ["test_every_name_is_where_the_clients_import_it_from"],
    2: ["test_configurations_are_made_by_keywords_and_changed_before_init"],
    3: ["test_names_with_an_at_sign_and_an_empty_key_are_accepted"],
    4: [
        "test_the_client_comes_back_once_the_pool_is_up",
        "test_health_is_a_bool_from_any_thread_at_any_time",
        "test_before_init_there_is_no_object_and_health_is_a_bool",
    ],
    5: ["test_the_client_comes_back_once_the_pool_is_up"],
    6: ["test_a_cache_is_registered_from_a_background_thread_with_one_argument"],
    7: ["test_async_calls_take_four_keywords_and_do_not_wait_for_the_copy"],
    8: ["test_a_future_is_true_and_readable_in_both_ways_also_where_it_failed"],
    9: ["test_a_result_is_two_ints_and_a_prefix"],
    10: ["test_a_status_code_is_compared_and_has_a_name"],
    11: ["test_many_futures_of_both_kinds_are_out_at_once_and_consumed_late_in_any_order"],
    12: ["test_a_save_follows_the_forward_pass_that_was_only_launched"],
    13: [
        "test_ranks_of_a_tensor_parallel_model_find_their_own_shards_again",
        "test_all_ranks_of_an_mla_model_share_what_any_of_them_saved",
    ],
    14: ["test_all_ranks_of_an_mla_model_save_the_same_hashes_at_once_and_all_succeed"],
    15: ["test_a_save_that_was_made_before_copies_nothing_and_succeeds"],
    16: ["test_a_save_that_was_made_before_copies_nothing_and_succeeds"],
    17: ["test_the_dependencies_of_the_clients_are_not_ours"],
}


def test_each_behaviour_is_held_by_tests_that_exist():
    tests = Path(__file__).parent.parent
    names = {
        node.name
        for path in tests.rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    }
    assert sorted(BEHAVIOURS) == list(range(1, 18))
    assert not {name for held in BEHAVIOURS.values() for name in held} - names


IMPORTS = {
    "ems": [
        "Ems",
        "EmsConfig",
        "EmsException",
        "EmsErrorCode",
        "CcConfig",
        "CcConfig_v1",
        "CcKvOption",
        "KvBufferWrapper",
        "ContextCaching",
        "ContextCache_v1",
        "KVCacheType",
        "CcResult",
        "CcFuture",
        "PrimaryKey",
        "StoreLayerGroupDesc",
        "ChunkDesc",
    ],
    "ems.common.exception": ["EmsErrorCode", "EmsException"],
    "ems.cc_v1.cc_config": ["CcConfig_v1", "KVCacheType"],
}


@pytest.mark.parametrize("module", IMPORTS)
def test_every_name_is_where_the_clients_import_it_from(module):
    for name in IMPORTS[module]:
        found = getattr(importlib.import_module(module), name)
        assert found is getattr(ems, name)
    assert ems.ContextCache_v1 is ems.ContextCaching


def test_configurations_are_made_by_keywords_and_changed_before_init():
    config = CcConfig_v1(
        rank_id=3,
        device_id=0,
        model_id="m",
        tp_world_size=4,
        pp_world_size=2,
        rank_in_tp_group=3,
        rank_in_pp_group=1,
        llm_engine="vllm",
    )
    config.kvcache_type = KVCacheType.MLA
    assert config.kvcache_type == "MLA"
    Ems.init(EmsConfig(access_id="a", access_key=None, cc_config_v1=config, pool=POOL))
    assert Ems.get_cc() is not None
    buffer = KvBufferWrapper(4096, 64)
    assert (buffer.data_ptr, buffer.length) == (4096, 64)
    assert CcKvOption() == CcKvOption(write_rcache=True, read_local_only=False, timeout=5000)
    assert CcConfig(rank_id=8, device_id=0, model_id="m").tp_world_size == 1


def test_names_with_an_at_sign_and_an_empty_key_are_accepted():
    cc = boot(access_id=ACCESS_ID, model_id="llama@13b", llm_engine="vllm@deepseek")
    cc.register_kvcache(cache())
    assert cc.save(sl(0), [1], [BS], OPT) == CcResult(1, 1)
    Ems.shutdown()
    config = CcConfig_v1(rank_id=0, device_id=0, model_id="m")
    Ems.init(EmsConfig(access_id=ACCESS_ID, access_key="", cc_config_v1=config, pool=POOL))


def test_the_client_comes_back_once_the_pool_is_up(monkeypatch):
    # case 25
    memory = ScarceMemory(0)
    monkeypatch.setattr(PinnedMemory, "allocate", lambda self, nbytes: memory.allocate(nbytes))
    monkeypatch.setattr(PinnedMemory, "free", lambda self, address: memory.free(address))
    monkeypatch.setattr(ems.client, "_HEALTH_SECONDS", 0.2)
    monkeypatch.setenv("EMS_POOL", "memory://?capacity=16MiB&segment=16MiB")
    client = within(lambda: ClientV1(0))
    model = Model("npu:0", 0)
    client.register_kv_caches(model.kv_caches)
    assert client.cc is None
    assert set(client.errors) == {"EMS_RECOVERD_ERROR"}
    assert client.periodic_check() is False
    memory.limit_nbytes = 1 << 30
    monkeypatch.undo()
    monkeypatch.setenv("EMS_POOL", "memory://?capacity=16MiB&segment=16MiB")
    assert client.periodic_check() is True
    assert client.cc is Ems.get_cc()
    prompt = Prompt(list(range(9)), [3, 1, 2])
    model.forward(prompt)
    client.wait_for_save({"r": prompt})
    client.start_load_kv({"r": prompt})
    assert client.get_finished() == {"r": 2}


def test_a_cache_is_registered_from_a_background_thread_with_one_argument():
    cc, kv = boot(), cache()
    within(cc.register_kvcache, kv)
    assert cc.save(sl(0), [1], [BS], OPT) == CcResult(1, 1)


def test_async_calls_take_four_keywords_and_do_not_wait_for_the_copy(cc):
    with knobs(DELAY="copy_d2h=200000,copy_h2d=200000"):
        save = cc.async_save(slot_mapping=sl(0), hashes=[-7], offsets=[BS], option=OPT)
        load = cc.async_load(slot_mapping=sl(1), hashes=[-7], offsets=[BS], option=OPT)
        assert not cc.is_ready(save)
        assert not cc.is_ready(load)
        assert cc.get_result(load) == CcResult(1, 1)


def test_a_future_is_true_and_readable_in_both_ways_also_where_it_failed(cc):
    future = cc.async_save(sl(0), [1], [BS], OPT)
    assert isinstance(future, CcFuture)
    assert future
    assert cc.get_result(future) == future.result() == CcResult(1, 1)
    assert cc.is_ready(future) is True
    with knobs(DELAY="copy_d2h=100000"):
        late = cc.async_save(sl(0), [2], [BS], CcKvOption(timeout=20))
        assert late
        for read in (late.result, lambda: cc.get_result(late)):
            with pytest.raises(EmsException) as failed:
                read()
            assert failed.value.status_code() == EmsErrorCode.EMS_IO_TIMEOUT
        assert cc.is_ready(late) is True


def test_a_result_is_two_ints_and_a_prefix(cc):
    cc.save(sl(0, 1, 3), [1, 2, 4], [BS] * 3, OPT)
    result = cc.load(sl(5, 6, 7, 8), [1, 2, 3, 4], [BS] * 4, OPT)
    assert (result.success, result.total) == (2, 4)
    assert type(result.success) is type(result.total) is int
    assert repr(result) == f"{result}" == "CcResult(success=2, total=4)"


def test_a_status_code_is_compared_and_has_a_name(cc):
    with pytest.raises(EmsException) as refused:
        cc.save([0], [1], [4], OPT)
    error = refused.value
    assert error.status_code() == EmsErrorCode.EMS_INVALID_ARGUMENT
    assert error.status_code() != EmsErrorCode.EMS_IO_TIMEOUT
    assert error.status_code().name == "EMS_INVALID_ARGUMENT"
    assert error.message() == str(error) != ""
    assert EmsErrorCode.EMS_RECOVERED_ERROR is EmsErrorCode.EMS_RECOVERD_ERROR


def test_many_futures_of_both_kinds_are_out_at_once_and_consumed_late_in_any_order(cc, kv):
    want = [block(kv, number) for number in range(8)]
    futures = []
    with knobs(DELAY="copy_d2h=5000"):
        for number in range(8):
            futures.append(cc.async_save(sl(number), [number], [BS], OPT))
            futures.append(cc.async_load(sl(15 - number), [number], [BS], OPT))
        assert not cc.is_ready(futures[-1])
        results = [cc.get_result(future) for future in reversed(futures)]
    assert results == [CcResult(1, 1)] * 16
    assert all(same(block(kv, 15 - number), want[number]) for number in range(8))
    assert all(cc.is_ready(future) for future in futures)


def test_a_save_follows_the_forward_pass_that_was_only_launched(cc, kv):
    with knobs(DELAY="*=20000"):
        for number in range(3):
            for layer in kv:
                for plane in layer:
                    plane[number].fill_(number + 41)
        future = cc.async_save(
            slot_mapping=sl(0, 1, 2), hashes=[1, 2, 3], offsets=[BS] * 3, option=OPT
        )
        assert future.result() == CcResult(3, 3)
    poison(kv, 0, 1, 2)
    assert cc.load(sl(4, 5, 6), [1, 2, 3], [BS] * 3, OPT) == CcResult(3, 3)
    for number in range(3):
        assert all(bool((part == number + 41).all()) for part in block(kv, 4 + number))


def test_a_save_that_was_made_before_copies_nothing_and_succeeds(cc):
    arguments = (sl(0, 1, 2), [1, 2, 3], [BS] * 3, OPT)
    assert cc.save(*arguments) == CcResult(3, 3)
    before = counter("bytes_d2h")
    assert cc.save(*arguments) == CcResult(3, 3)
    assert counter("bytes_d2h") == before


def test_the_dependencies_of_the_clients_are_not_ours():
    needed = " ".join(importlib.metadata.requires("ems"))
    assert not [name for name in ("zmq", "vllm", "blake3") if name in needed]


def test_the_hashes_of_the_clients_are_signed_and_the_same_in_every_process():
    assert chained_hashes([1, 2, 3, 4]) == [hash((0, 1, 2, 3, 4))]
    assert min(chained_hashes(list(range(400)))) < 0


# sequences of whole clients, on several ranks

STATE = {}
"""What a rank keeps between two steps."""


def boot_v1(rank, pool, *, tp_world_size=2, mla=False):
    use_pool(pool)
    STATE["model"] = Model(f"npu:{rank}", rank, mla=mla)
    STATE["client"] = ClientV1(rank, tp_world_size=tp_world_size, mla=mla)
    thread = threading.Thread(
        target=STATE["client"].register_kv_caches, args=(STATE["model"].kv_caches,)
    )
    thread.start()
    thread.join()
    return STATE["client"].errors


def step_v1(rank, prompts):
    """One step of the engine: load, compute the rest, save; returns what the load brought."""
    model, client = STATE["model"], STATE["client"]
    client.start_load_kv({})  # the saves of the last step end before their blocks are given away
    model.forget()
    client.start_load_kv(prompts)
    brought = client.get_finished()
    for name, prompt in prompts.items():
        blocks = brought.get(name, 0)
        assert model.right_blocks(prompt) == blocks, "the loaded blocks, and no others, are right"
        model.forward(prompt, blocks * BLOCK_SIZE)
    client.wait_for_save(prompts)
    assert client.errors == []
    return brought


def settle_v1(rank):
    STATE["client"].start_load_kv({})
    return STATE["client"].errors


def lose(rank, value):
    """Remove what this rank has stored of a hash."""
    pool = STATE["client"].cc._pool
    prefixes = STATE["client"].cc._registered.key_prefixes
    from ems.layout.key import make_keys  # noqa: PLC0415 - runs in a rank

    return pool.remove([key for prefix in prefixes for key in make_keys(prefix, [value])])


def fewest(brought):
    """Return what rank 0 tells the scheduler: for each request the minimum over the ranks."""
    return {name: min(each[name] for each in brought) for name in brought[0]}


@pytest.fixture(scope="module")
def processes():
    started = []
    yield started
    for rank in started:
        rank.kill()


@pytest.fixture
def ranks(processes):
    """Two ranks; those of the test before, where they still run."""
    processes[:] = [rank for rank in processes if rank.runs]
    while len(processes) < 2:
        processes.append(Rank())
    return list(processes)


@pytest.fixture
def pool(tmp_path):
    return f"lmdb://{tmp_path}/pool?capacity=16MiB&staging=16MiB"


FIRST = Prompt([*range(100, 113)], [5, 2, 9, 11])
SECOND = Prompt([*range(100, 108), 7, 7, 7, 7, 7], [0, 1, 3, 4])


def test_ranks_of_a_tensor_parallel_model_find_their_own_shards_again(ranks, pool):
    assert each(ranks, boot_v1, pool) == [[], []]
    assert fewest(each(ranks, step_v1, {"a": FIRST})) == {"a": 0}
    brought = each(ranks, step_v1, {"a": FIRST, "b": SECOND})
    assert brought == [{"a": 3, "b": 2}] * 2
    assert each(ranks, settle_v1) == [[], []]


def test_the_scheduler_counts_the_fewest_blocks_of_any_rank(ranks, pool):
    each(ranks, boot_v1, pool)
    each(ranks, step_v1, {"a": FIRST})
    each(ranks, settle_v1)
    assert ranks[1].run(lose, 1, FIRST.hashes[1]) == 1
    brought = each(ranks, step_v1, {"a": FIRST})
    assert brought == [{"a": 3}, {"a": 1}]
    assert fewest(brought) == {"a": 1}


def test_a_later_instance_of_the_same_topology_finds_what_the_first_one_saved(ranks, pool):
    each(ranks, boot_v1, pool)
    each(ranks, step_v1, {"a": FIRST})
    each(ranks, settle_v1)
    each(ranks, boot_v1, pool)
    assert each(ranks, step_v1, {"a": FIRST}) == [{"a": 3}] * 2
    assert each(ranks, boot_v1, pool, tp_world_size=4) == [[], []]
    assert each(ranks, step_v1, {"a": FIRST}) == [{"a": 0}] * 2


def test_all_ranks_of_an_mla_model_share_what_any_of_them_saved(ranks, pool):
    each(ranks, boot_v1, pool, mla=True)
    assert ranks[0].run(step_v1, 0, {"a": FIRST}) == {"a": 0}
    assert ranks[0].run(settle_v1, 0) == []
    assert ranks[1].run(step_v1, 1, {"a": FIRST}) == {"a": 3}


def test_all_ranks_of_an_mla_model_save_the_same_hashes_at_once_and_all_succeed(ranks, pool):
    each(ranks, boot_v1, pool, mla=True)
    each(ranks, step_v1, {"a": FIRST, "b": SECOND})
    assert each(ranks, settle_v1) == [[], []]
    assert each(ranks, step_v1, {"a": FIRST, "b": SECOND}) == [{"a": 3, "b": 3}] * 2


def boot_v0(rank, pool, *, mla=False):
    use_pool(pool)
    STATE["model"] = Model(f"npu:{rank}", rank, mla=mla)
    STATE["v0"] = ClientV0(rank, STATE["model"], tp_world_size=2, mla=mla)


def save_v0(rank, prompt):
    STATE["model"].forward(prompt)
    return STATE["v0"].save(prompt).result().success


def load_v0(rank, prompt):
    STATE["model"].forget()
    success = STATE["v0"].load(prompt).result().success
    assert STATE["model"].right_blocks(prompt) == success
    return success


def test_the_first_clients_keys_and_buffers_come_back_on_their_rank(ranks, pool):
    each(ranks, boot_v0, pool)
    assert each(ranks, load_v0, FIRST) == [0, 0]
    assert each(ranks, save_v0, FIRST) == [3, 3]
    assert each(ranks, load_v0, FIRST) == [3, 3]
    assert each(ranks, load_v0, SECOND) == [2, 2]


def test_keys_that_one_rank_of_an_mla_model_wrote_are_read_by_all(ranks, pool):
    each(ranks, boot_v0, pool, mla=True)
    assert each(ranks, save_v0, FIRST) == [2, 1]
    assert each(ranks, load_v0, FIRST) == [3, 3]


def save_and_look(rank, pool, fields, hashes):
    """Boot as a rank of some kind, look for hashes, save one more; return what was there."""
    use_pool(pool)
    cc = boot(pool=pool, device_id=rank, **fields)
    cc.register_kvcache(cache(device=f"npu:{rank}"))
    found = [cc.exists([value], OPT).success for value in hashes]
    assert cc.save(sl(0), [hashes[-1]], [BS], OPT) == CcResult(1, 1)
    return found


def test_processes_share_what_the_same_rank_of_a_model_saved_and_nothing_else(ranks, pool):
    # case 10
    one, other = ranks
    second = {"tp_world_size": 2, "rank_in_tp_group": 1}
    assert one.run(save_and_look, 0, pool, {"tp_world_size": 2}, [91]) == [0]
    assert other.run(save_and_look, 1, pool, second, [91]) == [0]
    assert other.run(save_and_look, 1, pool, second, [91]) == [1]
    assert one.run(save_and_look, 0, pool, {}, [91]) == [0]
    mla = {"kvcache_type": "MLA", "tp_world_size": 2}
    assert one.run(save_and_look, 0, pool, mla, [91]) == [0]
    assert other.run(save_and_look, 1, pool, {**mla, "rank_in_tp_group": 1}, [91]) == [1]


def leave_saves_in_flight(rank, run_dir):
    """Start saves that take a while, and return how many of them had ended."""
    from ems.simulator.control import set_fault  # noqa: PLC0415 - the runtime of this rank
    from ems.telemetry.run_dir import descriptions  # noqa: PLC0415

    STATE["model"].forward(FIRST)
    cc = STATE["client"].cc
    until = time.monotonic() + PATIENCE
    while not list(descriptions(Path(run_dir))):
        assert time.monotonic() < until
        time.sleep(0.01)
    set_fault("DELAY", "copy_d2h=100000")
    arguments = STATE["client"]._arguments(FIRST, 3)
    futures = [
        cc.async_save(
            **{
                name: value[at * n : (at + 1) * n]
                for name, value, n in (
                    ("slot_mapping", arguments["slot_mapping"], BLOCK_SIZE),
                    ("hashes", arguments["hashes"], 1),
                    ("offsets", arguments["offsets"], 1),
                )
            }
        )
        for at in range(3)
    ]
    return sum(cc.is_ready(future) for future in futures)


def move_run_dir(rank, run_dir):
    os.environ["EMS_RUN_DIR"] = str(run_dir)


def test_a_process_of_multiprocessing_stores_at_its_end_what_was_submitted(ranks, pool, tmp_path):
    # the workers of inference engines are such processes
    for number, rank in enumerate(ranks):
        rank.run(move_run_dir, number, tmp_path / f"run{number}")
    each(ranks, boot_v1, pool, mla=True)
    assert ranks[1].run(leave_saves_in_flight, 1, tmp_path / "run1") < 3
    ranks[1].end()
    assert list((tmp_path / "run1").iterdir()) == []
    assert ranks[0].run(step_v1, 0, {"a": FIRST}) == {"a": 3}


def saved_in_time(cc, option, left):
    """Save as the vendor's documentation does it: once more for a time-out, with more time."""
    try:
        return cc.save(sl(0), [1], [BS], option)
    except EmsException as error:
        if error.status_code() != EmsErrorCode.EMS_IO_TIMEOUT or not left:
            raise
        return saved_in_time(cc, CcKvOption(timeout=option.timeout * 1000), left - 1)


def test_the_vendors_retry_after_a_time_out_ends_with_a_result(cc):
    with knobs(DELAY="copy_d2h=60000"):
        with pytest.raises(EmsException):
            saved_in_time(cc, CcKvOption(timeout=20), 0)
        assert saved_in_time(cc, CcKvOption(timeout=20), 1) == CcResult(1, 1)


def test_tensors_of_three_dimensions_as_the_connectors_pass_them(cc):
    fused = torch.zeros(2, 8, BS, 16, dtype=torch.float16, device="npu:0")
    fused[:, 1] = 3
    cc.register_kvcache([[fused[0], fused[1]]])
    assert cc.save(sl(1), [1], [BS], OPT) == CcResult(1, 1)
    assert cc.load(sl(6), [1], [BS], OPT) == CcResult(1, 1)
    assert (fused[:, 6].cpu() == 3).all()
