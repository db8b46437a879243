import pytest
from layout_examples import APART, dense, facts, k_and_v, layers

from ems.common.exception import InvalidArgument
from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.plane import BASE_FORMATS, FORMAT_NAMES
from ems.layout.registration import register

SHAPE = (8, 4, 2, 8)


def refusal(*arguments, **options):
    with pytest.raises(InvalidArgument) as failure:
        register(*arguments, **options)
    return str(failure.value)


def with_odd_one(**changes):
    """Return three layers of K and V; layer 1's V is made with `changes`."""
    kvcache = k_and_v(3)
    kvcache[1][1] = facts(**{"shape": SHAPE, "address": 1 << 45} | changes)
    return kvcache


def described(*groups):
    return [StoreLayerGroupDesc(size, ids) for size, ids in groups]


def test_an_everyday_cache_registers_without_a_warning():
    cache = register(k_and_v(2, (100, 128, 8, 128)), device_id=0)
    assert cache.warnings == ()
    assert cache.device_index == 0
    assert [[plane.name for plane in layer] for layer in cache.planes] == [
        ["layer 0 plane 0", "layer 0 plane 1"],
        ["layer 1 plane 0", "layer 1 plane 1"],
    ]
    (group,) = cache.groups
    assert group.planes == cache.planes[0] + cache.planes[1]
    assert (group.index, group.layer_ids, group.store_block_size) == (0, (0, 1), None)
    assert (group.block_size, group.num_blocks, group.num_slots) == (128, 100, 12_800)
    assert group.token_nbytes == cache.token_nbytes == 4 * 8 * 128 * 2
    assert group.plane_token_nbytes.tolist() == [2048] * 4
    assert group.plane_strides.tolist() == [128 * 2048] * 4
    assert group.plane_addresses.tolist() == [plane.address for plane in group.planes]


def test_planes_of_a_layer_may_differ_in_number_width_and_dtype():
    # DeepSeek with its indexer: nope, rope, indexer and scale
    kvcache = layers([(9, 128, 1, 512), (9, 128, 1, 64)], [(9, 128, 1, 512)])
    kvcache[0].append(facts((9, 128, 1, 128), address=1 << 45, dtype="int8"))
    kvcache[0].append(facts((9, 128, 1, 1), address=1 << 46))
    cache = register(kvcache)
    assert cache.groups[0].plane_token_nbytes.tolist() == [1024, 128, 128, 2, 1024]
    assert cache.warnings == ()


def test_three_dimensions_are_one_head():
    for strides in (None, (128 * 1024 + 64, 1024, 1)):
        (plane,) = register([[facts((9, 128, 1024), strides=strides)]]).groups[0].planes
        assert (plane.num_blocks, plane.block_size, plane.heads, plane.head_size) == (
            *(9, 128, 1, 1024),
        )
        assert plane.block_stride == 2 * (strides or dense((9, 128, 1024)))[0]


def test_padding_between_blocks_and_a_shifted_start_are_accepted():
    (plane,) = register([[facts(SHAPE, address=4100, strides=(100, 16, 8, 1))]]).planes[0]
    assert (plane.address, plane.block_stride, plane.block_nbytes) == (4100, 200, 128)
    assert plane.end == 4100 + 7 * 200 + 128


def test_strides_of_dimensions_of_one_element_mean_nothing():
    odd = facts((1, 1, 1, 8), strides=(0, 3, 77, 1))
    (plane,) = register([[odd]]).planes[0]
    assert plane.block_stride == plane.block_nbytes == 16


