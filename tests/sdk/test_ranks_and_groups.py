"""Who shares entries and who does not; layer groups that differ; layouts of real models."""

import dataclasses
import itertools
import tempfile

import pytest
import torch
from hypothesis import given
from hypothesis import settings as settings_of_test
from hypothesis import strategies as st
from preamble import BS, DEV, OPT, block, boot, buf, cache, poison, same, sl

from ems import (
    CcConfig,
    CcConfig_v1,
    CcKvOption,
    CcResult,
    ChunkDesc,
    ContextCaching,
    Ems,
    EmsConfig,
    EmsException,
    KvBufferWrapper,
    PrimaryKey,
    StoreLayerGroupDesc,
)
from ems.config import read_settings
from ems.layout.key import make_keys
from ems.layout.plane import TensorFacts
from ems.layout.registered import key_prefixes, namespace_of
from ems.layout.registration import register
from ems.simulator.control import counter, knobs

FACTS = [[TensorFacts("npu:0", "float16", 2, (8, 4, 2, 8), (64, 16, 8, 1), 1 << 28, 2)]]
REGISTRATION = register(FACTS)


def settings(access_id=None, **fields):
    config = CcConfig_v1(**{"rank_id": 0, "device_id": 0, "model_id": "m", **fields})
    return read_settings(EmsConfig(access_id=access_id, cc_config_v1=config))


def key(access_id=None, **fields):
    [prefix] = key_prefixes(settings(access_id, **fields), REGISTRATION)
    return make_keys(prefix, [91])[0]


APART = [
    {"model_id": "n"},
    {"model_id": "m@lora-x"},
    {"model_id": "m@revision-2"},
    {"access_id": "t"},
    {"access_id": "T"},
    {"llm_engine": "vllm@service"},
    {"tp_world_size": 2},
    {"tp_world_size": 2, "rank_in_tp_group": 1},
    {"tp_world_size": 4, "rank_in_tp_group": 1},
    {"pp_world_size": 2},
    {"pp_world_size": 2, "rank_in_pp_group": 1},
    {"tp_world_size": 2, "pp_world_size": 2, "rank_in_tp_group": 1, "rank_in_pp_group": 1},
    {"rank_in_tp_group": 1},
    {"rank_in_pp_group": 1},
]


def test_ranks_tenants_models_engines_and_world_sizes_have_keys_of_their_own():
    # cases 10 and 36
    keys = [key(), *[key(**fields) for fields in APART]]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("fields", [{"rank_id": 9}, {"device_id": 5}, {"kvcache_type": "MHA"}])
def test_data_parallel_replicas_share_whatever_their_rank_and_device(fields):
    assert key(**fields) == key()


def test_all_tensor_parallel_ranks_of_an_mla_model_have_the_same_keys_and_no_others_do():
    mla = {
        key(kvcache_type="MLA", tp_world_size=size, rank_in_tp_group=rank)
        for size in (1, 2, 8)
        for rank in range(size)
    }
    assert len(mla) == 1
    stages = {
        key(kvcache_type="MLA", pp_world_size=2, rank_in_pp_group=stage) for stage in range(2)
    }
    assert len(stages | mla) == 3
    assert key(kvcache_type="GQA") not in mla


@pytest.mark.parametrize("kind", ["GQA", "MHA", "MQA"])
def test_ranks_of_every_other_attention_are_kept_apart(kind):
    keys = {key(kvcache_type=kind, tp_world_size=2, rank_in_tp_group=rank) for rank in range(2)}
    assert len(keys) == 2


names = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=6)


@settings_of_test(deadline=None)
@given(st.lists(st.tuples(names, names, names), min_size=2, max_size=6, unique=True))
def test_no_two_names_flow_into_each_other(triples):
    keys = [key(access_id=a, model_id=m, llm_engine=e) for a, m, e in triples]
    assert len(set(keys)) == len(triples)


def test_a_long_name_counts_to_its_last_character():
    assert key(model_id="m" * 511 + "a") != key(model_id="m" * 511 + "b")


