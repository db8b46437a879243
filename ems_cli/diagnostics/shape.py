"""The shape of a synthetic KV cache: what one rank allocates and registers."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from ems.common.units import format_nbytes
from ems_cli.diagnostics.dtypes import ITEMSIZE
from ems_cli.diagnostics.parallel import Parallel

KvCacheType = Literal["GQA", "MHA", "MQA", "MLA"]
Arrangement = Literal["separate", "interleaved", "padded"]
"""How the tensors of a layer lie: each for itself, its planes page by page in turns, or each with
4 KiB between its blocks."""

DEFAULT_BLOCK_SIZE: Final = 128
MODEST_NBYTES: Final = 1 << 30
"""What a cache may take on a device when the caller did not say how many blocks."""
_FEWEST_BLOCKS = 4
_MOST_BLOCKS = 256


@dataclass(frozen=True, slots=True)
class PlaneShape:
    """One tensor of a layer: `[num_blocks, block_size, heads, head_size]` of `dtype`."""

    name: str
    """What it is: "K", "V", "latent", "rope", "indexer", or its number."""
    heads: int
    """Heads that this rank holds."""
    head_size: int
    dtype: str

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token."""
        return self.heads * self.head_size * ITEMSIZE[self.dtype]


@dataclass(frozen=True, slots=True)
class LayerShape:
    """One layer that keeps something for every token."""

    index: int
    """Number of the layer in the whole model; MTP layers follow the last."""
    planes: tuple[PlaneShape, ...]
    window: int | None = None
    """Tokens the layer looks back at; None when it sees them all."""
    block_size: int | None = None
    """Tokens of one block in its tensors; None: as many as the cache says."""

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token in all planes."""
        return sum(plane.token_nbytes for plane in self.planes)


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """Layers that look alike."""

    layers: tuple[int, ...]
    planes: tuple[PlaneShape, ...]
    window: int | None


@dataclass(frozen=True, slots=True)
class StoreGroup:
    """Layers that are stored under keys of their own, as `StoreLayerGroupDesc` says it."""

    layers: tuple[int, ...]
    """Positions in the cache of the rank."""
    store_block_size: int
    """The most tokens that one hash keeps of them."""
    window: int | None


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one rank holds; all bytes are those of this rank."""

    source: str
    """Either "flags", "--shape", or the model's file or name."""
    kvcache_type: KvCacheType
    block_size: int
    """Tokens of one block."""
    num_blocks: int
    layers: tuple[LayerShape, ...]
    model_layers: int
    """Layers of the whole model, those without a KV cache included, MTP layers not."""
    model_heads: int
    """KV heads of the whole model; 1 for MLA."""
    parallel: Parallel
    notes: tuple[str, ...] = ()
    """What was decided on the caller's behalf, in sentences."""
    store_groups: tuple[StoreGroup, ...] = ()
    """Empty: all layers are one group."""
    arrangement: Arrangement = "separate"

    @property
    def token_nbytes(self) -> int:
        """Bytes of one token in all layers."""
        return sum(layer.token_nbytes for layer in self.layers)

    @property
    def block_nbytes(self) -> int:
        """Bytes of one block in all layers."""
        return sum(layer.token_nbytes * self.block_size_of(layer) for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """Bytes of the whole cache."""
        return self.block_nbytes * self.num_blocks

    def block_size_of(self, layer: LayerShape) -> int:
        """Return the tokens of one block in the tensors of a layer."""
        return layer.block_size or self.block_size

    @property
    def ranks_with_the_same_bytes(self) -> int:
        """How many ranks of the stage hold a copy of these very bytes, this one included."""
        return max(1, self.parallel.tp // self.model_heads)

    @property
    def groups(self) -> tuple[LayerGroup, ...]:
        """The layers put together by looks, in the order of their first layer."""
        alike: dict[tuple[tuple[PlaneShape, ...], int | None], list[int]] = {}
        for layer in self.layers:
            alike.setdefault((layer.planes, layer.window), []).append(layer.index)
        return tuple(
            LayerGroup(tuple(layers), planes, window) for (planes, window), layers in alike.items()
        )


@dataclass(frozen=True, slots=True)
class ShapeSummary:
    """A `CacheShape` with every derived figure as a field, as reports carry it."""

    source: str
    kvcache_type: KvCacheType
    parallel: Parallel
    tp_rank: int
    pp_rank: int
    ranks_with_the_same_bytes: int
    model_layers: int
    model_heads: int
    num_layers: int
    groups: tuple[LayerGroup, ...]
    block_size: int
    num_blocks: int
    num_tokens: int
    token_nbytes: int
    block_nbytes: int
    nbytes: int
    notes: tuple[str, ...]
    store_groups: tuple[StoreGroup, ...]
    arrangement: Arrangement


def summary_of(shape: CacheShape) -> ShapeSummary:
    """Return `shape` with its derived figures."""
    return ShapeSummary(
        source=shape.source,
        kvcache_type=shape.kvcache_type,
        parallel=shape.parallel,
        tp_rank=shape.parallel.tp_rank,
        pp_rank=shape.parallel.pp_rank,
        ranks_with_the_same_bytes=shape.ranks_with_the_same_bytes,
        model_layers=shape.model_layers,
        model_heads=shape.model_heads,
        num_layers=len(shape.layers),
        groups=shape.groups,
        block_size=shape.block_size,
        num_blocks=shape.num_blocks,
        num_tokens=shape.num_blocks * shape.block_size,
        token_nbytes=shape.token_nbytes,
        block_nbytes=shape.block_nbytes,
        nbytes=shape.nbytes,
        notes=shape.notes,
        store_groups=shape.store_groups,
        arrangement=shape.arrangement,
    )


def modest_blocks(block_nbytes: int) -> tuple[int, str]:
    """Return how many blocks keep a cache modest, and the sentence that says so.

    The most that fit into `MODEST_NBYTES`, but between 4 and 256: a round trip into other blocks
    needs a few, and more teach nothing.
    """
    blocks = min(max(MODEST_NBYTES // block_nbytes, _FEWEST_BLOCKS), _MOST_BLOCKS)
    size = format_nbytes(blocks * block_nbytes)
    return blocks, f"{blocks} blocks chosen, {size} per device; --blocks sets another number"


def layers_text(layers: Iterable[int]) -> str:
    """Return layer numbers as people write them: "0-27, 30, 33-60", or "3-47 step 4"."""
    return ", ".join(_run_text(run) for run in _runs(sorted(layers)))


def _runs(layers: list[int]) -> list[range]:
    steps = {right - left for left, right in itertools.pairwise(layers)}
    if len(steps) == 1 and len(layers) > _SHORT:
        return [range(layers[0], layers[-1] + 1, steps.pop())]
    runs: list[range] = []
    for layer in layers:
        if runs and runs[-1].stop == layer:
            runs[-1] = range(runs[-1].start, layer + 1)
        else:
            runs.append(range(layer, layer + 1))
    return runs


def _run_text(run: range) -> str:
    if len(run) == 1:
        return str(run.start)
    step = f" step {run.step}" if run.step > 1 else ""
    return f"{run[0]}-{run[-1]}{step}"


_SHORT = 2