# refused tensors


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (
            {"shape": (2, 8, 4, 2, 8)},
            (
                "it has 5 dimensions instead of [num_blocks, block_size, heads, head_size] "
                "(pass K and V as two tensors)"
            ),
        ),
        ({"shape": (8, 4)}, "it has 2 dimensions instead of"),
        ({"shape": (8,)}, "it has 1 dimensions instead of"),
        ({"shape": (), "strides": ()}, "it has 0 dimensions instead of"),
        ({"shape": (0, 4, 2, 8)}, "it is empty"),
        ({"shape": (8, 4, 0, 8)}, "it is empty"),
        ({"shape": (8, 4, 0)}, "it is empty"),
        ({"npu_format": 29}, "its NPU format is FRACTAL_NZ"),
        ({"npu_format": 3}, "its NPU format is NC1HWC0"),
        ({"npu_format": 4}, "its NPU format is FRACTAL_Z"),
        ({"npu_format": 1}, "its NPU format is NHWC"),
        ({"npu_format": 32}, "its NPU format is NDC1HWC0"),
        ({"npu_format": 33}, "its NPU format is FRACTAL_Z_3D"),
        ({"npu_format": 51}, "its NPU format is number 51"),
        ({"npu_format": -1}, "its NPU format is number -1"),
        ({"strides": (64, 8, 32, 1)}, "the elements of one block are not dense in row-major order"),
        ({"strides": (128, 32, 16, 2)}, "not dense"),
        ({"strides": (160, 40, 20, 1)}, "not dense"),
        ({"strides": (80, 20, 8, 1)}, "not dense"),
        ({"strides": (64, 16, 0, 1)}, "not dense"),
        ({"strides": (64, 0, 8, 1)}, "not dense"),
        ({"strides": (64, 16, 8, 0)}, "not dense"),
        ({"shape": (8, 4, 16), "strides": (80, 20, 1)}, "not dense"),
        ({"shape": (8, 4, 16), "strides": (128, 32, 2)}, "not dense"),
        ({"strides": (0, 16, 8, 1)}, "its blocks overlap"),
        ({"strides": (63, 16, 8, 1)}, "its blocks overlap"),
        ({"strides": (16, 16, 8, 1)}, "its blocks overlap"),
        ({"address": 0}, "its addresses 0x0 to 0x400 are impossible"),
        ({"address": (1 << 63) - 1023}, "are impossible"),
    ],
    ids=str,
)
def test_a_tensor_that_cannot_be_copied_is_refused_by_layer_plane_shape_and_strides(
    changes, reason
):
    words = refusal(with_odd_one(**changes))
    assert words.startswith("kvcache[1][1] (layer 1 plane 1): ")
    assert reason in words
    tensor = facts(**{"shape": SHAPE} | changes)
    assert f"shape {list(tensor.shape)}, strides {list(tensor.strides)}, float16" in words


def test_the_formats_whose_bytes_lie_as_the_strides_say_are_accepted():
    for npu_format in (0, 2, 30):
        assert register(with_odd_one(npu_format=npu_format))
    assert {FORMAT_NAMES[each] for each in BASE_FORMATS} == {"NCHW", "ND", "NCDHW"}


def test_the_last_address_there_is_can_be_used():
    assert register(with_odd_one(address=(1 << 63) - 1024))


@pytest.mark.parametrize("device", ["cpu", "cuda:0", "meta"])
def test_a_tensor_that_is_not_on_an_npu_is_refused(device):
    words = refusal(with_odd_one(device=device))
    assert words == (
        f"kvcache[1][1] (layer 1 plane 1) is on device {device}; "
        "registered tensors must be on an NPU"
    )


def test_tensors_on_two_npus_are_refused():
    words = refusal(with_odd_one(device="npu:1"))
    assert words == (
        "kvcache[1][1] (layer 1 plane 1) is on npu:1, kvcache[0][0] on npu:0; "
        "one registration is one NPU"
    )


@pytest.mark.parametrize(
    ("kvcache", "words"),
    [
        ([], "kvcache is empty"),
        ([[]], "kvcache[0] (layer 0) has no tensors"),
        ([*k_and_v(2), []], "kvcache[2] (layer 2) has no tensors"),
    ],
    ids=["no layers", "one without tensors", "the last without tensors"],
)
def test_nothing_to_register_is_refused(kvcache, words):
    assert refusal(kvcache) == words


# tensors that share bytes


def test_planes_that_interleave_in_pages_are_accepted():
    page = {"strides": (160, 16, 8, 1)}
    k, v = (facts(SHAPE, address=4096 + place, **page) for place in (0, 128))
    assert register([[k, v]]).groups[0].planes[1].address == 4096 + 128


