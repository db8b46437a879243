"""Context caching for LLM inference on Ascend NPUs."""
