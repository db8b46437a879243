"""The cache's shape from the fields of a Hugging Face `config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ems.common.exception import shown
from ems_cli.diagnostics.attention_layers import LayerKinds, layer_kinds
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.config_fields import MOST_LAYERS, Fields
from ems_cli.diagnostics.parallel import Parallel
from ems_cli.diagnostics.shape import (
    CacheShape,
    KvCacheType,
    LayerShape,
    PlaneShape,
    layers_text,
    modest_blocks,
)

_CACHE_DTYPES = ("bfloat16", "float16")
_DEFAULT_DTYPE = "bfloat16"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller decides about the cache of a model; the rest is the model's."""

    block_size: int
    blocks: int | None = None
    """None leaves the number to `modest_blocks`."""
    dtype: str | None = None
    """None takes the model's 16-bit type."""
    mtp: bool = False
    """Whether the layers that predict further tokens are counted."""


def shape_of_model(
    config: Mapping[str, Any], source: str, *, parallel: Parallel, wanted: Wanted
) -> CacheShape:
    """Return what `parallel.rank` holds of the model that `config` describes.

    Raises:
        BadInput: a field is missing, wrong or not understood, or the ranks do not fit the model.
    """
    return _Model(Fields.of(config, source), parallel, wanted).shape()


class _Model:
    """One reading of a configuration; collects notes on the way."""

    def __init__(self, fields: Fields, parallel: Parallel, wanted: Wanted) -> None:
        self._fields = fields
        self._parallel = parallel
        self._wanted = wanted
        self._notes: list[str] = []
        self._is_mla = fields.count_or_zero("kv_lora_rank") > 0  # wins over num_key_value_heads

    def shape(self) -> CacheShape:
        """Return the shape."""
        self._refuse_indivisible_attention()
        dtype = self._dtype()
        kinds = layer_kinds(self._fields)
        layers = self._layers(kinds, dtype)
        heads = 1 if self._is_mla else self._kv_heads()
        if self._parallel.tp > heads:
            self._notes.append(
                "every rank of a stage holds the same bytes: MLA is not split"
                if self._is_mla
                else f"{heads} KV heads are replicated on {self._parallel.tp} ranks, one to a rank"
            )
        block_nbytes = sum(layer.token_nbytes for layer in layers) * self._wanted.block_size
        blocks = self._wanted.blocks
        if blocks is None:
            blocks, note = modest_blocks(block_nbytes)
            self._notes.append(note)
        return CacheShape(
            source=self._fields.source,
            kvcache_type=self._kvcache_type(heads),
            block_size=self._wanted.block_size,
            num_blocks=blocks,
            layers=layers,
            model_layers=self._fields.layers(),
            model_heads=heads,
            parallel=self._parallel,
            notes=tuple(self._notes),
        )

    def _layers(self, kinds: LayerKinds, dtype: str) -> tuple[LayerShape, ...]:
        total = self._fields.layers()
        held = self._parallel.layers_of(total)
        keeping = [layer for layer in held if layer not in kinds.stateless]
        if len(keeping) < len(held):
            without = layers_text(set(held) - set(keeping))
            self._notes.append(f"layers {without} keep no bytes per token and are left out")
        shapes = [
            LayerShape(layer, self._planes(layer, kinds, dtype), kinds.window_of(layer))
            for layer in keeping
        ]
        shapes += [
            LayerShape(layer, self._planes(layer, kinds, dtype))
            for layer in range(total, total + self._mtp_layers())
        ]
        if not shapes:
            raise BadInput(
                f"rank {self._parallel.rank} holds layers {layers_text(held)} of"
                f" {self._fields.source}, none of which has a KV cache",
                option="--rank",
            )
        return tuple(shapes)

    def _mtp_layers(self) -> int:
        names = ("num_nextn_predict_layers", "mtp_num_hidden_layers")
        layers = self._fields.count_or_zero(*names)
        if layers > MOST_LAYERS:
            raise BadInput(
                f"{self._fields.source}: {layers} MTP layers are more than {MOST_LAYERS}",
                option="--model",
            )
        if self._wanted.mtp and not layers:
            raise BadInput(f"{self._fields.source} has no MTP layers", option="--mtp")
        if not layers or not self._parallel.is_last_stage:
            return 0
        if not self._wanted.mtp:
            self._notes.append(f"MTP layers ({layers}) are not counted; --mtp counts them")
            return 0
        return layers

    def _planes(self, layer: int, kinds: LayerKinds, dtype: str) -> tuple[PlaneShape, ...]:
        if self._is_mla:
            return self._latent_planes(layer, dtype)
        is_global = layer not in kinds.windowed
        heads = self._parallel.heads_of(self._kv_heads(is_global=is_global))
        size = self._head_size(is_global=is_global)
        return tuple(PlaneShape(name, heads, size, dtype) for name in ("K", "V"))

    def _latent_planes(self, layer: int, dtype: str) -> tuple[PlaneShape, ...]:
        sizes = {
            "latent": self._fields.needed("kv_lora_rank"),
            "rope": self._fields.needed("qk_rope_head_dim"),
        }
        indexer = self._fields.count_or_zero("index_head_dim")
        if indexer and self._has_own_indexer(layer):
            sizes["indexer"] = indexer
        return tuple(PlaneShape(name, 1, size, dtype) for name, size in sizes.items())

    def _has_own_indexer(self, layer: int) -> bool:
        total = self._fields.layers()
        types = self._fields.names_per_layer("indexer_types", total)
        return types is None or layer >= total or types[layer] != "shared"

    def _kv_heads(self, *, is_global: bool = False) -> int:
        own = self._fields.count("num_global_key_value_heads") if is_global else None
        heads = own or self._fields.count("num_key_value_heads")
        return heads or self._fields.needed("num_attention_heads")

    def _head_size(self, *, is_global: bool) -> int:
        own = self._fields.count("global_head_dim") if is_global else None
        size = own or self._fields.count("head_dim")
        if size is not None:
            return size
        hidden, heads = (self._fields.needed(n) for n in ("hidden_size", "num_attention_heads"))
        if hidden % heads:
            raise self._fields.wrong(
                "hidden_size", f"is no multiple of num_attention_heads {heads}, and head_dim absent"
            )
        return hidden // heads

    def _refuse_indivisible_attention(self) -> None:
        heads = self._fields.count("num_attention_heads")
        if heads is not None and heads % self._parallel.tp:
            raise BadInput(
                f"{self._parallel.tp} does not divide the {heads} attention heads of"
                f" {self._fields.source}",
                option="--tp",
            )

    def _kvcache_type(self, heads: int) -> KvCacheType:
        if self._is_mla:
            return "MLA"
        if heads == 1:
            return "MQA"
        return "MHA" if heads == self._fields.count("num_attention_heads") else "GQA"

    def _dtype(self) -> str:
        if self._wanted.dtype is not None:
            return self._wanted.dtype
        named = (self._fields.word("dtype", "torch_dtype") or "").removeprefix("torch.")
        dtype = named if named in _CACHE_DTYPES else _DEFAULT_DTYPE
        if dtype != named:
            says = f"its dtype is {shown(named)[1:-1]}" if named else "it names no dtype"
            self._notes.append(f"the cache is taken as {dtype}, because {says}; --dtype decides")
        elif self._fields.has("quantization_config"):
            self._notes.append(
                f"the weights are quantized, the cache stays {dtype}; --dtype decides"
            )
        return dtype