def test_tensors_that_overlap_in_part_are_refused_with_both_ranges():
    # three planes in front, so that the order of addresses is not the order of layers
    words = refusal(with_odd_one(address=k_and_v(3)[0][1].address - 1023))
    other, one = 2 * APART - 1023, 2 * APART
    assert words == (
        f"kvcache[1][1] overlaps kvcache[0][1]: {other:#x}–{other + 1024:#x} and "
        f"{one:#x}–{one + 1024:#x}; a tensor may be registered twice within one group, as a whole, "
        "and share blocks with other groups where a block id means the same bytes"
    )


def test_a_view_of_some_blocks_of_a_registered_tensor_is_refused():
    whole = k_and_v(1)[0][0]
    words = refusal([[whole, facts((3, *SHAPE[1:]), address=whole.address)]])
    assert words.startswith("kvcache[0][1] overlaps kvcache[0][0]: ")


def test_a_third_view_over_the_bytes_of_k_and_v_is_refused():
    # vllm-ascend: an indexer view that covers the bytes of two other planes
    k = facts((8, 4, 1, 8), address=4096, strides=(64, 8, 8, 1))
    v = facts((8, 4, 1, 8), address=4096 + 64, strides=(64, 8, 8, 1))
    both = facts((8, 4, 1, 16), address=4096)
    assert "kvcache[0][2] overlaps kvcache[0][" in refusal([[k, v, both]])


def test_a_tensor_registered_twice_is_moved_once_and_warned_about():
    kvcache = k_and_v(3)
    kvcache[1][0] = kvcache[0][0]
    kvcache[2][1] = kvcache[0][0]
    cache = register(kvcache)
    assert len(cache.groups[0].planes) == 4
    assert [len(layer) for layer in cache.planes] == [2, 2, 2]
    assert cache.token_nbytes == 4 * 32
    (warning,) = cache.warnings
    assert warning == (
        "group 0: layer 1 plane 0 is the same tensor as layer 0 plane 0; 2 repeated in all, "
        "each is moved once"
    )


def test_groups_may_share_tensors_as_those_of_a_hybrid_model_do_in_vllm():
    full, alone = k_and_v(2)
    cache = register([full, full, alone, full], described((4, [0]), (4, [1]), (4, [2]), (4, [3])))
    assert [group.space for group in cache.groups] == [0, 0, 2, 0]
    assert [len(group.planes) for group in cache.groups] == [2, 2, 2, 2]
    assert cache.warnings == ()


def test_groups_that_share_with_a_third_one_are_in_one_space():
    one, other = k_and_v(2)
    cache = register([one, other, [one[0], other[0]]], described((4, [0]), (4, [1]), (4, [2])))
    assert [group.space for group in cache.groups] == [0, 0, 0]


def test_groups_may_cut_the_same_blocks_into_other_tokens():
    wide, narrow = facts((8, 4, 1, 16)), facts((8, 8, 1, 8))
    cache = register([[wide], [narrow]], described((4, [0]), (8, [1])))
    assert [(group.block_size, group.space) for group in cache.groups] == [(4, 0), (8, 0)]


def test_groups_that_interleave_in_pages_share_nothing():
    page = {"strides": (160, 16, 8, 1)}
    one, other = (facts(SHAPE, address=4096 + place, **page) for place in (0, 128))
    cache = register([[one], [other]], described((4, [0]), (4, [1])))
    assert [group.space for group in cache.groups] == [0, 1]


@pytest.mark.parametrize(
    "its",
    [{"address": 4096 + 128}, {"shape": (16, 4, 1, 4), "address": 4096}],
    ids=["shifted", "smaller blocks"],
)
def test_groups_may_not_share_bytes_under_different_block_ids(its):
    kvcache = [[facts((8, 4, 1, 8), address=4096)], [facts(**{"shape": (8, 4, 1, 8)} | its)]]
    words = refusal(kvcache, described((4, [0]), (4, [1])))
    assert words.startswith("kvcache[1][0] overlaps kvcache[0][0]: ")


