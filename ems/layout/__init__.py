"""Pure arithmetic of a KV cache: planes, slots, runs, spans and keys. No torch, no I/O."""
