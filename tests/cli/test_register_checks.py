from dataclasses import replace

import pytest

from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.plane import TensorFacts
from ems_cli.diagnostics.check import Verdict, worst
from ems_cli.diagnostics.layout_checks import layout_checks

MIB = 1 << 20
GOOD = TensorFacts("npu:0", "float16", 2, (64, 128, 8, 128), (131072, 1024, 128, 1), 1 << 40)


def cache(layers=2):
    """Layers of K and V, each tensor behind the other."""
    return [
        [replace(GOOD, address=GOOD.address + (layer * 2 + plane) * 16 * MIB) for plane in range(2)]
        for layer in range(layers)
    ]


def checks_of(kvcache, **options):
    return {check.name: check for check in layout_checks(kvcache, device=0, **options)}


def broken(**changes):
    """A cache whose layer 1 plane 0 differs in `changes`."""
    kvcache = cache()
    kvcache[1][0] = replace(kvcache[1][0], **changes)
    return kvcache


def test_a_usual_cache_passes_every_check():
    checks = checks_of(cache())
    assert len(checks) == 14
    assert {check.verdict for check in checks.values()} == {Verdict.PASS}
    assert not any(check.fix for check in checks.values())


@pytest.mark.parametrize(
    ("name", "changes", "verdict", "found"),
    [
        ("device", {"device": "npu:1"}, Verdict.FAIL, "layer 1 plane 0 on npu:1"),
        ("device", {"device": "cpu"}, Verdict.FAIL, "layer 1 plane 0 on cpu"),
        (
            "dimensions",
            {"shape": (2, 64, 128, 8, 128), "strides": (8388608, 131072, 1024, 128, 1)},
            Verdict.FAIL,
            "layer 1 plane 0: 5 dimensions, [2, 64, 128, 8, 128]",
        ),
        (
            "dimensions",
            {"shape": (64, 0, 8, 128)},
            Verdict.FAIL,
            "layer 1 plane 0: empty, [64, 0, 8, 128]",
        ),
        (
            "dense rows",
            {"strides": (131072, 128, 16384, 1)},
            Verdict.FAIL,
            "layer 1 plane 0: strides [131072, 128, 16384, 1] of shape [64, 128, 8, 128]",
        ),
        (
            "block stride",
            {"strides": (65536, 1024, 128, 1)},
            Verdict.FAIL,
            "layer 1 plane 0: blocks of 262144 B every 131072 B overlap",
        ),
        ("format", {"npu_format": 29}, Verdict.FAIL, "layer 1 plane 0: FRACTAL_NZ"),
        ("element type", {"dtype": "int64"}, Verdict.WARN, "layer 1 plane 0: int64 is unusual"),
        (
            "512 B alignment",
            {"address": (1 << 40) + 32 * MIB + 64},
            Verdict.WARN,
            "layer 1 plane 0: starts at 0x10002000040, 64 B off",
        ),
        (
            "2 MiB alignment",
            {"address": (1 << 40) + 64 * MIB + 512},
            Verdict.WARN,
            "layer 1 plane 0: starts 512 B behind a boundary",
        ),
        ("addresses", {"address": 0}, Verdict.FAIL, "layer 1 plane 0: 0x0 to 0x1000000"),
        (
            "block size",
            {"shape": (64, 64, 16, 128), "strides": (131072, 2048, 128, 1)},
            Verdict.FAIL,
            "layer 1 plane 0 has 64 tokens, layer 0 plane 0 128",
        ),
        (
            "block count",
            {"shape": (32, 128, 8, 128)},
            Verdict.WARN,
            "32 to 64; layer 1 plane 0 has the fewest",
        ),
        (
            "overlap",
            {"address": (1 << 40) + 8 * MIB},
            Verdict.FAIL,
            (
                "layer 1 plane 0 (0x10000800000-0x10001800000) and "
                "layer 0 plane 0 (0x10000000000-0x10001000000)"
            ),
        ),
        (
            "reading",
            {"shape": (64, 8, 128, 128), "strides": (131072, 16384, 128, 1)},
            Verdict.WARN,
            "[64, 8, 128, 128] is read as ND; also fits HND",
        ),
    ],
)
def test_a_broken_tensor_is_found_with_its_place_and_a_fix(name, changes, verdict, found):
    check = checks_of(broken(**changes))[name]
    assert (check.verdict, check.found) == (verdict, found)
    assert check.wanted
    assert check.fix