def test_everything_in_the_namespace_is_in_the_key():
    fields = {field.name for field in dataclasses.fields(namespace_of(settings()))}
    assert fields == {
        "access_id",
        "model_id",
        "llm_engine",
        "tp_world_size",
        "rank_in_tp_group",
        "pp_world_size",
        "rank_in_pp_group",
    }


# through the SDK, over a pool that outlives each `Ems.init`


@pytest.fixture
def shared(tmp_path):
    return f"lmdb://{tmp_path}/pool?capacity=16MiB&staging=16MiB"


def rank(pool, kv=None, groups=None, **fields):
    Ems.shutdown()
    cc = boot(pool=pool, **fields)
    cc.register_kvcache(cache() if kv is None else kv, groups)
    return cc


@pytest.mark.parametrize("fields", APART, ids=str)
def test_what_one_saved_is_a_miss_for_another(shared, fields):
    # cases 10 and 36
    assert rank(shared).save(sl(0), [91], [BS], OPT) == CcResult(1, 1)
    other = rank(shared, **fields)
    kv = cache()
    other.register_kvcache(kv)
    untouched = block(kv, 5)
    assert other.exists([91], OPT) == CcResult(0, 1)
    assert other.load(sl(5), [91], [BS], OPT) == CcResult(0, 1)
    assert same(block(kv, 5), untouched)
    assert rank(shared, rank_id=7).exists([91], OPT) == CcResult(1, 1)


def test_keys_of_the_callers_own_are_kept_apart_by_tenant_and_model_alone(shared):
    kv = cache()
    value = [[KvBufferWrapper(kv[0][0].data_ptr(), 64)]]

    def loaded(access_id="a", model_id="m", rank_id=0):
        Ems.shutdown()
        config = CcConfig(rank_id=rank_id, device_id=0, model_id=model_id)
        Ems.init(EmsConfig(cc_config=config, access_id=access_id, pool=shared))
        return Ems.get_cc().load(OPT, ["k"], value).success

    assert loaded() == 0
    assert Ems.get_cc().save(OPT, [PrimaryKey("k")], value) == CcResult(1, 1)
    assert loaded(rank_id=3) == 1
    assert loaded(access_id="b") == 0
    assert loaded(model_id="n") == 0
    assert loaded() == 1


def test_keys_of_the_callers_own_never_meet_hashes(cc, kv):
    value = [[KvBufferWrapper(kv[0][0].data_ptr(), 64)]]
    assert cc.save(OPT, ["7"], value) == CcResult(1, 1)
    assert cc.exists([7], OPT) == CcResult(0, 1)
    assert cc.exists(["7"], OPT) == CcResult(0, 1)


# layer groups


def mixed_cache():
    """Return layers of full attention, of a window with smaller blocks, and of an indexer."""
    full = [[buf(8, seed=1), buf(8, seed=2)], [buf(8, seed=3), buf(8, seed=4)]]
    window = [[buf(12, shape=(2, 1, 16), dtype=torch.bfloat16, seed=5)]]
    indexer = [[torch.arange(6 * 8 * 4, device=DEV).to(torch.int8).reshape(6, 8, 1, 4)]]
    return [*full, *window, *indexer]


GROUPS = [
    StoreLayerGroupDesc(store_block_size=8, layer_ids=[0, 1]),
    StoreLayerGroupDesc(store_block_size=4, layer_ids=[2], window=4),
    StoreLayerGroupDesc(store_block_size=8, layer_ids=[3]),
]


def tokens_of(kv, layers, start, length):
    return [
        plane.reshape(-1, *plane.shape[2:])[start : start + length].cpu().clone()
        for layer in layers
        for plane in kv[layer]
    ]


