"""The pools of a history: well, too small, failing, or shared with what comes after.

`cluster` is the URL of a Mooncake cluster, or None.
"""

import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from history_model import Store

import ems.client
from ems import CcConfig, CcConfig_v1, EmsConfig
from ems.pool.faulty import FaultyPool
from ems.pool.registry import open_pool

_KINDS = {
    "memory": 35,
    "small": 25,
    "faulty": 16,
    "lmdb": 12,
    "small lmdb": 5,
    "tiered": 7,
}
_CLUSTERED = {"mooncake": 80, "memory": 10, "tiered": 10}
"""Instead, where there is a cluster."""


@dataclass
class Pool:
    """A pool, and what may be in it."""

    kind: str
    url: str
    store: Store = field(default_factory=Store)

    @property
    def evicts(self):
        """Whether it may forget what was saved."""
        return self.kind.startswith("small")

    @property
    def is_exact(self):
        """Whether a save is there from then on."""
        return not self.evicts and self.kind != "tiered"

    @property
    def in_process(self):
        return self.url.startswith("memory")

    @property
    def ends_in_time(self):
        """Whether nothing of a call that has timed out comes to pass later on."""
        return self.kind != "mooncake"


class Pools:
    """Chooses configurations; takes away what it made on the disk."""

    def __init__(self, random, cluster=None):
        self.random = random
        self._cluster = cluster
        self._kinds = _CLUSTERED if cluster else _KINDS
        self._home = Path(tempfile.mkdtemp(prefix="ems-history-", dir="/dev/shm"))
        self._shared = {}
        self._empty = False
        self.opened = None
        """The newest pool, as the library sees it, where it can be made to fail."""
        self._open_pool = ems.client.open_pool
        ems.client.open_pool = self._open

    def close(self):
        ems.client.open_pool = self._open_pool
        shutil.rmtree(self._home)

    def pool(self):
        """Return a pool: a fresh one, or one that has been used before."""
        kind = self.random.choices(list(self._kinds), list(self._kinds.values()))[0]
        self._empty = False
        if kind in {"memory", "faulty"}:
            pool = Pool(kind, "memory://?capacity=4MiB&segment=1MiB")
        elif kind == "small":
            segment = self.random.choice([512, 1024, 4096])
            pool = Pool(kind, f"memory://?capacity={4 * segment}&segment={segment}")
        elif kind == "mooncake":
            self._empty = kind not in self._shared
            url = f"{self._cluster}&staging=1MiB"
            pool = self._shared.setdefault(kind, Pool(kind, url))
        else:
            pool = self._of_files(kind)
        self.faulty = kind == "faulty"
        return pool

    def _of_files(self, kind):
        if kind in self._shared and self.random.random() < 0.8:
            return self._shared[kind]
        path = self._home / kind.replace(" ", "-")
        shutil.rmtree(path, ignore_errors=True)
        capacity = "256KiB" if kind == "small lmdb" else "16MiB"
        url = f"lmdb://{path}?capacity={capacity}&staging=1MiB"
        if kind == "tiered":
            url = f"tiered+{url}&local={self.random.choice(['2KiB', '1MiB'])}"
        self._shared[kind] = Pool(kind, url, Store(keeps_all=kind == "tiered"))
        return self._shared[kind]

    def configuration(self, pool):
        """Return an EmsConfig, and the names under which its caches and its buffers are kept."""
        random = self.random
        access, model = random.choice([None, "a"]), random.choice(["m-a", "m-b"])
        fields = {"rank_id": 0, "device_id": 0, "model_id": model, "tp_world_size": 2}
        if random.random() < 0.2:
            config, rank = {"cc_config": CcConfig(**fields)}, 0
        else:
            rank, kind = random.randrange(2), random.choice(["GQA", "MLA"])
            fields.update(rank_in_tp_group=rank, kvcache_type=kind)
            config = {"cc_config_v1": CcConfig_v1(**fields)}
            rank = None if kind == "MLA" else rank
        names = (access, model, rank), ("buffers", access, model)
        return EmsConfig(access_id=access, pool=pool.url, **config), names

    def _open(self, url, memory):
        pool = open_pool(url, memory)
        if self._empty:  # another history has used the cluster
            pool.clear()
        self.opened = pool = FaultyPool(pool) if self.faulty else pool
        return pool