def test_many_alike_are_told_once_and_counted():
    kvcache = [[replace(facts, npu_format=29) for facts in layer] for layer in cache()]
    assert checks_of(kvcache)["format"].found == "layer 0 plane 0: FRACTAL_NZ; and 3 more"


def test_a_cache_as_a_whole_on_another_npu_is_only_warned_about():
    kvcache = [[replace(facts, device="npu:3") for facts in layer] for layer in cache()]
    check = checks_of(kvcache)["device"]
    assert (check.verdict, check.found) == (Verdict.WARN, "layer 0 plane 0 on npu:3; and 3 more")


def test_a_fused_tensor_of_three_dimensions_passes():
    facts = replace(GOOD, shape=(64, 128, 576), strides=(73728, 576, 1))
    checks = checks_of([[facts]])
    assert (checks["dimensions"].found, checks["dimensions"].verdict) == ("3-D", Verdict.PASS)


def test_padding_between_blocks_is_told():
    facts = replace(GOOD, strides=(131072 + 256, 1024, 128, 1))
    check = checks_of([[facts]])["block stride"]
    assert (check.verdict, check.found) == (Verdict.PASS, "262656 B (512 B padding)")


def test_a_plane_beyond_4_gib_needs_64_bit_offsets_and_has_them():
    facts = replace(GOOD, shape=(20_000, 128, 8, 128))
    check = checks_of([[facts]])["addresses"]
    assert (check.verdict, check.found) == (Verdict.PASS, "offsets beyond 32 bits")


def test_a_tensor_that_is_registered_twice_does_not_overlap_itself():
    check = checks_of([[GOOD, GOOD]])["overlap"]
    assert (check.verdict, check.found) == (Verdict.PASS, "none; 1 tensors registered again")


@pytest.mark.parametrize(
    ("shape", "verdict", "found"),
    [
        ((64, 128, 8, 128), Verdict.PASS, "none; 1 tensors registered again"),
        (
            (64, 128, 8, 64),
            Verdict.PASS,
            "1 pairs of tensors, block by block, of different groups",
        ),
        (
            (128, 64, 8, 128),
            Verdict.FAIL,
            (
                "layer 1 plane 0 (0x10000000000-0x10001000000) and "
                "layer 0 plane 0 (0x10000000000-0x10001000000)"
            ),
        ),
    ],
    ids=["the same", "a part of each block", "smaller blocks"],
)
def test_groups_may_share_memory_block_by_block(shape, verdict, found):
    _, tokens, heads, size = shape
    strides = (tokens * heads * 128, heads * size, size, 1)
    groups = [StoreLayerGroupDesc(128, [0]), StoreLayerGroupDesc(128, [1])]
    kvcache = [[GOOD], [replace(GOOD, shape=shape, strides=strides)]]
    check = checks_of(kvcache, groups=groups)["overlap"]
    assert (check.verdict, check.found) == (verdict, found)


def test_groups_must_cover_every_layer_once():
    described = [StoreLayerGroupDesc(128, [0])]
    check = checks_of(cache(), groups=described)["groups"]
    assert check.verdict is Verdict.FAIL
    assert "leaves out layer 1" in check.found


def test_other_block_sizes_are_right_in_groups_of_their_own():
    kvcache = broken(shape=(64, 64, 16, 128), strides=(131072, 2048, 128, 1))
    kvcache[1][1] = replace(kvcache[1][1], shape=(64, 64, 16, 128), strides=(131072, 2048, 128, 1))
    described = [StoreLayerGroupDesc(128, [0]), StoreLayerGroupDesc(64, [1])]
    checks = checks_of(kvcache, groups=described)
    assert checks["block size"].verdict is Verdict.PASS
    assert checks["block size"].found == "128 tokens, 64 tokens"
    assert checks["groups"].found == "2: layers [0], [1]"


def test_a_cache_without_tensors_fails():
    assert [check.name for check in layout_checks([], device=0)] == ["tensors"]
    assert worst(layout_checks([], device=0)) is Verdict.FAIL


def test_the_worst_verdict_of_no_checks_is_a_pass():
    assert worst([]) is Verdict.PASS
