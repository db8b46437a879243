"""The command line `ems-cli`: what a KV cache is, whether it is right and how fast it moves."""
