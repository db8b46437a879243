"""A registered cache with its namespace: all that names its entries."""

from collections.abc import Sequence
from dataclasses import dataclass

from ems.cc_v1.cc_config import KVCacheType
from ems.config import Settings
from ems.layout.key import Namespace, PoolKey, key_prefix, make_keys
from ems.layout.registration import Registration


@dataclass(frozen=True)
class Registered:
    """A registered cache and the beginnings of its keys."""

    registration: Registration
    key_prefixes: tuple[str, ...]
    """One per layer group."""

    def keys(self, hashes: Sequence[int | bytes | str]) -> list[list[PoolKey]]:
        """Return the keys of `hashes`, by layer group."""
        return [make_keys(prefix, hashes) for prefix in self.key_prefixes]


def namespace_of(settings: Settings) -> Namespace:
    """Return what keeps the entries of this rank apart from others.

    The TP rank is left out for MLA, whose ranks all hold the same data.
    """
    shared = settings.kvcache_type is KVCacheType.MLA
    return Namespace(
        settings.access_id,
        settings.model_id,
        settings.llm_engine,
        None if shared else settings.tp_world_size,
        None if shared else settings.rank_in_tp_group,
        settings.pp_world_size,
        settings.rank_in_pp_group,
    )


def key_prefixes(settings: Settings, registration: Registration) -> tuple[str, ...]:
    """Return the beginning of the keys of each layer group."""
    namespace = namespace_of(settings)
    return tuple(
        key_prefix(namespace, group.index, group.fingerprint) for group in registration.groups
    )
