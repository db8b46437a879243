"""Case 5: a shape that can be read in two ways is pointed out, one that cannot is left alone."""

import pytest
from layout_examples import facts, layers

from ems.layout.ambiguity import documented_reading, other_readings
from ems.layout.registration import register


def names(shape):
    return [reading.name for reading in other_readings(shape)]


@pytest.mark.parametrize("blocks", [3, 16, 128, 1000, 1024, 40_000])
@pytest.mark.parametrize(
    "block",
    [
        *[(size, 8, 128) for size in (16, 32, 64, 128, 256, 512, 1024)],
        *[(128, heads, 128) for heads in (1, 2, 4, 5, 8, 10, 16, 20, 32, 40, 64)],
        *[(16, heads, 128) for heads in (1, 2, 4, 8, 12, 16, 20, 32, 40)],  # 32: Llama-2-7B
        *[(64, heads, size) for heads in (1, 4, 8, 32) for size in (64, 96, 256)],
        *[(128, 1, size) for size in (512, 64, 576, 128, 1)],  # MLA, its indexer and scale
        *[(64, 1, size) for size in (512, 64, 576)],
        *[(16, 1, size) for size in (512, 64, 576)],
        *[(128, 1, width) for width in (1024, 4096)],  # heads fused into one
        *[(272, 2, 256), (528, 4, 128), (2096, 16, 128)],  # hybrid models' pages
        *[(128, 8, 32), (128, 12, 64)],  # small models
    ],
    ids=str,
)
def test_the_shapes_of_everyday_models_are_not_pointed_out(blocks, block):
    assert names((blocks, *block)) == []


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        # heads before tokens
        ((1000, 8, 128, 128), ["HND"]),
        ((1000, 8, 16, 128), ["HND"]),
        ((1000, 1, 16, 128), ["HND"]),
        ((1000, 1, 128, 512), ["HND"]),
        ((1000, 4, 64, 256), ["HND"]),
        ((1000, 40, 128, 128), ["HND"]),
        ((1000, 16, 128, 128), ["HND"]),
        ((1000, 32, 128, 128), ["HND"]),
        ((1000, 16, 64, 128), ["HND"]),
        ((1000, 64, 128, 128), ["HND"]),
        # K and V in one page, or two heads
        ((1000, 2, 16, 256), ["HND", "fused"]),
        ((1000, 2, 128, 1024), ["HND", "fused"]),
        # 16 wide, or 32 where an element is a byte
        ((1000, 64, 128, 16), ["FRACTAL_NZ"]),
        ((1000, 32, 128, 16), ["FRACTAL_NZ"]),
        ((1000, 4, 128, 16), ["FRACTAL_NZ"]),
        ((1000, 8, 16, 16), ["FRACTAL_NZ"]),
        ((1000, 16, 128, 32), ["HND", "FRACTAL_NZ"]),
        # K and V first
        ((2, 1000, 128, 1024), ["fused"]),
        ((2, 1000, 16, 1024), ["fused"]),
        ((2, 1024, 128, 1024), ["fused"]),
        ((2, 512, 16, 4096), ["fused"]),
        ((2, 40_000, 4, 64), ["fused"]),
    ],
    ids=str,
)
def test_shapes_that_fit_another_layout_are_pointed_out(shape, wanted):
    assert names(shape) == wanted


def test_readings_say_what_each_number_would_be():
    assert str(documented_reading((8, 2, 4, 8))) == "ND 8 blocks × 2 tokens × 4 heads × 8"
    texts = [str(reading) for reading in other_readings((9, 8, 128, 64))]
    assert texts == ["HND 9 blocks × 8 heads × 128 tokens × 64"]
    texts = [str(reading) for reading in other_readings((9, 64, 128, 16))]
    assert texts == ["FRACTAL_NZ 9 blocks × 1024 wide in 16s × 128 tokens"]
    texts = [str(reading) for reading in other_readings((2, 9, 128, 64))]
    assert texts == [
        "HND 2 blocks × 9 heads × 128 tokens × 64",
        "fused K and V × 9 blocks × 128 tokens × 64",
    ]
    texts = [str(reading) for reading in other_readings((9, 2, 128, 64))]
    assert texts[1] == "fused 9 blocks × K and V × 128 tokens × 64"


def test_a_registration_warns_once_of_a_shape_and_names_its_first_tensor():
    kvcache = layers([(9, 8, 1, 64)] * 2, *[[(9, 8, 128, 64)] * 2] * 3)
    (warning,) = register(kvcache[1:]).warnings
    assert warning == (
        "layer 0 plane 0: read as ND 9 blocks × 8 tokens × 128 heads × 64; "
        "its shape also fits HND 9 blocks × 8 heads × 128 tokens × 64"
    )
    (warning,) = register(kvcache).warnings
    assert warning.startswith("layer 1 plane 0: read as")


def test_two_shapes_are_two_warnings():
    first, second = register(layers([(9, 8, 128, 64), (9, 8, 128, 96)])).warnings
    assert first.startswith("layer 0 plane 0:")
    assert second.startswith("layer 0 plane 1:")


def test_three_dimensions_leave_nothing_to_mistake():
    assert register([[facts((9, 128, 1024))]]).warnings == ()
    assert register([[facts((2, 100, 512))]]).warnings == ()
