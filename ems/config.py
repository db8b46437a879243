"""The SDK's configuration objects, and the frozen settings they are read into, once."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ems.cc_v1.cc_config import CcConfig_v1, KVCacheType
from ems.common.exception import InvalidArgument, shown
from ems.common.secret import Secret

_DOCUMENTED = re.compile(r"[0-9a-z._-]+")
"""The characters of an access_id."""
_LONGEST_NAME = 512
_LONGEST_KEY = 256


@dataclass
class CcConfig:
    """Context Caching for callers that pass keys and buffers; tp and pp ranks count as 0."""

    rank_id: int
    """Global rank in the instance, at least 0."""
    device_id: int
    """Index among the NPUs that this process can see (ASCEND_RT_VISIBLE_DEVICES)."""
    model_id: str
    """1 to 512 printable characters; see `CcConfig_v1.model_id`."""
    tp_world_size: int = 1
    """Ranks of a tensor-parallel group, at least 1."""
    pp_world_size: int = 1
    """Stages of the pipeline, at least 1."""


@dataclass
class EmsConfig:
    """What `Ems.init` is told. Give one of cc_config and cc_config_v1, or neither: no caching.

    A `CcConfig_v1` passed as cc_config is taken for what it is.
    """

    cc_config: CcConfig | CcConfig_v1 | None = None
    cc_config_v1: CcConfig_v1 | None = None
    access_id: str | None = None
    """Tenant, up to 512 printable characters; tenants do not share entries. The documented
    character set is not enforced: known callers use "@"."""
    access_key: str | None = field(default=None, repr=False)
    """Secret that belongs to access_id; "" counts as None."""
    pool: str | None = None
    """URL of the pool, our extension; default is the environment's EMS_POOL, then
    "memory://?capacity=8GiB"."""


@dataclass(frozen=True)
class Settings:
    """A configuration, checked. Equal settings make a second `Ems.init` harmless."""

    access_id: str | None
    access_key: Secret | None
    rank_id: int
    device_id: int
    model_id: str
    tp_world_size: int
    pp_world_size: int
    rank_in_tp_group: int
    rank_in_pp_group: int
    llm_engine: str
    kvcache_type: KVCacheType
    pool: str | None


def read_settings(config: Any) -> Settings | None:
    """Return what `config` says, or None where it asks for no Context Caching.

    Raises:
        InvalidArgument: naming the field and its value.
    """
    if not isinstance(config, EmsConfig):
        raise InvalidArgument(f"config must be an EmsConfig, not {shown(config)}")
    with _of("EmsConfig"):
        access_id = _optional_text("access_id", config.access_id, _LONGEST_NAME)
        access_key = _secret(config)
        pool = _optional_text("pool", config.pool or os.environ.get("EMS_POOL"), 1 << 16)
    cc_config = _chosen(config)
    if cc_config is None:
        return None
    with _of(type(cc_config).__name__):
        return _read(cc_config, access_id, access_key, pool)


def doubts(settings: Settings) -> list[str]:
    """Return what is legal, and often a mistake."""
    found = [
        f"rank_in_{group}_group is {rank}, {group}_world_size only {size}: is it the rank in the "
        "group? Entries are found again by both"
        for group, rank, size in (
            ("tp", settings.rank_in_tp_group, settings.tp_world_size),
            ("pp", settings.rank_in_pp_group, settings.pp_world_size),
        )
        if rank >= size
    ]
    if settings.access_id and not _DOCUMENTED.fullmatch(settings.access_id):
        found.append(
            f"access_id {shown(settings.access_id)} has characters that the SDK does not document "
            "(digits, a to z, and . _ -); it is used as it is"
        )
    return found


def _chosen(config: EmsConfig) -> CcConfig_v1 | None:
    first: Any = config.cc_config
    second: Any = config.cc_config_v1
    if first is not None and second is not None:
        raise InvalidArgument("EmsConfig: give cc_config or cc_config_v1, not both")
    if second is not None and not isinstance(second, CcConfig_v1):
        raise InvalidArgument(f"EmsConfig: cc_config_v1 must be a CcConfig_v1, not {shown(second)}")
    chosen = second if first is None else first
    if chosen is None or isinstance(chosen, CcConfig_v1):
        return chosen
    if not isinstance(chosen, CcConfig):
        raise InvalidArgument(f"EmsConfig: cc_config must be a CcConfig, not {shown(chosen)}")
    return CcConfig_v1(
        chosen.rank_id,
        chosen.device_id,
        chosen.model_id,
        chosen.tp_world_size,
        chosen.pp_world_size,
    )


def _read(
    config: CcConfig_v1, access_id: str | None, access_key: Secret | None, pool: str | None
) -> Settings:
    return Settings(
        access_id,
        access_key,
        _integer("rank_id", config.rank_id, least=0),
        _integer("device_id", config.device_id, least=0),
        _text("model_id", config.model_id, _LONGEST_NAME),
        _integer("tp_world_size", config.tp_world_size, least=1),
        _integer("pp_world_size", config.pp_world_size, least=1),
        _integer("rank_in_tp_group", config.rank_in_tp_group, least=0),
        _integer("rank_in_pp_group", config.rank_in_pp_group, least=0),
        _text("llm_engine", config.llm_engine, _LONGEST_NAME),
        _kvcache_type(config.kvcache_type),
        pool,
    )


@contextmanager
def _of(owner: str) -> Iterator[None]:
    """Say in refusals whose field it is."""
    try:
        yield
    except InvalidArgument as error:
        raise InvalidArgument(f"{owner}.{error}") from None


def _integer(name: str, value: Any, *, least: int) -> int:
    if type(value) is not int or value < least:
        raise InvalidArgument(f"{name} must be an int of at least {least}, not {shown(value)}")
    return value


def _text(name: str, value: Any, longest: int) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= longest or not value.isprintable():
        raise InvalidArgument(f"{name} must be 1 to {longest} printable characters: {shown(value)}")
    return value


def _optional_text(name: str, value: Any, longest: int) -> str | None:
    return None if value is None else _text(name, value, longest)


def _secret(config: Any) -> Secret | None:
    """Return the access key; it is in no variable of this frame, which a traceback may show."""
    if config.access_key is None or config.access_key == "":
        return None
    if not isinstance(config.access_key, str) or len(config.access_key) > _LONGEST_KEY:
        raise InvalidArgument(f"access_key must be a str of at most {_LONGEST_KEY} characters")
    return Secret(config.access_key)


def _kvcache_type(value: Any) -> KVCacheType:
    try:
        return KVCacheType(value)
    except ValueError:
        names = ", ".join(KVCacheType.__members__)
        raise InvalidArgument(f"kvcache_type must be one of {names}, not {shown(value)}") from None
