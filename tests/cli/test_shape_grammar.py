from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from ems_cli.app import app
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.shape import PlaneShape, StoreGroup
from ems_cli.diagnostics.shape_grammar import parse_groups, parse_shape
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of


def pointed(error):
    """The character of the value that the caret stands under."""
    text, caret = error.pointer.splitlines()
    return text[caret.index("^") :]


def test_a_part_has_planes_blocks_tokens_heads_size_type_and_layers():
    found = parse_shape("(2,256,128,8,64):float16:32")
    assert (found.num_blocks, found.block_size, len(found.layers)) == (256, 128, 32)
    assert found.layers[31].planes == (
        PlaneShape("K", 8, 64, "float16"),
        PlaneShape("V", 8, 64, "float16"),
    )
    assert found.kvcache_type == "GQA"


def test_planes_of_one_layer_may_differ_in_size_and_type():
    found = parse_shape("(1,64,128,1,512):int8 + (1,64,128,1,64) : bf16 : 61")
    assert found.layers[0].planes == (
        PlaneShape("latent", 1, 512, "int8"),
        PlaneShape("rope", 1, 64, "bfloat16"),
    )
    assert found.kvcache_type == "MLA"


def test_a_tensor_without_a_type_has_that_of_the_next():
    found = parse_shape("(1,4,16,1,512)+(1,4,16,1,64)+(1,4,16,1,128):int8:2")
    assert [(plane.name, plane.dtype) for plane in found.layers[0].planes] == [
        ("latent", "int8"),
        ("rope", "int8"),
        ("indexer", "int8"),
    ]


def test_parts_follow_each_other_as_layers_do():
    found = parse_shape("(2,8,16,8,128):fp16:2; (2,8,16,4,64):fp16:1;")
    assert [layer.index for layer in found.layers] == [0, 1, 2]
    assert [layer.planes[0].heads for layer in found.layers] == [8, 8, 4]


@pytest.mark.parametrize(
    ("text", "said", "at"),
    [
        ("2,256", "a tensor is written (planes, blocks, block_size, heads, head_size)", "2,256"),
        ("(2,256,0,8,128):float16:1", "block_size must be a number above 0", "0,8"),
        ("(2,256,128,8):float16:1", "',' and head_size", "):float16"),
        ("(2,256,128,8,128):float61:32", "'float61' is not an element type", "float61:32"),
        ("(2,256,128,8,128):32", "':' and the element type", ":32"),
        ("(2,256,128,8,128):float16", "':' and the number of layers", ""),
        ("(2,256,128,8,128):float16:x", "its number of layers", "x"),
        ("(2,256,128,8,128):float16:1,", "';' and another part", ","),
        ("(2,8,16,8,128):fp16:1;(2,8,32,8,128):fp16:1", "8 of 16", "(2,8,32"),
        ("(9,8,16,8,128):fp16:1", "at most 8 planes", "9,8"),
        ("(2,8,16,8,128):fp16:5000", "more than 4096 layers", ""),
    ],
)
def test_what_breaks_the_grammar_is_pointed_at(text, said, at):
    with pytest.raises(BadInput) as caught:
        parse_shape(text)
    assert said in str(caught.value)
    assert pointed(caught.value).startswith(at)
    assert caught.value.option == "--shape"


def test_a_long_value_is_shown_around_the_place():
    text = "(2,8,16,8,128):fp16:1;" * 9 + "(2,8,16,8,128):fp16:x"
    with pytest.raises(BadInput) as caught:
        parse_shape(text)
    assert pointed(caught.value) == "x"
    assert max(map(len, caught.value.pointer.splitlines())) <= 70


@given(st.text())
def test_any_text_is_a_shape_or_refused(text):
    for parse in (parse_shape, parse_groups):
        with suppress(BadInput):
            assert parse(text)


def test_groups_are_ranges_tokens_and_windows():
    assert parse_groups("0-2,7:128; 3-6:64@window=1024") == (
        StoreGroup((0, 1, 2, 7), 128, None),
        StoreGroup((3, 4, 5, 6), 64, 1024),
    )


@pytest.mark.parametrize(
    ("text", "said", "at"),
    [
        ("x:1", "layers are numbers from 0", "x"),
        ("3-1:8", "a range ends at 3 or later", "1:8"),
        ("0-3", "':' and the most tokens of one hash", ""),
        ("0-3:0", "above 0", "0"),
        ("0-3:8@size=1", "window=TOKENS", "size"),
        ("0-3:8 4", "';' and another group", "4"),
    ],
)
def test_what_breaks_the_grammar_of_groups_is_pointed_at(text, said, at):
    with pytest.raises(BadInput) as caught:
        parse_groups(text)
    assert said in str(caught.value)
    assert pointed(caught.value).startswith(at)


def test_a_written_shape_is_what_one_rank_holds():
    written = parse_shape("(2,8,16,8,128):fp16:2")
    request = ShapeRequest(written=written, blocks=8, block_size=16)
    assert shape_of(request).nbytes == 2 * 2 * 8 * 16 * 8 * 128 * 2
    with pytest.raises(BadInput, match="drop it or --shape") as caught:
        shape_of(ShapeRequest(written=written, tp=2))
    assert caught.value.option == "--tp"


def test_the_caret_reaches_the_terminal():
    command = ["register", "--shape", "(2,8,16,8,128):float61:1"]
    result = CliRunner().invoke(app, command, prog_name="ems-cli", env={"COLUMNS": "80"})
    assert result.exit_code == 2
    assert "  (2,8,16,8,128):float61:1\n                 ^\n" in result.stderr
