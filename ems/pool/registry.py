"""The engines by the scheme of their URL; an engine is imported when it is chosen, not before."""

from dataclasses import replace
from importlib import import_module
from typing import Protocol, cast

from ems.common.exception import InvalidArgument, shown
from ems.common.secret import masked
from ems.pool.base import HostMemory, PoolEngine
from ems.pool.memory import MemoryPool
from ems.pool.tiered import TieredPool
from ems.pool.url import PoolUrl

DEFAULT_URL = "memory://?capacity=8GiB"

_ENGINES = {
    "lmdb": "ems.pool.lmdb.pool:LmdbPool",
    "memory": "ems.pool.memory:MemoryPool",
    "mooncake": "ems.pool.mooncake.engine:MooncakePool",
}

_TIERED = "tiered+"
_LOCAL = "local"


class EngineClass(Protocol):
    """What the registry asks of a class of engines."""

    def from_url(self, url: PoolUrl, memory: HostMemory) -> PoolEngine:
        """Return the engine that `url` describes.

        Raises:
            InvalidArgument: `url` has parts that the engine does not know, or wrong values.
        """


def open_pool(url: str, memory: HostMemory) -> PoolEngine:
    """Return the engine that `url` describes, with its pinned memory taken from `memory`.

    Raises:
        InvalidArgument: the URL is wrong, names no known engine, or one whose package is missing.
    """
    parsed = PoolUrl.parse(url)
    if parsed.scheme.startswith(_TIERED):
        return _open_tiered(parsed, memory)
    return _engine_class(parsed).from_url(parsed, memory)


def _open_tiered(url: PoolUrl, memory: HostMemory) -> PoolEngine:
    """Return the pool behind the prefix, with a local memory pool in front of it."""
    sizes = [value for name, value in url.query if name == _LOCAL]
    if len(sizes) != 1:
        raise url.refusal(f"{_LOCAL}, the size of the local tier, is needed once: &{_LOCAL}=2GiB")
    behind = replace(
        url,
        scheme=url.scheme.removeprefix(_TIERED),
        query=tuple((name, value) for name, value in url.query if name != _LOCAL),
    )
    local_nbytes = url.nbytes(_LOCAL, sizes[0])
    shared = _engine_class(behind).from_url(behind, memory)
    try:
        return TieredPool(MemoryPool(memory, capacity_nbytes=local_nbytes), shared)
    except BaseException:
        shared.close()
        raise


def _engine_class(url: PoolUrl) -> EngineClass:
    place = _ENGINES.get(url.scheme)
    if place is None:
        known = ", ".join(f"{scheme}://" for scheme in sorted(_ENGINES))
        raise url.refusal(
            f"the engine {shown(url.scheme)} is unknown; known are {known}, and {_TIERED} before "
            "one that is shared"
        )
    module, _, name = place.partition(":")
    try:
        return cast("EngineClass", getattr(import_module(module), name))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "ems":
            raise
        raise InvalidArgument(
            f"the pool {shown(masked(url.text))} needs the Python package {error.name}, which is "
            f"not installed; pip install 'ems[{url.scheme}]', or use {DEFAULT_URL}"
        ) from error