def test_groups_of_other_block_sizes_head_sizes_and_dtypes_come_back_byte_for_byte(cc):
    kv = mixed_cache()
    cc.register_kvcache(kv, GROUPS)
    # the second hash has no chunk in the window; lengths and starts differ from group to group
    saved = [[(0, 8), (9, 5)], [None, ChunkDesc(3, 4)], [{"start_slot": 16, "length": 8}, (1, 3)]]
    into = [[(16, 8), (25, 5)], [None, ChunkDesc(13, 4)], [(32, 8), (41, 3)]]
    want = [
        tokens_of(kv, layers, *chunk)
        for layers, chunk in (
            ([0, 1], (0, 8)),
            ([0, 1], (9, 5)),
            ([2], (3, 4)),
            ([3], (16, 8)),
            ([3], (1, 3)),
        )
    ]
    before = [plane.cpu().clone() for layer in kv for plane in layer]
    assert cc.save(hashes=[1, 2], chunk_descs=saved, option=OPT) == CcResult(2, 2)
    assert cc.load(hashes=[1, 2], chunk_descs=into, option=OPT) == CcResult(2, 2)
    got = [
        tokens_of(kv, layers, *chunk)
        for layers, chunk in (
            ([0, 1], (16, 8)),
            ([0, 1], (25, 5)),
            ([2], (13, 4)),
            ([3], (32, 8)),
            ([3], (41, 3)),
        )
    ]
    assert all(same(a, b) for a, b in zip(got, want, strict=True))
    touched = {0: {*range(16, 24), *range(25, 30)}, 2: set(range(13, 17)), 3: {*range(32, 40)}}
    touched[1] = touched[0]
    touched[3] |= {41, 42, 43}
    for (layer, plane), old in zip(
        [(at, plane) for at, planes in enumerate(kv) for plane in planes], before, strict=True
    ):
        rows, old_rows = (each.reshape(-1, *each.shape[2:]).cpu() for each in (plane, old))
        others = [at for at in range(len(rows)) if at not in touched[layer]]
        assert torch.equal(rows[others], old_rows[others])


def test_groups_that_share_their_tensors_come_back_byte_for_byte(cc):
    # vLLM's hybrid cache: a full and a windowed layer in one buffer, in blocks of their own
    kv = cache(layers=1)
    cc.register_kvcache([kv[0], kv[0]], WINDOWED)
    full, window = [(0, BS), (2 * BS, BS)], [None, (5 * BS, BS)]
    want = [block(kv, at) for at in (0, 2, 5)]
    assert cc.save(hashes=[1, 2], chunk_descs=[full, window], option=OPT) == CcResult(2, 2)
    poison(kv, *range(16))
    full, window = [(7 * BS, BS), (4 * BS, BS)], [None, (9 * BS, BS)]
    assert cc.load(hashes=[1, 2], chunk_descs=[full, window], option=OPT) == CcResult(2, 2)
    assert all(same(block(kv, at), old) for at, old in zip((7, 4, 9), want, strict=True))
    with pytest.raises(EmsException, match="both name block 4"):
        cc.load(hashes=[1, 2], chunk_descs=[full, [None, (4 * BS, BS)]], option=OPT)


WINDOWED = [
    StoreLayerGroupDesc(store_block_size=BS, layer_ids=[0]),
    StoreLayerGroupDesc(store_block_size=BS, layer_ids=[1], window=BS),
]
FULL = [(BS * at, BS) for at in range(4)]


def remove(cc, group, value):
    prefix = cc._registered.key_prefixes[group]
    return cc._pool.remove(make_keys(prefix, [value]))


def test_a_prefix_counts_as_far_as_every_group_can_serve_it(cc):
    # case 29
    cc.register_kvcache(cache(), WINDOWED)
    hashes = [10, 11, 12, 13]
    window = [None, FULL[1], None, FULL[3]]
    assert cc.save(hashes=hashes, chunk_descs=[FULL, window], option=OPT) == CcResult(4, 4)
    assert cc.exists(hashes, OPT) == CcResult(4, 4)
    assert remove(cc, 1, 13) == 1
    assert cc.exists(hashes, OPT) == CcResult(2, 4)
    assert remove(cc, 0, 11) == 1
    assert cc.exists(hashes, OPT) == CcResult(0, 4)


