"""Two ranks, each a process with an NPU of its own, on one pool of the host."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from scripts import PATIENCE

RANK = """
import sys, time
from pathlib import Path
import torch, torch_npu
from ems import CcConfig_v1, CcKvOption, Ems, EmsConfig

BS, LAYERS, OPTION = 4, 3, CcKvOption(timeout=60_000)
rank, kind, home = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
shared = kind == "MLA"

def content(hash_, owner):
    generator = torch.Generator().manual_seed(hash_ * 100 + (0 if shared else owner))
    shape = (LAYERS, 2, BS, 2, 64)
    return torch.randn(shape, generator=generator, dtype=torch.float32).to(torch.float16)

def slots(*blocks):
    return [block * BS + at for block in blocks for at in range(BS)]

def holds(block, expected):
    return all(
        torch.equal(plane[block].cpu(), expected[layer][at])
        for layer, planes in enumerate(kv) for at, plane in enumerate(planes)
    )

config = CcConfig_v1(
    rank_id=rank, device_id=rank, model_id="m", tp_world_size=2, rank_in_tp_group=rank,
    kvcache_type=kind,
)
Ems.init(EmsConfig(cc_config_v1=config, pool=f"lmdb://{home}/pool?capacity=16MiB&staging=8MiB"))
cc = Ems.get_cc()
kv = [
    [torch.zeros(16, BS, 2, 64, dtype=torch.float16, device=f"npu:{rank}") for _ in range(2)]
    for _ in range(LAYERS)
]
cc.register_kvcache(kv)
own, others = [[10 * one + at for at in range(4)] for one in (rank, 1 - rank)]
for block, hash_ in enumerate(own):
    for layer, planes in enumerate(kv):
        for at, plane in enumerate(planes):
            plane[block].copy_(content(hash_, rank)[layer][at])
assert cc.save(slots(0, 1, 2, 3), own, [BS] * 4, OPTION).success == 4
(home / f"saved-{rank}").touch()
end = time.monotonic() + 120
while not (home / f"saved-{1 - rank}").exists():
    assert time.monotonic() < end
    time.sleep(0.01)
assert cc.load(slots(4, 5, 6, 7), own, [BS] * 4, OPTION).success == 4
assert all(holds(4 + at, content(hash_, rank)) for at, hash_ in enumerate(own))
found = cc.load(slots(8, 9, 10, 11), others, [BS] * 4, OPTION).success
if found:
    assert all(holds(8 + at, content(hash_, 1 - rank)) for at, hash_ in enumerate(others))
print("found", found)
Ems.shutdown()
"""


@pytest.fixture
def home():
    home = Path(tempfile.mkdtemp(prefix="ems-tests-", dir="/dev/shm"))
    yield home
    shutil.rmtree(home)


@pytest.mark.parametrize(("kind", "found"), [("MLA", 4), ("GQA", 0)])
def test_ranks_share_what_is_equal_and_keep_apart_what_is_not(home, kind, found):
    # cases 10 and 36
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), kind, home],
            env=os.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank in ranks:
        said, complaints = rank.communicate(timeout=PATIENCE)
        assert rank.returncode == 0, complaints
        assert said == f"found {found}\n"
