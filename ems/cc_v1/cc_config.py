"""What a registered cache's configuration says of its rank. The module's path is the SDK's."""

import enum
from dataclasses import dataclass


class KVCacheType(str, enum.Enum):
    """How the model's attention keeps keys and values; a string enum."""

    GQA = "GQA"
    MHA = "MHA"
    MQA = "MQA"
    MLA = "MLA"
    """All ranks of a TP group hold the same data and share its entries."""


@dataclass
class CcConfig_v1:  # noqa: N801 - the SDK's name
    """Which rank of which model this process is.

    Mutable, because callers assign `kvcache_type` after construction; read once, by `Ems.init`.
    Ranks and sizes are not checked against each other, for the SDK's own samples pass rank_id 8
    with world sizes of 1; a rank in a group beyond its size is warned about.
    """

    rank_id: int
    """Global rank in the instance, at least 0."""
    device_id: int
    """Index among the NPUs that this process can see (ASCEND_RT_VISIBLE_DEVICES)."""
    model_id: str
    """1 to 512 printable characters. Weights' revision and adapter belong in it: hashes name only
    tokens, so models that differ must differ here ("name@revision", "name@adapter")."""
    tp_world_size: int = 1
    """Ranks of the tensor-parallel group, at least 1."""
    pp_world_size: int = 1
    """Stages of the pipeline, at least 1."""
    rank_in_tp_group: int = 0
    """From 0. Rank and size are part of every key, so a deployment of another size, or a rank that
    counts otherwise, finds nothing."""
    rank_in_pp_group: int = 0
    """From 0; as above."""
    llm_engine: str = "vllm"
    """Any string; engines apart do not share entries."""
    kvcache_type: KVCacheType | str = KVCacheType.GQA
    """A member or its name. For MLA the TP rank is left out of the keys."""
