"""Context caching for LLM inference on Ascend NPUs: the EMS Context Caching SDK.

Importing this package imports neither torch nor torch_npu and initialises nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ems.cc_v1.cc_config import CcConfig_v1, KVCacheType
    from ems.client import Ems
    from ems.common.addressing import ChunkDesc, KvBufferWrapper, PrimaryKey
    from ems.common.exception import EmsErrorCode, EmsException
    from ems.common.future import CcFuture
    from ems.common.option import CcKvOption
    from ems.common.result import CcResult
    from ems.common.store_layer_group import StoreLayerGroupDesc
    from ems.config import CcConfig, EmsConfig
    from ems.context_caching import ContextCache_v1, ContextCaching

__all__ = [
    "CcConfig",
    "CcConfig_v1",
    "CcFuture",
    "CcKvOption",
    "CcResult",
    "ChunkDesc",
    "ContextCache_v1",
    "ContextCaching",
    "Ems",
    "EmsConfig",
    "EmsErrorCode",
    "EmsException",
    "KVCacheType",
    "KvBufferWrapper",
    "PrimaryKey",
    "StoreLayerGroupDesc",
]

_HOMES = {
    "ChunkDesc": "ems.common.addressing",
    "PrimaryKey": "ems.common.addressing",
    "KvBufferWrapper": "ems.common.addressing",
    "CcConfig": "ems.config",
    "CcConfig_v1": "ems.cc_v1.cc_config",
    "CcFuture": "ems.common.future",
    "CcKvOption": "ems.common.option",
    "CcResult": "ems.common.result",
    "ContextCache_v1": "ems.context_caching",
    "ContextCaching": "ems.context_caching",
    "Ems": "ems.client",
    "EmsConfig": "ems.config",
    "EmsErrorCode": "ems.common.exception",
    "EmsException": "ems.common.exception",
    "KVCacheType": "ems.cc_v1.cc_config",
    "StoreLayerGroupDesc": "ems.common.store_layer_group",
}


def __getattr__(name: str) -> Any:
    """Import a name of the SDK when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'ems' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the SDK's names beside the module's own."""
    return sorted({*globals(), *__all__})
