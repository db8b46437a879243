"""Moves the blocks of one request between device and pool, from start to end."""
