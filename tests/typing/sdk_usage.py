"""Calls of the SDK that a type checker accepts; never executed."""

from collections.abc import Sequence

import torch

from ems import (
    CcConfig,
    CcConfig_v1,
    CcFuture,
    CcKvOption,
    CcResult,
    ChunkDesc,
    ContextCache_v1,
    ContextCaching,
    Ems,
    EmsConfig,
    EmsErrorCode,
    EmsException,
    KvBufferWrapper,
    KVCacheType,
    PrimaryKey,
    StoreLayerGroupDesc,
)
from ems.cc_v1.cc_config import KVCacheType as KVCacheTypeV1
from ems.common.exception import EmsErrorCode as EmsErrorCodeCommon


def initialise() -> ContextCaching | None:
    config = CcConfig_v1(
        rank_id=0,
        device_id=0,
        model_id="m@revision",
        tp_world_size=2,
        pp_world_size=1,
        rank_in_tp_group=0,
        rank_in_pp_group=0,
        llm_engine="vllm",
    )
    config.kvcache_type = KVCacheType.MLA
    config.kvcache_type = "GQA"
    Ems.init(EmsConfig(access_id="a", access_key="", cc_config_v1=config, pool="memory://"))
    Ems.init(EmsConfig(cc_config=CcConfig(rank_id=8, device_id=0, model_id="m")))
    Ems.init(EmsConfig(cc_config=config))
    healthy: bool = Ems.check_health()
    return Ems.get_cc() if healthy else None


def register(cc: ContextCache_v1, kvcache: list[list[torch.Tensor]]) -> None:
    cc.register_kvcache(kvcache)
    cc.register_kvcache(
        kvcache, [StoreLayerGroupDesc(store_block_size=128, layer_ids=[0, 1], window=512)]
    )


def move(cc: ContextCaching, slots: list[int], hashes: list[int], offsets: list[int]) -> int:
    option = CcKvOption(write_rcache=True, read_local_only=False, timeout=5000)
    result: CcResult = cc.save(slots, hashes, offsets, option)
    result = cc.load(slot_mapping=slots, hashes=hashes, offsets=offsets, option=option)
    future: CcFuture = cc.async_save(slots, hashes, offsets)
    ready: bool = cc.is_ready(future)
    result = cc.get_result(future) if ready else future.result()
    result = cc.exists(hashes, option)
    return result.success * result.total


def other_forms(cc: ContextCaching, tensor: torch.Tensor) -> Sequence[CcFuture]:
    option = CcKvOption(timeout=0)
    buffer = KvBufferWrapper(tensor.data_ptr(), tensor.nbytes)
    return [
        cc.async_save(option, ["key"], [[buffer]]),
        cc.async_load(option=option, key_list=[PrimaryKey("key")], value_list=[[buffer]]),
        cc.async_save(slot_mapping=[0, 1], token_ids=[5, 6], mask=[False, True]),
        cc.async_load(hashes=[7], chunk_descs=[[ChunkDesc(start_slot=0, length=4)]]),
    ]


def failed(error: EmsException) -> str:
    if error.status_code() == EmsErrorCode.EMS_IO_TIMEOUT:
        return error.message()
    if error.status_code() is EmsErrorCodeCommon.EMS_RECOVERED_ERROR:
        Ems.init(EmsConfig())
    return f"{error.status_code().name} {KVCacheTypeV1.MLA.value}"


Ems.shutdown()
