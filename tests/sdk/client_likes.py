"""Clients as they are in the wild, reduced to their calls of the SDK.

The sequences are those of the public adapters of Omni-Infer: when they call what, with which names
and types, and what they make of the answers. The inference engine around them is a few lines.
"""

import os
from dataclasses import dataclass, field

import torch

from ems import (
    CcConfig,
    CcConfig_v1,
    CcKvOption,
    ContextCache_v1,
    ContextCaching,
    Ems,
    EmsConfig,
    EmsErrorCode,
    EmsException,
    KvBufferWrapper,
)
from ems.cc_v1.cc_config import KVCacheType

BLOCK_SIZE = 4
LAYERS = 2
BLOCKS = 16
ACCESS_ID = "cc_kvstore@_@ds_default_ns_001"


def chained_hashes(token_ids):
    """Return what the engine makes of a prompt: one signed 64-bit int for each whole block."""
    hashes, parent = [], 0
    for start in range(0, len(token_ids) - len(token_ids) % BLOCK_SIZE, BLOCK_SIZE):
        parent = hash((parent, *token_ids[start : start + BLOCK_SIZE]))
        hashes.append(parent)
    return hashes


@dataclass
class Prompt:
    """A request of a user, and the blocks that the engine gave it."""

    token_ids: list[int]
    block_ids: list[int]
    hashes: list[int] = field(init=False)

    def __post_init__(self):
        self.hashes = chained_hashes(self.token_ids)


class Model:
    """The forward pass: fills each block with what follows from its prefix and the rank."""

    def __init__(self, device, shard, *, mla=False):
        shapes = [(1, 16), (1, 4)] if mla else [(2, 8), (2, 8)]
        self.shard = 0 if mla else shard
        self.kv_caches = {
            f"model.layers.{layer}.attn": tuple(
                torch.zeros(BLOCKS, BLOCK_SIZE, *shape, dtype=torch.float16, device=device)
                for shape in shapes
            )
            for layer in range(LAYERS)
        }

    def planes(self):
        return [plane for planes in self.kv_caches.values() for plane in planes]

    def forward(self, prompt, computed_tokens=0):
        for number, parent in enumerate(prompt.hashes):
            if number * BLOCK_SIZE >= computed_tokens:
                for at, plane in enumerate(self.planes()):
                    plane[prompt.block_ids[number]].fill_(self.value(parent, at))

    def value(self, prefix, plane):
        return (prefix + 31 * plane + 7 * self.shard) % 2000 + 1

    def right_blocks(self, prompt):
        """Return how many leading blocks of a prompt hold what belongs there."""
        for number, parent in enumerate(prompt.hashes):
            block = prompt.block_ids[number]
            for at, plane in enumerate(self.planes()):
                if not bool((plane[block].cpu() == self.value(parent, at)).all()):
                    return number
        return len(prompt.hashes)

    def forget(self):
        for plane in self.planes():
            plane.zero_()


