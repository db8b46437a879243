"""A cache written in one line: `--shape` and `--groups`.

    shape  = part {";" part}
    part   = tensor {"+" tensor} ":" layers
    tensor = "(" planes "," blocks "," block_size "," heads "," head_size ")" [":" dtype]
    groups = group {";" group}
    group  = range {"," range} ":" store_block_size ["@window=" tokens]
    range  = layer ["-" layer]

A tensor without a type has that of the next tensor of its part which has one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.dtypes import dtype_named
from ems_cli.diagnostics.shape import KvCacheType, LayerShape, PlaneShape, StoreGroup
from ems_cli.diagnostics.written import Written

SHAPE: Final = "--shape"
GROUPS: Final = "--groups"
_FIELDS = ("planes", "blocks", "block_size", "heads", "head_size")
_TENSOR = f"({', '.join(_FIELDS)})"
_MOST_PLANES = 8
_MOST_LAYERS = 4096
_SINGLE_NAMES = ("latent", "rope", "indexer")
_K_AND_V = 2


@dataclass(frozen=True, slots=True)
class WrittenShape:
    """What one rank holds, as `--shape` says it."""

    text: str
    kvcache_type: KvCacheType
    num_blocks: int
    block_size: int
    layers: tuple[LayerShape, ...]


@dataclass(frozen=True, slots=True)
class _Tensor:
    planes: int
    blocks: int
    block_size: int
    heads: int
    head_size: int
    dtype: str | None
    at: int
    """Where it starts in the text."""


def parse_shape(text: str) -> WrittenShape:
    """Return the cache that `text` describes.

    Raises:
        BadInput: the grammar is not kept, or blocks differ between tensors.
    """
    written = Written(text, option=SHAPE)
    layers: list[LayerShape] = []
    first: _Tensor | None = None
    while True:
        tensors = _tensors(written)
        count = written.number("a part ends in ':' and its number of layers")
        if len(layers) + count > _MOST_LAYERS:
            written.refuse(f"more than {_MOST_LAYERS} layers")
        for tensor in tensors:
            first = first or tensor
            _check_blocks(written, tensor, first)
        planes = _planes(tensors)
        layers += [LayerShape(len(layers) + at, planes) for at in range(count)]
        if not written.accept(";") or written.ended:
            break
    if not written.ended:
        written.refuse("';' and another part, or the end")
    return WrittenShape(
        text.strip(), _type_of(layers), tensors[0].blocks, tensors[0].block_size, tuple(layers)
    )


def _tensors(written: Written) -> list[_Tensor]:
    tensors = [_tensor(written)]
    while written.accept("+"):
        tensors.append(_tensor(written))
    if tensors[-1].dtype is None:
        written.refuse("':' and the element type, float16 for example")
    dtype = tensors[-1].dtype
    for at in reversed(range(len(tensors))):
        dtype = tensors[at].dtype or dtype
        tensors[at] = replace(tensors[at], dtype=dtype)
    written.expect(":", "':' and the number of layers")
    return tensors


def _tensor(written: Written) -> _Tensor:
    written.expect("(", f"a tensor is written {_TENSOR}")
    at = written.at - 1
    values = []
    for place, name in enumerate(_FIELDS):
        if place:
            written.expect(",", f"',' and {name}: a tensor is written {_TENSOR}")
        values.append(written.number(f"{name} must be a number above 0 in {_TENSOR}"))
    written.expect(")", f"')' behind head_size: a tensor is written {_TENSOR}")
    if values[0] > _MOST_PLANES:
        written.refuse(f"a layer has at most {_MOST_PLANES} planes of a kind", at + 1)
    planes, blocks, block_size, heads, head_size = values
    return _Tensor(planes, blocks, block_size, heads, head_size, _dtype(written), at)


def _dtype(written: Written) -> str | None:
    """Take ":dtype" if that comes next, and not the number of layers."""
    before = written.at
    if not written.accept(":") or written.number_follows:
        written.at = before
        return None
    written.number_follows  # noqa: B018 - skips blanks, so that the caret stands right
    at = written.at
    try:
        return dtype_named(written.word())
    except BadInput as error:
        written.refuse(str(error), at)


def _check_blocks(written: Written, tensor: _Tensor, first: _Tensor) -> None:
    if (tensor.blocks, tensor.block_size) != (first.blocks, first.block_size):
        written.refuse(
            f"all tensors need as many blocks of as many tokens as the first, {first.blocks} of "
            f"{first.block_size}",
            tensor.at,
        )


def _planes(tensors: Sequence[_Tensor]) -> tuple[PlaneShape, ...]:
    singles = iter(_SINGLE_NAMES if all(one.planes == 1 for one in tensors) else ("indexer",))
    found: list[PlaneShape] = []
    for tensor in tensors:
        for at in range(tensor.planes):
            paired = tensor.planes == _K_AND_V
            name = "KV"[at] if paired else next(singles, f"plane {len(found)}")
            dtype = tensor.dtype or ""
            found.append(PlaneShape(name, tensor.heads, tensor.head_size, dtype))
    return tuple(found)


def _type_of(layers: Sequence[LayerShape]) -> KvCacheType:
    planes = layers[0].planes
    if planes[0].name == "latent" and planes[0].heads == 1:
        return "MLA"
    return "MQA" if planes[0].heads == 1 else "GQA"


def parse_groups(text: str) -> tuple[StoreGroup, ...]:
    """Return the layer groups that `text` describes; whether they fit a cache is not looked at.

    Raises:
        BadInput: the grammar is not kept.
    """
    written = Written(text, option=GROUPS)
    groups = [_group(written)]
    while written.accept(";") and not written.ended:
        groups.append(_group(written))
    if not written.ended:
        written.refuse("';' and another group, or the end")
    return tuple(groups)


def _group(written: Written) -> StoreGroup:
    layers = [*_range(written)]
    while written.accept(","):
        layers += _range(written)
    written.expect(":", "':' and the most tokens of one hash: 0-30:128")
    size = written.number("the most tokens of one hash, a number above 0")
    window = None
    if written.accept("@"):
        written.expect("window", "'@' is followed by window=TOKENS")
        written.expect("=", "'=' and the tokens of the window")
        window = written.number("the tokens of the window, a number above 0")
    return StoreGroup(tuple(layers), size, window)


def _range(written: Written) -> range:
    wanted = "layers are numbers from 0, or ranges like 0-30"
    first = written.number(wanted, least=0)
    if not written.accept("-"):
        return range(first, first + 1)
    at = written.at
    last = written.number(wanted, least=0)
    if not first <= last < _MOST_LAYERS:
        written.refuse(f"a range ends at {first} or later, below {_MOST_LAYERS}", at)
    return range(first, last + 1)
