"""A pool that fails when a test says so, behind the SDK."""

from preamble import boot

import ems.client
from ems.pool.faulty import FaultyPool
from ems.pool.registry import open_pool


def boot_faulty(monkeypatch, **fields):
    """Initialise, and return the Context Caching object and its pool, whose faults may change."""
    made = []

    def open_faulty(url, memory):
        made.append(FaultyPool(open_pool(url, memory)))
        return made[-1]

    monkeypatch.setattr(ems.client, "open_pool", open_faulty)
    cc = boot(**fields)
    return cc, made[-1]