class ClientV1:
    """As the connector does it since December: tolerant of everything, asks health, comes back."""

    def __init__(self, rank, *, tp_world_size=1, mla=False, model_id="deepseek@r1", device_id=None):
        self.cc: ContextCache_v1 | None = None
        self.saves, self.loads = {}, {}
        self.errors = []
        self._need_reinit = False
        self._pending = None
        config = CcConfig_v1(
            rank_id=rank,
            device_id=rank if device_id is None else device_id,
            model_id=model_id,
            tp_world_size=tp_world_size,
            pp_world_size=1,
            rank_in_tp_group=rank,
            rank_in_pp_group=0,
            llm_engine="vllm@deepseek",
        )
        if mla:
            config.kvcache_type = KVCacheType.MLA
        self._config = EmsConfig(access_id=ACCESS_ID, access_key="", cc_config_v1=config)
        self.option = CcKvOption(write_rcache=True, read_local_only=False, timeout=60_000)
        self._init()
        self.periodic_check()

    def _init(self):
        try:
            Ems.init(self._config)
            self.cc = Ems.get_cc()
            self._need_reinit = False
        except EmsException as error:
            self._need_reinit = error.status_code() == EmsErrorCode.EMS_RECOVERD_ERROR
            self.errors.append(error.status_code().name)

    def periodic_check(self):
        status = Ems.check_health()
        if status is True and self._need_reinit:
            self._init()
            if self.cc is not None and self._pending is not None:
                self.register_kv_caches(self._pending)
        return status

    def register_kv_caches(self, kv_caches):
        if self.cc is None:
            self._pending = kv_caches
            return
        self.cc.register_kvcache([list(planes) for planes in kv_caches.values()])

    def _arguments(self, prompt, blocks):
        slots = torch.tensor(prompt.block_ids[:blocks]).repeat_interleave(BLOCK_SIZE) * BLOCK_SIZE
        slots += torch.arange(BLOCK_SIZE).repeat(blocks)
        return {
            "slot_mapping": slots.tolist(),
            "hashes": prompt.hashes[:blocks],
            "offsets": [BLOCK_SIZE] * blocks,
            "option": self.option,
        }

    def start_load_kv(self, prompts):
        for future in self.saves.values():
            self._result(future)
        self.saves = {}
        for name, prompt in prompts.items():
            # the block of the last token is always computed
            blocks = (len(prompt.token_ids) - 1) // BLOCK_SIZE
            if blocks:
                self._submit(self.loads, name, self.cc.async_load, self._arguments(prompt, blocks))

    def wait_for_save(self, prompts):
        for name, prompt in prompts.items():
            blocks = len(prompt.hashes)
            self._submit(self.saves, name, self.cc.async_save, self._arguments(prompt, blocks))

    def _submit(self, futures, name, call, arguments):
        try:
            futures[name] = call(**arguments)
        except EmsException as error:
            self.errors.append(error.status_code().name)

    def get_finished(self):
        """Return the blocks that each load brought, once all of them are over."""
        brought = {}
        while self.loads:
            for name, future in list(self.loads.items()):
                if future and not self.cc.is_ready(future):
                    continue
                del self.loads[name]
                brought[name] = self._result(future)
        return brought

    def _result(self, future):
        try:
            return self.cc.get_result(future).success
        except EmsException as error:
            if error.status_code() != EmsErrorCode.EMS_INVALID_ARGUMENT:
                self.errors.append(error.status_code().name)
            return 0


class ClientV0:
    """As the first adapter did it: keys and buffers, made once and passed again and again."""

    def __init__(self, rank, model, *, tp_world_size=1, mla=False):
        config = CcConfig(model_id="llama@13b", rank_id=rank, device_id=rank)
        Ems.init(EmsConfig(access_id=ACCESS_ID, access_key="", cc_config=config))
        self.cc: ContextCaching = Ems.get_cc()
        self.option = CcKvOption(write_rcache=True, read_local_only=False)
        self.rank, self.tp_world_size, self.mla = rank, tp_world_size, mla
        self._values = [
            [
                KvBufferWrapper(
                    plane[block].data_ptr(), plane[block].element_size() * plane[block].numel()
                )
                for plane in model.planes()
            ]
            for block in range(BLOCKS)
        ]

    def _keys_and_values(self, prompt):
        owner = 0 if self.mla else self.rank
        keys = [
            f"vllm@{ACCESS_ID}@pp0@tp{self.tp_world_size}@{owner}@{each}" for each in prompt.hashes
        ]
        return keys, [self._values[block] for block in prompt.block_ids[: len(keys)]]

    def save(self, prompt):
        keys, values = self._keys_and_values(prompt)
        if self.mla:  # each rank saves its share of what all of them have
            keys, values = keys[self.rank :: self.tp_world_size], values[self.rank :: 2]
        return self.cc.async_save(self.option, keys, values)

    def load(self, prompt):
        keys, values = self._keys_and_values(prompt)
        return self.cc.async_load(self.option, keys, values)


def use_pool(url):
    """Set what the clients do not know of: where the pool is."""
    Ems.shutdown()
    os.environ["EMS_POOL"] = url
