"""Which layers of a model keep every token, and which look back only so far."""

from dataclasses import dataclass
from typing import Final

from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.config_fields import Fields

_FULL: Final = frozenset({"full_attention", "attention", "full", "global"})
_WINDOWED: Final = frozenset({"sliding_attention", "chunked_attention", "sliding", "local"})
_STATE: Final = frozenset({"linear_attention", "mamba", "mamba2", "conv", "recurrent"})
_NOT_UNDERSTOOD: Final = (
    "attn_layer_period",
    "attn_type_list",
    "hybrid_override_pattern",
    "layers_block_type",
    "linear_attn_config",
)
_EVERY_OTHER: Final = frozenset({"gemma2", "gpt_oss"})
"""Models whose layers 0, 2, 4… have a window although older files do not list them."""


@dataclass(frozen=True, slots=True)
class LayerKinds:
    """What each layer of a model is; the layers in neither set see every token."""

    stateless: frozenset[int]
    """Layers with one state of fixed size, or another layer's cache, instead of their own."""
    windowed: frozenset[int]
    window: int | None
    """Tokens that the windowed layers look back at."""

    def window_of(self, layer: int) -> int | None:
        """Return the window of `layer`; None when it sees every token."""
        return self.window if layer in self.windowed else None


def layer_kinds(fields: Fields) -> LayerKinds:
    """Return what each layer is.

    `layer_types` decides where it is given. Without it, every `full_attention_interval`-th layer
    is full and the others linear; a window covers all layers, or all but every
    `sliding_window_pattern`-th, or those from `max_window_layers` on, unless it is switched off.

    Raises:
        BadInput: the file describes a mix of layers that is not understood here.
    """
    for name in _NOT_UNDERSTOOD:
        if fields.has(name):
            raise BadInput(
                f"{fields.source}: {name} describes a mix of layers that is not understood; give"
                " --layers, --heads and --head-size of the layers with a KV cache",
                option="--model",
            )
    layers = fields.layers()
    shared = fields.count_or_zero("num_kv_shared_layers")  # Gemma: the last ones read earlier ones'
    borrowing = frozenset(range(max(0, layers - shared), layers))
    window = _window(fields)
    types = fields.names_per_layer("layer_types", layers)
    if types is not None:
        _refuse_unknown(types, fields)
        stateless = frozenset(i for i, kind in enumerate(types) if kind in _STATE)
        windowed = frozenset(i for i, kind in enumerate(types) if kind in _WINDOWED)
    else:
        stateless = _between_full_layers(fields, layers)
        windowed = _windowed_by_rule(fields, layers)
    return LayerKinds(stateless | borrowing, windowed if window else frozenset(), window)


def _window(fields: Fields) -> int | None:
    if not fields.flag("use_sliding_window", default=True):
        return None
    return fields.count_or_zero("sliding_window", "attention_chunk_size") or None


def _refuse_unknown(types: tuple[str, ...], fields: Fields) -> None:
    for layer, kind in enumerate(types):
        if kind not in _FULL | _WINDOWED | _STATE:
            raise BadInput(
                f"{fields.source}: layer_types[{layer}] is {kind!r}, which is not understood;"
                f" known are {', '.join(sorted(_FULL | _WINDOWED | _STATE))}",
                option="--model",
            )


def _between_full_layers(fields: Fields, layers: int) -> frozenset[int]:
    interval = fields.count("full_attention_interval")
    if interval is None:
        if fields.has("linear_num_key_heads"):
            fields.needed("full_attention_interval")  # Qwen3-Next and later: linear layers exist
        return frozenset()
    return frozenset(layer for layer in range(layers) if (layer + 1) % interval)


def _windowed_by_rule(fields: Fields, layers: int) -> frozenset[int]:
    pattern = fields.count("sliding_window_pattern")
    if pattern is None and fields.word("model_type") in _EVERY_OTHER:
        pattern = 2
    if pattern is not None:
        return frozenset(layer for layer in range(layers) if (layer + 1) % pattern)
    first = fields.count_or_zero("max_window_layers")
    return frozenset(range(first, layers))
