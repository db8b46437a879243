"""Published configurations of a few models, reduced to what shapes a KV cache.

Field names and values are those of the `config.json` beside the weights.
"""

from collections.abc import Mapping
from typing import Any, Final

_DEEPSEEK_V3: Final[Mapping[str, Any]] = {
    "model_type": "deepseek_v3",
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
}


def _grouped(
    model_type: str,
    *,
    layers: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    **others: Any,
) -> Mapping[str, Any]:
    return {
        "model_type": model_type,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "torch_dtype": "bfloat16",
        **others,
    }


PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "llama-3.1-8b": _grouped("llama", layers=32, heads=32, kv_heads=8, head_dim=128),
    "qwen2.5-7b": _grouped(
        "qwen2",
        layers=28,
        heads=28,
        kv_heads=4,
        head_dim=128,
        sliding_window=131072,
        use_sliding_window=False,
    ),
    "qwen3-8b": _grouped("qwen3", layers=36, heads=32, kv_heads=8, head_dim=128),
    "qwen3-32b": _grouped("qwen3", layers=64, heads=64, kv_heads=8, head_dim=128),
    "qwen3-30b-a3b": _grouped("qwen3_moe", layers=48, heads=32, kv_heads=4, head_dim=128),
    "qwen3-235b-a22b": _grouped("qwen3_moe", layers=94, heads=64, kv_heads=4, head_dim=128),
    "glm-4.5-air": _grouped(
        "glm4_moe", layers=46, heads=96, kv_heads=8, head_dim=128, num_nextn_predict_layers=1
    ),
    "deepseek-v3": _DEEPSEEK_V3,
    "deepseek-v3.2": {**_DEEPSEEK_V3, "model_type": "deepseek_v32", "index_head_dim": 128},
}
"""Configuration by name; names are the repositories' own in small letters."""