# block sizes and numbers of blocks


def test_blocks_of_different_sizes_in_one_group_are_refused():
    words = refusal(with_odd_one(shape=(8, 2, 2, 8)))
    assert words == (
        "kvcache[1][1] has blocks of 2 tokens, layer 0 plane 0 of 4; layers with different block "
        "sizes belong into different groups of store_layer_group_desc"
    )


def test_blocks_of_different_sizes_in_different_groups_are_accepted():
    cache = register(layers([SHAPE], [(8, 2, 2, 8)], [SHAPE]), described((8, [2, 0]), (2, [1])))
    assert [group.block_size for group in cache.groups] == [4, 2]
    assert [group.store_block_size for group in cache.groups] == [8, 2]
    assert [group.layer_ids for group in cache.groups] == [(2, 0), (1,)]
    assert [plane.layer for plane in cache.groups[0].planes] == [2, 0]
    assert cache.token_nbytes == 3 * 32
    assert cache.warnings == ()


def test_the_smallest_plane_limits_its_group_and_is_warned_about():
    cache = register(with_odd_one(shape=(5, 4, 2, 8)))
    assert cache.groups[0].num_blocks == 5
    (warning,) = cache.warnings
    assert warning == (
        "group 0: layer 0 plane 0 has 8 blocks, layer 1 plane 1 only 5; "
        "only the first 5 can be used"
    )


def test_groups_may_have_different_numbers_of_blocks():
    cache = register(layers([SHAPE], [(3, 4, 2, 8)]), described((4, [0]), (4, [1])))
    assert [group.num_blocks for group in cache.groups] == [8, 3]
    assert cache.warnings == ()


@pytest.mark.parametrize("device", ["npu:1", "npu:12"])
def test_another_device_than_the_configured_one_is_only_warned_about(device):
    index = int(device[4:])
    cache = register(k_and_v(device=device), device_id=0)
    assert cache.device_index == index
    assert cache.warnings == (f"the tensors are on npu:{index}, the configured device_id is 0",)
    assert register(k_and_v(device=device), device_id=index).warnings == ()
    assert register(k_and_v(device=device)).warnings == ()


# descriptions of layer groups


@pytest.mark.parametrize(
    ("descriptions", "words"),
    [
        ([], "store_layer_group_desc is empty"),
        (5, "store_layer_group_desc must be a list of StoreLayerGroupDesc, not 5"),
        ("ab", "store_layer_group_desc must be a list of StoreLayerGroupDesc, not 'ab'"),
        (StoreLayerGroupDesc(4, [0, 1, 2]), "must be a list of StoreLayerGroupDesc, not Store"),
        ([None], "store_layer_group_desc[0] must be a StoreLayerGroupDesc, not None"),
        ([(4, [0, 1, 2])], "store_layer_group_desc[0] must be a StoreLayerGroupDesc, not (4,"),
        *[
            (
                described((4, [0]), (bad, [1, 2])),
                f"store_layer_group_desc[1].store_block_size must be an int above 0, not {bad!r}",
            )
            for bad in (None, True, 0, -1, 4.0, "4")
        ],
        *[
            (
                described((4, [0]), (4, bad)),
                f"store_layer_group_desc[1].layer_ids must be a list of layers, not {bad!r}",
            )
            for bad in (None, True, 1, [], (), "12", {1, 2})
        ],
        *[
            (
                described((4, [0]), (4, [1, bad])),
                f"store_layer_group_desc[1].layer_ids[1] is {bad!r}; layers are 0 to 2",
            )
            for bad in (None, True, False, -1, 3, 2.0, "2", [2])
        ],
        (
            described((4, [0, 1]), (4, [2, 1])),
            (
                "store_layer_group_desc[1].layer_ids[1]: layer 1 is "
                "in store_layer_group_desc[0] already"
            ),
        ),
        (
            described((4, [0, 1, 2, 0])),
            (
                "store_layer_group_desc[0].layer_ids[3]: layer 0 is in "
                "store_layer_group_desc[0] already"
            ),
        ),
        (
            described((4, [0]), (4, [2])),
            (
                "store_layer_group_desc leaves out layer 1: the groups must "
                "cover all 3 layers (1 missing)"
            ),
        ),
        (described((4, [2])), "leaves out layer 0: the groups must cover all 3 layers (2 missing)"),
    ],
    ids=str,
)
def test_a_wrong_description_of_groups_is_refused_with_its_place(descriptions, words):
    assert words in refusal(k_and_v(3), descriptions)


