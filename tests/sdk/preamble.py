"""What the tests of the SDK begin with: the cache of a small model on a simulated NPU."""

import torch

from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig

BS = 4
DEV = "npu:0"
OPT = CcKvOption(timeout=60_000)
POOL = "memory://?capacity=64MiB&segment=16MiB"


def boot(*, pool=POOL, access_id=None, **fields):
    """Initialise and return the Context Caching object."""
    config = CcConfig_v1(**{"rank_id": 0, "device_id": 0, "model_id": "m-a", **fields})
    Ems.init(EmsConfig(access_id=access_id, cc_config_v1=config, pool=pool))
    return Ems.get_cc()


def buf(blocks=16, *, shape=(BS, 2, 8), dtype=torch.float16, seed=0, device=DEV):
    """Return a plane whose neighbouring elements always differ."""
    count = blocks * shape[0] * shape[1] * shape[2]
    values = (torch.arange(count) * 7 + seed * 131) % 2039
    return values.to(dtype).reshape(blocks, *shape).to(device)


def cache(layers=2, blocks=16, **keywords):
    return [
        [buf(blocks, seed=2 * at + plane, **keywords) for plane in range(2)] for at in range(layers)
    ]


def sl(*blocks, bs=BS):
    return [block * bs + at for block in blocks for at in range(bs)]


def planes(kv):
    return [plane for layer in kv for plane in layer]


def block(kv, number):
    """Return a copy of a block's elements in every plane."""
    return [plane[number].cpu().clone() for plane in planes(kv)]


def poison(kv, *numbers):
    for plane in planes(kv):
        for number in numbers:
            plane[number].fill_(-9)


def same(one, other):
    return all(bool((a == b).all()) for a, b in zip(one, other, strict=True))
