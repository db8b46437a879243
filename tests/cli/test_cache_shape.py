import pytest
from hypothesis import given
from hypothesis import strategies as st

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.parallel import Parallel
from ems_cli.diagnostics.shape import (
    MODEST_NBYTES,
    LayerShape,
    PlaneShape,
    layers_text,
    modest_blocks,
    summary_of,
)
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of, shapes_on


def stages(layers, pp):
    return [len(Parallel(1, pp, rank).layers_of(layers)) for rank in range(pp)]


def test_without_any_option_there_are_32_layers_of_8_heads_in_blocks_of_128():
    shape = shape_of(ShapeRequest())
    assert [layer.index for layer in shape.layers] == list(range(32))
    assert shape.layers[0].planes == (
        PlaneShape("K", 8, 128, "float16"),
        PlaneShape("V", 8, 128, "float16"),
    )
    assert (shape.block_size, shape.kvcache_type) == (128, "GQA")


def test_bytes_follow_from_the_planes():
    request = ShapeRequest(
        layers=3, heads=2, head_size=4, dtype="float32", block_size=16, blocks=10
    )
    summary = summary_of(shape_of(request))
    assert summary.token_nbytes == 3 * 2 * 2 * 4 * 4
    assert summary.block_nbytes == summary.token_nbytes * 16
    assert summary.nbytes == summary.block_nbytes * 10
    assert summary.num_tokens == 160


def test_the_default_number_of_blocks_takes_one_gibibyte_and_says_so():
    shape = shape_of(ShapeRequest())
    assert (shape.num_blocks, shape.nbytes) == (64, 1 << 30)
    assert shape.notes == ("64 blocks chosen, 1.00 GiB per device; --blocks sets another number",)


def test_a_number_of_blocks_from_the_caller_needs_no_word():
    assert shape_of(ShapeRequest(blocks=5)).notes == ()


@given(st.integers(1, 1 << 40))
def test_the_default_number_of_blocks_is_modest_but_enough_for_a_round_trip(block_nbytes):
    blocks, _ = modest_blocks(block_nbytes)
    assert 4 <= blocks <= 256
    assert blocks == 4 or blocks * block_nbytes <= MODEST_NBYTES


def test_one_head_is_mqa():
    assert shape_of(ShapeRequest(heads=1)).kvcache_type == "MQA"


@pytest.mark.parametrize(
    ("text", "dtype"), [("bf16", "bfloat16"), ("torch.float16", "float16"), ("INT8", "int8")]
)
def test_a_dtype_may_have_its_short_name(text, dtype):
    assert shape_of(ShapeRequest(dtype=text)).layers[0].planes[0].dtype == dtype


def test_a_dtype_that_no_cache_has_is_refused_with_the_known_ones():
    with pytest.raises(BadInput, match=r"'fp4' is not an element type .* bfloat16, float16"):
        shape_of(ShapeRequest(dtype="fp4"))


def test_heads_are_dealt_out_over_the_ranks():
    assert shape_of(ShapeRequest(heads=8, tp=4)).layers[0].planes[0].heads == 2


def test_fewer_heads_than_ranks_are_replicated():
    shape = shape_of(ShapeRequest(heads=2, tp=8, rank=7))
    assert shape.layers[0].planes[0].heads == 1
    assert shape.ranks_with_the_same_bytes == 4


@pytest.mark.parametrize(("heads", "tp"), [(8, 3), (8, 12), (3, 2), (2, 3)])
def test_ranks_that_cannot_share_the_heads_evenly_are_refused(heads, tp):
    with pytest.raises(BadInput, match=f"{tp} ranks cannot share {heads} KV heads") as caught:
        shape_of(ShapeRequest(heads=heads, tp=tp))
    assert caught.value.option == "--tp"


def test_the_global_rank_counts_the_ranks_of_a_stage_first():
    parallel = Parallel(tp=4, pp=2, rank=6)
    assert (parallel.tp_rank, parallel.pp_rank, parallel.is_last_stage) == (2, 1, True)


@pytest.mark.parametrize("rank", [8, -1])
def test_a_rank_that_does_not_exist_is_refused(rank):
    with pytest.raises(BadInput, match=f"rank {rank} does not exist .*; 0 to 7"):
        Parallel(tp=4, pp=2, rank=rank)


@pytest.mark.parametrize(
    ("layers", "pp", "expected"),
    [
        (61, 4, [15, 15, 16, 15]),
        (61, 2, [31, 30]),
        (62, 4, [15, 16, 16, 15]),
        (63, 4, [16, 16, 16, 15]),
        (5, 5, [1, 1, 1, 1, 1]),
    ],
)
def test_left_over_layers_go_before_the_last_stage_backwards(layers, pp, expected):
    assert stages(layers, pp) == expected


@given(st.integers(1, 300), st.integers(1, 40))
def test_every_layer_is_held_by_exactly_one_stage(layers, pp):
    if pp > layers:
        with pytest.raises(BadInput, match=f"{pp} stages cannot share {layers} layers"):
            Parallel(1, pp).layers_of(layers)
        return
    held = [layer for rank in range(pp) for layer in Parallel(1, pp, rank).layers_of(layers)]
    assert held == list(range(layers))
    assert max(stages(layers, pp)) - min(stages(layers, pp)) <= 1


def test_a_stage_holds_its_own_layers_only():
    shape = shape_of(ShapeRequest(layers=8, pp=2, rank=1))
    assert [layer.index for layer in shape.layers] == [4, 5, 6, 7]
    assert shape.model_layers == 8


def test_devices_hold_the_ranks_from_the_given_one_on():
    shapes = shapes_on(ShapeRequest(tp=2, pp=2, rank=1), 3)
    assert [shape.parallel.rank for shape in shapes] == [1, 2, 3]


def test_more_devices_than_ranks_are_refused():
    with pytest.raises(BadInput, match="rank 2 does not exist"):
        shapes_on(ShapeRequest(tp=2), 3)


def test_without_tp_and_pp_every_device_holds_the_whole_model():
    assert [len(shape.layers) for shape in shapes_on(ShapeRequest(), 3)] == [32, 32, 32]


def test_layers_that_look_alike_are_one_group():
    shape = shape_of(ShapeRequest(layers=3))
    assert [group.layers for group in shape.groups] == [(0, 1, 2)]


@pytest.mark.parametrize(
    ("layers", "text"),
    [
        ([], ""),
        ([4], "4"),
        ([0, 1, 2], "0-2"),
        ([0, 1, 3, 5, 6], "0-1, 3, 5-6"),
        ([3, 7, 11], "3-11 step 4"),
        ([2, 9], "2, 9"),
    ],
)
def test_layer_numbers_are_written_as_people_do(layers, text):
    assert layers_text(layers) == text


def test_planes_of_one_layer_may_differ_in_type():
    planes = (PlaneShape("latent", 1, 512, "int8"), PlaneShape("rope", 1, 64, "bfloat16"))
    assert LayerShape(0, planes).token_nbytes == 512 + 128


def test_mtp_layers_belong_to_a_model():
    with pytest.raises(BadInput, match="only a --model has MTP layers"):
        shape_of(ShapeRequest(mtp=True))