def test_a_description_may_be_a_tuple_and_its_layers_a_range():
    cache = register(k_and_v(3), tuple(described((4, range(2)), (8, (2,)))))
    assert [group.layer_ids for group in cache.groups] == [(0, 1), (2,)]


# fingerprints


def fingerprint(kvcache, *descriptions):
    return register(kvcache, *descriptions).groups[0].fingerprint


@pytest.mark.parametrize(
    "other",
    [
        k_and_v(2, SHAPE, dtype="bfloat16"),
        k_and_v(2, SHAPE, dtype="int8"),
        k_and_v(2, (8, 4, 4, 4)),
        k_and_v(2, (8, 4, 1, 16)),
        k_and_v(2, (8, 4, 16)),
        k_and_v(2, (8, 4, 2, 4), dtype="float32"),
        k_and_v(2, (8, 8, 2, 8)),
        k_and_v(2, (8, 2, 2, 8)),
        k_and_v(3, SHAPE),
        k_and_v(1, SHAPE),
        layers([SHAPE], [SHAPE]),
        layers([SHAPE] * 4),
        layers([SHAPE] * 3, [SHAPE]),
        [[one := facts(SHAPE), one], k_and_v(2)[1]],
    ],
    ids=[
        "bf16",
        "int8",
        "4 heads",
        "1 head",
        "3-D",
        "float32",
        "blocks of 8",
        "blocks of 2",
        "3 layers",
        "1 layer",
        "1 plane",
        "1 layer of 4",
        "3 + 1 planes",
        "shared",
    ],
)
def test_another_meaning_of_the_bytes_is_another_fingerprint(other):
    assert fingerprint(other) != fingerprint(k_and_v(2, SHAPE))


def test_the_order_of_planes_and_of_layers_is_part_of_the_fingerprint():
    nope, rope = (8, 4, 1, 16), (8, 4, 1, 4)
    made = [
        layers([nope, rope], [nope]),
        layers([rope, nope], [nope]),
        layers([nope], [nope, rope]),
    ]
    assert len({fingerprint(kvcache) for kvcache in made}) == 3
    assert fingerprint(k_and_v(2), described((4, [0, 1]))) != fingerprint(
        k_and_v(2), described((4, [1, 0]))
    )


def test_which_layers_a_group_has_is_part_of_its_fingerprint():
    first, second = register(k_and_v(2), described((4, [0]), (4, [1]))).groups
    assert first.fingerprint != second.fingerprint


def test_what_tensors_share_is_part_of_the_fingerprint():
    a, b, c = (facts(SHAPE, address=1 << n) for n in (30, 31, 32))
    made = [[[a, b], [a, c]], [[a, b], [b, c]], [[a, b], [c, a]], [[a, a], [b, c]]]
    assert len({fingerprint(kvcache) for kvcache in made}) == 4


@pytest.mark.parametrize(
    "other",
    [
        [layer[:] for layer in reversed(k_and_v(2))],
        k_and_v(2, (100, 4, 2, 8)),
        k_and_v(2, device="npu:7"),
        k_and_v(2, npu_format=0),
        k_and_v(2, strides=(100, 16, 8, 1)),
    ],
    ids=["addresses", "blocks", "device", "NCHW", "padding"],
)
def test_where_the_bytes_are_is_no_part_of_the_fingerprint(other):
    assert fingerprint(other) == fingerprint(k_and_v(2))


def test_the_fingerprint_of_a_known_layout_stays_as_it_is():
    # what was stored by an earlier version is found, or the layout's version must grow
    assert fingerprint(k_and_v(2)) == "8a9bd3f7710bff02c90492d691c1bb77"
