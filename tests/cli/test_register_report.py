from dataclasses import replace

import pytest
from printing import golden, printed

from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.plane import Plane, TensorFacts
from ems.layout.registration import register as register_layout
from ems_cli.diagnostics.block_map import MIXED, block_map
from ems_cli.diagnostics.block_sizes import block_sizes
from ems_cli.diagnostics.check import Check, Verdict, passed
from ems_cli.diagnostics.readings import readings_of
from ems_cli.diagnostics.register import (
    DeviceRegistration,
    RegisterReport,
    Zoom,
    report_of,
    tensor_layouts,
)
from ems_cli.diagnostics.shape import summary_of
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of
from ems_cli.render.as_json import report_json
from ems_cli.render.register import register_text

MIB = 1 << 20
START = 0x100000000000
SHAPE = shape_of(ShapeRequest(layers=5, blocks=64))


def planes(shape=SHAPE, step=20 * MIB, stride=262144):
    for place, (layer, plane) in enumerate(
        (layer.index, plane) for layer in shape.layers for plane in (0, 1)
    ):
        address = START + place * step
        name = "KV"[plane]
        yield Plane(layer, plane, address, 64, 128, 8, 128, "float16", 2, stride), name


def facts_of(plane, device="npu:0"):
    strides = (plane.block_stride // 2, 1024, 128, 1)
    return TensorFacts(device, "float16", 2, (64, 128, 8, 128), strides, plane.address, 0)


def registered(device="npu:0", **changes):
    found = [plane for plane, _ in planes()]
    kvcache = [[facts_of(found[at]), facts_of(found[at + 1])] for at in range(0, len(found), 2)]
    checks = (
        passed("device", device, "all on one NPU"),
        Check(
            "2 MiB alignment",
            Verdict.WARN,
            "layer 0 plane 1: starts 512 B behind a boundary; and 4 more",
            "tensors start on 2 MiB",
            "only transports that register device memory need it: allocate 2 MiB more and slice",
        ),
    )
    made = DeviceRegistration(
        device,
        "Ascend910B2",
        64 << 30,
        63 << 30,
        summary_of(SHAPE),
        tensor_layouts(kvcache, SHAPE),
        block_map(planes()),
        readings_of(kvcache),
        block_sizes(register_layout(kvcache)),
        checks,
        None,
        ("group 0: something to look at",),
        0.0012,
        0.0123,
    )
    return replace(made, **changes)


def report(*devices, zoom=None):
    made = report_of(devices, simulated=True, zoom=zoom)
    return replace(made, versions={"ems": "1", "torch": "2", "torch_npu": "2"})


def test_the_map_tells_blocks_padding_and_gaps_apart():
    found = block_map(planes(stride=262144 + 4096))
    assert found.tensor_nbytes == 10 * 16 * MIB
    assert found.padding_nbytes == 10 * 63 * 4096
    assert found.gap_nbytes == 9 * (4 * MIB - 63 * 4096)


def test_the_picture_has_a_character_for_each_stretch_of_memory():
    found = block_map(list(planes())[:2])
    (picture,) = found.pictures
    assert picture.start == START
    assert picture.cell_nbytes * len(picture.cells) >= picture.end - picture.start
    assert picture.cells.replace("0", "K").replace("1", "V") == "K" * 114 + "." * 28 + "V" * 114


def test_tensors_far_apart_are_drawn_apart():
    near, far = list(planes())[:2]
    moved = (replace(far[0], address=START + (1 << 38)), "V")
    found = block_map([near, moved])
    assert [picture.start for picture in found.pictures] == [START, START + (1 << 38)]
    assert found.gap_nbytes == 0


def interleaved(pages, page=524288, tail=0):
    """K and V of one layer, block by block in turns, with `tail` bytes behind each pair."""
    for index, name in enumerate("KV"):
        address = START + index * 262144
        yield Plane(0, index, address, pages, 128, 8, 128, "float16", 2, page + tail), name


def test_planes_that_share_pages_have_no_padding_between_their_blocks():
    found = block_map(interleaved(64))
    assert (found.padding_nbytes, found.gap_nbytes) == (0, 0)
    assert block_map(interleaved(64, tail=4096)).padding_nbytes == 63 * 4096


def test_cells_of_whole_pages_are_marked_as_shared():
    (picture,) = block_map(interleaved(1024)).pictures
    assert set(picture.cells) == {MIXED}


def test_the_first_two_pages_are_drawn_apart():
    (page,) = block_map(interleaved(64, tail=524288)).pages
    assert page.cells == 2 * ("0" * 8 + "1" * 8 + "." * 16)
    assert block_map(planes()).pages == ()


def test_a_place_tells_how_much_of_a_stretch_is_its_own():
    place = block_map(interleaved(2)).places[0]
    assert place.within(START, START + 524288) == 262144
    assert place.within(START + 262144, START + 524288) == 0
    assert place.within(START + 262143, START + 524289) == 2
    assert place.within(START, START + (1 << 30)) == 2 * 262144


def shaped(*shape):
    return TensorFacts("npu:0", "float16", 2, shape, (1,) * len(shape), START, 0)


def test_every_reading_that_fits_a_shape_is_told_once():
    found = readings_of([[shaped(16, 2, 16, 128), shaped(16, 2, 16, 128)], [shaped(8, 128, 8, 64)]])
    assert [(one.first, one.tensors, len(one.others)) for one in found] == [
        ("layer 0 plane 0", 2, 2),
        ("layer 1 plane 0", 1, 0),
    ]
    assert [one.reading.split()[0] for one in found[0].others] == ["HND", "fused"]
    assert "heads where tokens belong" in found[0].others[0].if_so


def test_the_block_sizes_say_what_a_group_stores():
    kvcache = [[facts_of(plane)] for plane, _ in list(planes())[:2]]
    groups = [StoreLayerGroupDesc(128, [0]), StoreLayerGroupDesc(64, [1], 1024)]
    found = block_sizes(register_layout(kvcache, groups))
    assert [(one.name, one.tokens) for one in found] == [
        ("kernel", "128"),
        ("engine", "128 × n"),
        ("hash", "offsets[i]"),
        ("store", "128"),
        ("store", "64"),
    ]
    assert found[4].meaning == (
        "layers 1: most tokens kept under one hash, less than a block: whole blocks are refused; "
        "a window of 1024 tokens is enough"
    )


def test_a_place_gives_the_address_of_a_slot():
    place = block_map(planes()).places[0]
    assert place.block(5) == START + 5 * 262144
    assert place.slot(300) == START + 2 * 262144 + 44 * 2048


def test_alike_tensors_are_one_layout():
    assert [(one.name, one.layers, one.tensors) for one in registered().layouts] == [
        ("K", "0-4", 5),
        ("V", "0-4", 5),
    ]
    assert registered().layouts[0].npu_format == "ND"  # which torch_npu calls NCHW


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("register.txt", report(registered(), zoom=Zoom(2, 44, 300, whole_block=False))),
        (
            "register_two.txt",
            report(registered(), registered("npu:3"), zoom=Zoom(2, 0, 256, whole_block=True)),
        ),
        (
            "register_refused.txt",
            report(
                registered(
                    block_map=None,
                    block_sizes=(),
                    refusal="kvcache[1][0] (layer 1 plane 0): its blocks overlap",
                    warnings=(),
                    layout_seconds=None,
                    register_seconds=None,
                )
            ),
        ),
    ],
)
def test_the_report_looks_like_this_at_80_columns(name, made):
    assert printed(register_text(made)) == golden(name)


def test_details_show_every_check_and_layer():
    assert printed(register_text(report(registered()), details=True)) == golden(
        "register_details.txt"
    )


def test_an_ambiguous_shape_lists_its_readings():
    found = readings_of([[shaped(16, 2, 16, 128)]])
    text = printed(register_text(report(registered(readings=found))))
    assert text == golden("register_ambiguous.txt")


def test_a_refused_cache_is_a_failure_whatever_the_checks_say():
    assert report(registered()).verdict is Verdict.WARN
    assert report(registered(refusal="its blocks overlap")).verdict is Verdict.FAIL


def test_json_has_the_label_and_every_address():
    text = report_json(report(registered()))
    assert '"simulated": true' in text
    assert f'"address": {START}' in text
    assert isinstance(report(registered()), RegisterReport)
