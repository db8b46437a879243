"""The caches that `ems-cli bench --suite` measures, and what each takes of memory."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from ems_cli.diagnostics.bench_pool import entry_nbytes
from ems_cli.diagnostics.shape import CacheShape
from ems_cli.diagnostics.shape_grammar import parse_groups, parse_shape
from ems_cli.diagnostics.shape_request import ShapeRequest, shape_of

CALLS: Final = (1, 16, 64, 256)
"""Blocks per call."""
ORDERED_AT: Final = 64
"""Blocks per call that are measured in order of memory, too."""
_BLOCK_SIZE: Final = 128
_COPIES: Final = 5.5
"""Cache for source and target, pool for one and a half, two buffers of the raw copies."""
_QUICK_PART: Final = 4
_HYBRID: Final = (
    (4, "(2,8,128,8,128):bfloat16", 128, "128"),
    (8, "(1,8,128,1,512)+(1,8,128,1,64):bfloat16", 256, "512"),
    (12, "(2,8,128,2,256):float16", 64, "256@window=1024"),
)
"""Layers of three kinds: full attention, latent, and heads of another size in a window; with the
tokens of a block in their tensors, and the most tokens that one hash has in them."""


@dataclass(frozen=True, slots=True)
class SuiteModel:
    """One cache of the suite."""

    name: str
    request: ShapeRequest
    least_share: float | None
    """Of the raw copy in one call, at 64 blocks; None: no goal."""


def suite_models(*, quick: bool) -> tuple[SuiteModel, ...]:
    """Return the caches; a quick suite has a quarter of the layers, with the same spans."""
    part = _QUICK_PART if quick else 1
    return (
        SuiteModel(
            "Llama-3.1-8B",
            ShapeRequest(layers=32 // part, heads=8, head_size=128, dtype="bfloat16"),
            0.95,
        ),
        SuiteModel(
            "Qwen3-32B, tp 8",
            ShapeRequest(layers=64 // part, heads=8, head_size=128, dtype="bfloat16", tp=8),
            0.80,
        ),
        SuiteModel(
            "DeepSeek-V3",
            _written(f"(1,8,128,1,512)+(1,8,128,1,64):bfloat16:{61 // part}"),
            0.80,
        ),
        SuiteModel("Hybrid", _hybrid(2 if quick else 1), None),
    )


def _written(text: str, groups: str = "", block_sizes: Sequence[int] = ()) -> ShapeRequest:
    """Return the cache of `text`, its layers with blocks of other sizes if there are such."""
    written = parse_shape(text)
    if block_sizes:
        pairs = zip(written.layers, block_sizes, strict=True)
        layers = tuple(replace(layer, block_size=size) for layer, size in pairs)
        written = replace(written, layers=layers)
    return ShapeRequest(
        written=written,
        block_size=_BLOCK_SIZE,
        groups=parse_groups(groups) if groups else (),
    )


def _hybrid(part: int) -> ShapeRequest:
    shapes: list[str] = []
    groups: list[str] = []
    block_sizes: list[int] = []
    for layers, shape, block_size, group in _HYBRID:
        count, first = layers // part, len(block_sizes)
        shapes.append(f"{shape}:{count}")
        groups.append(f"{first}-{first + count - 1}:{group}")
        block_sizes += [block_size] * count
    return _written(";".join(shapes), ";".join(groups), block_sizes)


def cache_for(model: SuiteModel, blocks: int) -> CacheShape:
    """Return the cache in which so many blocks are saved, and loaded into others."""
    shape = shape_of(model.request)
    return replace(shape, num_blocks=2 * blocks, notes=())


def needed_nbytes(model: SuiteModel, blocks: int) -> int:
    """Return the memory that calls of so many blocks take, simulated NPU and host together."""
    return int(_COPIES * blocks * entry_nbytes(shape_of(model.request)))