@pytest.mark.parametrize("kept", [[], [0], [3], [0, 3], [1, 2], [0, 1, 2, 3]], ids=str)
def test_a_window_may_keep_any_of_the_hashes_also_none(cc, kept):
    # case 29
    kv = cache()
    cc.register_kvcache(kv, WINDOWED)
    hashes = [10, 11, 12, 13]
    served = max(kept, default=-1) + 1
    window = [FULL[at] if at in kept else None for at in range(4)]
    want = [block(kv, at) for at in range(4)]
    assert cc.save(hashes=hashes, chunk_descs=[FULL, window], option=OPT) == CcResult(served, 4)
    assert cc.exists(hashes, OPT) == CcResult(served, 4)
    to = [(BS * at, BS) for at in range(4, 8)]
    to_window = [to[at] if at in kept else None for at in range(4)]
    poison(kv, *range(4, 8))
    assert cc.load(hashes=hashes, chunk_descs=[to, to_window], option=OPT) == CcResult(served, 4)
    for at in range(4):
        full, windowed = block(kv, 4 + at)[:2], block(kv, 4 + at)[2:]
        assert same(full, want[at][:2]) == (at < served)
        assert same(windowed, want[at][2:]) == (at in kept)


def test_a_load_in_pieces_writes_nothing_behind_what_every_group_can_serve():
    # case 29; the pool passes two blocks at a time
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        cc = boot(pool=f"lmdb://{folder}/pool?capacity=8MiB&staging=64KiB")
        kv = cache(layers=2, blocks=16, shape=(BS, 8, 16))
        cc.register_kvcache(kv, WINDOWED)
        hashes = list(range(8))
        at_first, at_last = ([(BS * at, BS) for at in range(*ends)] for ends in ((8,), (8, 16)))
        saved = cc.save(hashes=hashes, chunk_descs=[at_first, at_first], option=OPT)
        assert saved == CcResult(8, 8)
        for lost in (5, 6, 7):
            assert remove(cc, 1, lost) == 1
        want = [block(kv, at) for at in range(8)]
        poison(kv, *range(8, 16))
        untouched = [block(kv, at) for at in range(8, 16)]
        loaded = cc.load(hashes=hashes, chunk_descs=[at_last, at_last], option=OPT)
        assert loaded == CcResult(5, 8)
        for at in range(8):
            assert same(block(kv, 8 + at), want[at] if at < loaded.success else untouched[at])
        fates = cc.counters()["load"]["hashes_by_fate"]
        assert (fates["done"], fates["absent"], fates["behind_a_miss"]) == (5, 1, 2)
        Ems.shutdown()


def test_a_load_stops_where_a_group_has_nothing_and_leaves_the_rest_alone(cc):
    # case 29
    kv = cache()
    cc.register_kvcache(kv, [StoreLayerGroupDesc(BS, [0]), StoreLayerGroupDesc(BS, [1])])
    want = [block(kv, at) for at in range(3)]
    assert cc.save(sl(0, 1, 2), [1, 2, 3], [BS] * 3, OPT) == CcResult(3, 3)
    assert remove(cc, 1, 2) == 1
    poison(kv, 4, 5, 6)
    untouched = block(kv, 5)
    assert cc.exists([1, 2, 3], OPT) == CcResult(1, 3)
    assert cc.load(sl(4, 5, 6), [1, 2, 3], [BS] * 3, OPT) == CcResult(1, 3)
    assert same(block(kv, 4), want[0])
    assert same(block(kv, 5), untouched)
    assert same(block(kv, 6), untouched)


def test_a_hash_is_done_only_once_every_group_has_it(cc):
    cc.register_kvcache(cache(), [StoreLayerGroupDesc(BS, [0]), StoreLayerGroupDesc(BS, [1])])
    cc.save(sl(0), [1], [BS], OPT)
    assert remove(cc, 0, 1) == 1
    assert cc.exists([1], OPT) == CcResult(0, 1)
    assert cc.save(sl(0), [1], [BS], OPT) == CcResult(1, 1)
    assert cc.exists([1], OPT) == CcResult(1, 1)


# layouts of real models


