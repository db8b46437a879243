"""What a process tells of its configuration and its registered cache, as JSON's types."""

import os
from dataclasses import asdict
from typing import Any

from ems.config import Settings
from ems.layout.key import digest
from ems.layout.registered import namespace_of
from ems.layout.registration import Registration


def about(settings: Settings) -> dict[str, Any]:
    """Return what is fixed by the configuration. The access key is not among it."""
    namespace = asdict(namespace_of(settings))
    return {
        "rank_id": settings.rank_id,
        "device_id": settings.device_id,
        "visible_devices": os.environ.get("ASCEND_RT_VISIBLE_DEVICES"),
        "kvcache_type": settings.kvcache_type.value,
        "namespace": namespace,
        "namespace_digest": digest(namespace),
        "pool_url": settings.pool,
    }


def registration_facts(registration: Registration) -> dict[str, Any]:
    """Return a registration with its addresses."""
    return {
        "device_index": registration.device_index,
        "layers": len(registration.planes),
        "token_nbytes": registration.token_nbytes,
        "planes": [asdict(plane) for layer in registration.planes for plane in layer],
        "groups": [
            {
                "index": group.index,
                "layer_ids": list(group.layer_ids),
                "block_size": group.block_size,
                "num_blocks": group.num_blocks,
                "store_block_size": group.store_block_size,
                "window": group.window,
                "token_nbytes": group.token_nbytes,
                "fingerprint": group.fingerprint,
            }
            for group in registration.groups
        ],
        "warnings": list(registration.warnings),
    }
