import json

import published_configs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from published_configs import QWEN3_8B

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.model_config import Wanted, shape_of_model
from ems_cli.diagnostics.model_presets import PRESETS
from ems_cli.diagnostics.parallel import Parallel
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of

CONFIGS = [value for name, value in vars(published_configs).items() if name.isupper()]
FIELDS = sorted({name for config in CONFIGS for name in config} | {"text_config", "indexer_types"})
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 200) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=70) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=80,
)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "config.json"


def test_a_file_is_read(file):
    file.write_text(json.dumps(QWEN3_8B))
    shape = shape_of(ShapeRequest(model=str(file)))
    assert (shape.token_nbytes, shape.source) == (147456, str(file))


def test_a_folder_stands_for_the_file_in_it(file):
    file.write_text(json.dumps(QWEN3_8B))
    assert shape_of(ShapeRequest(model=str(file.parent))).token_nbytes == 147456


def test_a_file_wins_over_a_built_in_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen3-32b").write_text(json.dumps(QWEN3_8B))
    assert shape_of(ShapeRequest(model="qwen3-32b")).token_nbytes == 147456


def test_a_byte_order_mark_does_no_harm(file):
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps(QWEN3_8B).encode())
    assert shape_of(ShapeRequest(model=str(file))).token_nbytes == 147456


def test_broken_json_is_named_by_line_and_column(file):
    file.write_text('{\n  "num_hidden_layers": 32,,\n}')
    with pytest.raises(BadInput, match=r"config.json, line 2, column 27: "):
        shape_of(ShapeRequest(model=str(file)))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"[]", "holds no JSON object"),
        (b"\xff\xfe\x00", "is no text: byte 0"),
        (b"[" * 200_000, "is no JSON that can be read"),
        (b'{"num_hidden_layers": ' + b"9" * 5000 + b"}", "is no JSON that can be read"),
    ],
)
def test_what_is_no_configuration_is_refused(file, content, said):
    file.write_bytes(content)
    with pytest.raises(BadInput, match=said):
        shape_of(ShapeRequest(model=str(file)))


@pytest.mark.parametrize("model", ["qwen3-33b", "./qwen3-32b", "a/b/qwen3-32b", "x\0y"])
def test_neither_a_file_nor_a_name_is_refused(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"no file|no path"):
        shape_of(ShapeRequest(model=model))


def test_a_misspelt_name_gets_the_nearest_one():
    with pytest.raises(BadInput, match=r"did you mean qwen3-32b\?"):
        shape_of(ShapeRequest(model="qwen3-33b"))


def test_a_name_may_carry_its_owner_and_capitals():
    assert shape_of(ShapeRequest(model="Qwen/Qwen3-32B")).token_nbytes == 262144


@pytest.mark.parametrize("option", ["layers", "heads", "head_size"])
def test_what_the_model_says_cannot_be_said_twice(option):
    with pytest.raises(BadInput, match="the model says this already") as caught:
        shape_of(ShapeRequest(model="qwen3-32b", **{option: 8}))
    assert caught.value.option == "--" + option.replace("_", "-")


def test_blocks_and_type_may_be_said_beside_a_model():
    request = ShapeRequest(model="qwen3-32b", block_size=16, blocks=9, dtype="int8")
    shape = shape_of(request)
    assert (shape.block_size, shape.num_blocks) == (16, 9)
    assert shape.token_nbytes == 262144 // 2


@pytest.mark.parametrize(
    ("name", "token_nbytes"),
    [
        ("llama-3.1-8b", 131072),
        ("qwen2.5-7b", 57344),
        ("qwen3-8b", 147456),
        ("qwen3-32b", 262144),
        ("qwen3-30b-a3b", 98304),
        ("qwen3-235b-a22b", 192512),
        ("glm-4.5-air", 188416),
        ("deepseek-v3", 70272),
        ("deepseek-v3.2", 85888),
    ],
)
def test_a_built_in_model_has_its_published_bytes_per_token(name, token_nbytes):
    shape = shape_of(ShapeRequest(model=name))
    assert shape.token_nbytes == token_nbytes
    assert shape.source == f"built-in {name}"


def test_every_built_in_model_can_be_read():
    assert all(shape_of(ShapeRequest(model=name)).layers for name in PRESETS)


@given(
    st.sampled_from(CONFIGS),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_whatever_a_file_holds_it_is_a_shape_or_a_reason(config, changes, tp, pp):
    try:
        shape = shape_of_model(
            {**config, **changes}, "file", parallel=Parallel(tp, pp), wanted=Wanted(128)
        )
    except BadInput:
        return
    assert shape.token_nbytes > 0