def test_layers_of_three_two_and_one_planes_keep_their_shapes_and_bytes(cc):
    # case 12, where the vendor's page says two and one or three are our extension
    nope, rope = buf(8, shape=(BS, 1, 16), seed=1), buf(8, shape=(BS, 1, 4), seed=2)
    index = torch.arange(8 * BS * 4, device=DEV).to(torch.int8).reshape(8, BS, 1, 4)
    kv = [[nope, rope, index], [nope.clone(), rope.clone()], [nope.clone()]]
    cc.register_kvcache(kv)
    assert cc.registration.token_nbytes * BS == (
        (4 * (16 + 4) * 2 + 4 * 4) + 4 * (16 + 4) * 2 + 4 * 16 * 2
    )
    want = block(kv, 1)
    assert cc.save(sl(1), [111], [BS], OPT) == CcResult(1, 1)
    assert cc.load(sl(5), [111], [BS], OPT) == CcResult(1, 1)
    assert same(block(kv, 5), want)
    said = " ".join(ContextCaching.register_kvcache.__doc__.split())
    assert "The SDK documents two planes (K and V); one or more" in said


def test_planes_that_cover_the_same_bytes_are_refused_by_name_or_moved_once(cc):
    # case 12
    raw = torch.zeros(8, BS, 1, 24, dtype=torch.float16, device=DEV)
    latent, rope = raw[..., :16].contiguous(), buf(8, shape=(BS, 1, 8))
    flat = latent.reshape(-1)
    over = flat[64:].reshape(-1)[: 7 * BS * 16].reshape(7, BS, 1, 16)
    with pytest.raises(EmsException, match=r"kvcache\[0\]\[2\] overlaps kvcache\[0\]\[0\]"):
        cc.register_kvcache([[latent, rope, over]])
    cc.register_kvcache([[latent, rope, latent]])
    before = counter("bytes_d2h")
    assert cc.save(sl(1), [1], [BS], OPT) == CcResult(1, 1)
    assert counter("bytes_d2h") - before == BS * (16 + 8) * 2


def test_uneven_stages_and_a_layer_for_several_predictions_keep_to_themselves(shared):
    # stages of 3 and 2 layers, the second with an MTP layer of another width behind it
    mtp = [buf(16, shape=(BS, 1, 16), seed=9)]
    stages = [cache(layers=3), [*cache(layers=2), mtp]]
    stage_fields = [{"pp_world_size": 2, "rank_in_pp_group": at} for at in range(2)]
    wants = []
    for kv, fields in zip(stages, stage_fields, strict=True):
        cc = rank(shared, kv, **fields)
        assert cc.exists([1], OPT) == CcResult(0, 1), "the other stage's bytes are not ours"
        assert cc.save(sl(2), [1], [BS], OPT) == CcResult(1, 1)
        wants.append(block(kv, 2))
        poison(kv, 2, 6)
    for kv, fields, want in zip(stages, stage_fields, wants, strict=True):
        cc = rank(shared, kv, **fields)
        assert cc.load(sl(6), [1], [BS], OPT) == CcResult(1, 1)
        assert same(block(kv, 6), want)
    without = rank(shared, stages[1][:2], **stage_fields[1])
    assert without.exists([1], OPT) == CcResult(0, 1), "without the MTP layer it is another layout"


def test_host_memory_of_several_saves_at_once_is_not_taken_twice(cc, kv):
    # case 13
    wants = [block(kv, at) for at in range(8)]
    with knobs(DELAY="copy_d2h=10000,copy_h2d=10000"):
        futures = [cc.async_save(sl(at), [120 + at], [BS], OPT) for at in range(8)]
        assert [future.result() for future in futures] == [CcResult(1, 1)] * 8
        loads = [cc.async_load(sl(8 + at), [120 + at], [BS], OPT) for at in range(8)]
        assert [load.result() for load in loads] == [CcResult(1, 1)] * 8
    assert all(same(block(kv, 8 + at), want) for at, want in enumerate(wants))


def test_a_prompt_that_is_stored_as_a_whole_is_reported_as_a_whole(cc):
    # case 54, where nothing is taken off for the last token
    cc.save(sl(0, 1), [51, 52], [BS] * 2, OPT)
    assert cc.exists([51, 52], OPT) == CcResult(2, 2)
    assert cc.load(sl(4, 5), [51, 52], [BS] * 2, OPT) == CcResult(2, 2)
    assert "compute the last token again" in " ".join(ContextCaching.load.__doc__.split())


