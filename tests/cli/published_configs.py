"""What published config.json files say about the KV cache; names and values are theirs."""

LLAMA_8B = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "torch_dtype": "bfloat16",
}
QWEN25_3B = {
    "model_type": "qwen2",
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "hidden_size": 2048,
    "sliding_window": 32768,
    "use_sliding_window": False,
    "max_window_layers": 36,
    "torch_dtype": "bfloat16",
}
QWEN25_7B = {
    **QWEN25_3B,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "hidden_size": 3584,
    "sliding_window": 131072,
    "max_window_layers": 28,
}
QWEN3_32B = {
    "model_type": "qwen3",
    "num_hidden_layers": 64,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 5120,
    "head_dim": 128,
    "sliding_window": None,
    "torch_dtype": "bfloat16",
}
QWEN3_8B = {**QWEN3_32B, "num_hidden_layers": 36, "num_attention_heads": 32, "hidden_size": 4096}
QWEN3_30B = {
    **QWEN3_32B,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "hidden_size": 2048,
}
QWEN3_235B = {**QWEN3_30B, "num_hidden_layers": 94, "num_attention_heads": 64, "hidden_size": 4096}
GLM_AIR = {
    "model_type": "glm4_moe",
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "hidden_size": 4096,
    "head_dim": 128,
    "num_nextn_predict_layers": 1,
    "dtype": "bfloat16",
}
GLM_45 = {**GLM_AIR, "num_hidden_layers": 92, "hidden_size": 5120}
DEEPSEEK_V3 = {
    "model_type": "deepseek_v3",
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "hidden_size": 7168,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "num_nextn_predict_layers": 1,
    "torch_dtype": "bfloat16",
    "quantization_config": {"quant_method": "fp8"},
}
DEEPSEEK_V32 = {**DEEPSEEK_V3, "index_head_dim": 128}
V2_LITE = {**DEEPSEEK_V3, "num_hidden_layers": 27, "q_lora_rank": None, "num_attention_heads": 16}
KIMI_K2 = {**DEEPSEEK_V3, "num_attention_heads": 64, "num_nextn_predict_layers": 0}
GPT_OSS_20B = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 24,
    "num_attention_heads": 64,
    "num_key_value_heads": 8,
    "hidden_size": 2880,
    "head_dim": 64,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 12,
    "torch_dtype": "bfloat16",
}
GPT_OSS_120B = {
    **GPT_OSS_20B,
    "num_hidden_layers": 36,
    "layer_types": ["sliding_attention", "full_attention"] * 18,
}
QWEN3_NEXT = {
    "model_type": "qwen3_next",
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "hidden_size": 2048,
    "head_dim": 256,
    "full_attention_interval": 4,
    "linear_num_key_heads": 16,
    "torch_dtype": "bfloat16",
}