def test_later_hashes_of_a_save_are_tried_though_earlier_ones_are_there(cc):
    # case 56, where a chain continues behind what was there; nothing prints chains
    cc.save(sl(0), [331], [BS], OPT)
    assert cc.save(sl(0, 1, 2), [331, 332, 333], [BS] * 3, OPT) == CcResult(3, 3)
    assert cc.exists([331, 332, 333], OPT) == CcResult(3, 3)


@pytest.mark.parametrize("write_rcache", [True, False], ids=["kept here", "not kept here"])
def test_the_options_of_a_tiered_pool_decide_what_is_kept_and_looked_for_here(
    tmp_path, write_rcache
):
    pool = f"tiered+lmdb://{tmp_path}/pool?capacity=16MiB&staging=16MiB&local=1MiB"
    cc = rank(pool)
    option = CcKvOption(write_rcache=write_rcache, timeout=60_000)
    here = CcKvOption(read_local_only=True, timeout=60_000)
    assert cc.save(sl(0), [1], [BS], option) == CcResult(1, 1)
    assert cc.exists([1], here) == CcResult(int(write_rcache), 1)
    assert cc.load(sl(5), [1], [BS], here) == CcResult(int(write_rcache), 1)
    assert cc.load(sl(5), [1], [BS], OPT) == CcResult(1, 1)
    assert cc.exists([1], here) == CcResult(1, 1), "what was read is kept"


# token ids in place of hashes


def test_token_ids_find_what_token_ids_saved_and_the_mask_leaves_out_its_prefix(cc, kv):
    tokens, slots = [101, 102, 103, 104, 105, 106], [0, 1, 2, 3, 4, 5]
    want = [plane.reshape(-1, 2, 8)[:6].cpu().clone() for layer in kv for plane in layer]
    assert cc.save(slots, token_ids=tokens, option=OPT) == CcResult(2, 2)
    poison(kv, 2, 3)
    mask = [0, 0, 0, 0, 1, 1]
    to = [8, 9, 10, 11, 12, 13]
    assert cc.load(to, token_ids=torch.tensor(tokens), mask=mask, option=OPT) == CcResult(1, 1)
    for plane, saved in zip(itertools.chain.from_iterable(kv), want, strict=True):
        rows = plane.reshape(-1, 2, 8).cpu()
        assert torch.equal(rows[12:14], saved[4:6])
        assert (rows[[8, 9, 10, 11, 14, 15]] == -9).all()
    assert cc.load(to, token_ids=tokens, option=OPT) == CcResult(2, 2)
    assert cc.load(to, token_ids=[0, *tokens[1:]], option=OPT) == CcResult(0, 2)
    assert cc.save(slots, token_ids=tokens, mask=[False] * 6, option=OPT) == CcResult(0, 0)


def test_hashes_in_the_memory_of_an_npu_are_refused_and_not_waited_for(cc):
    there = torch.ones(1, dtype=torch.int64, device=DEV)
    for call in (
        lambda: cc.save(sl(0), there, [BS], OPT),
        lambda: cc.exists(there, OPT),
        lambda: cc.save(sl(0), [1], there * BS, OPT),
    ):
        with pytest.raises(EmsException, match="must be in host memory"):
            call()
    assert cc.save(sl(0), there.cpu(), (there * BS).cpu(), OPT) == CcResult(1, 1)
    assert cc.exists([1], OPT) == CcResult(1, 1)


@pytest.mark.parametrize("name", ["slot_mapping", "token_ids", "mask"])
def test_a_list_in_the_memory_of_an_npu_is_refused_and_not_waited_for(cc, name):
    arguments = {"slot_mapping": [0, 1], "token_ids": [5, 6], "mask": [1, 1]}
    arguments[name] = torch.ones(2, dtype=torch.bool if name == "mask" else torch.int64).to(DEV)
    with pytest.raises(EmsException, match=f"{name} must be in host memory"):
        cc.save(**arguments, option=OPT)
