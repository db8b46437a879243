"""Processes that share a pool of files and its names: what one saves another loads, or nobody."""

import random
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "sdk"))

from rank_processes import Rank

_PROCESSES = 2
_BLOCKS, _BLOCK_SIZE, _WIDTH = 16, 4, 24
_HASHES = 24
_VARIANTS = 3
"""Contents that processes may save under one hash."""


def shared_history(amount, seed):
    """Let processes make `amount` operations in all, at the same time; return how many hit.

    Raises:
        AssertionError: one of them read what nobody saved.
    """
    with tempfile.TemporaryDirectory(prefix="ems-history-", dir="/dev/shm") as home:
        ranks = [Rank() for _ in range(_PROCESSES)]
        try:
            for number, rank in enumerate(ranks):
                rank.start(live, number, home, f"{seed}-{number}", amount // _PROCESSES)
            return sum(rank.answer() for rank in ranks)
        finally:
            for rank in ranks:
                rank.kill()


def content(hash_, variant):
    """Return [tokens, bytes of a token]: what a process may save under a hash."""
    generator = np.random.default_rng((hash_, variant))
    return generator.integers(0, 256, (_BLOCK_SIZE, _WIDTH), np.uint8)


def live(number, home, seed, amount):
    """Be one of the processes; return how many blocks were found."""
    return _Process(number, home, seed).run(amount)


class _Process:
    def __init__(self, number, home, seed):
        import torch  # noqa: PLC0415 - in the child alone
        import torch_npu  # noqa: F401, PLC0415 - where torch does not load it by itself

        self.random = random.Random(seed)  # noqa: S311 - nothing is secret here
        self.seed, self.number, self.home = seed, number, home
        self.device = torch.zeros(_BLOCKS * _BLOCK_SIZE * _WIDTH, dtype=torch.uint8)
        self.device = self.device.to(f"npu:{number}")
        self.mirror = np.zeros((_BLOCKS, _BLOCK_SIZE, _WIDTH), np.uint8)
        self.torch = torch
        self.kept, self.small, self.hits = {}, False, 0
        """`kept`: what is in the pool with room, with the content where it is known."""

    def run(self, amount):
        from ems import Ems  # noqa: PLC0415 - in the child alone

        try:
            for at in range(amount):
                if at % 250 == 0:
                    self._begin(Ems)
                try:
                    self.random.choice([self._save, self._load, self._load])()
                except BaseException as failure:
                    raise AssertionError(f"{self.seed}, operation {at}: {failure}") from failure
        finally:
            Ems.shutdown()
        return self.hits

    def _begin(self, ems):
        from ems import CcConfig_v1, EmsConfig  # noqa: PLC0415 - in the child alone

        ems.shutdown()
        # both go from one pool to the other by themselves, so they meet now and then only
        self.small = self.random.random() < 0.5
        name, capacity = ("small", "128KiB") if self.small else ("large", "8MiB")
        config = CcConfig_v1(
            rank_id=self.number, device_id=self.number, model_id="m", kvcache_type="MLA"
        )
        url = f"lmdb://{self.home}/{name}?capacity={capacity}&staging=1MiB"
        ems.init(EmsConfig(cc_config_v1=config, pool=url))
        self.cc = ems.get_cc()
        shape = (_BLOCKS, _BLOCK_SIZE, 1, _WIDTH)
        self.cc.register_kvcache([[self.device.view(self.torch.int8).view(shape)]])

    def _pick(self):
        count = self.random.randint(1, 5)
        hashes = self.random.sample(range(_HASHES), count)
        blocks = self.random.sample(range(_BLOCKS), count)
        slots = [block * _BLOCK_SIZE + at for block in blocks for at in range(_BLOCK_SIZE)]
        return hashes, blocks, (slots, hashes, [_BLOCK_SIZE] * count)

    def _save(self):
        hashes, blocks, arguments = self._pick()
        for hash_, block in zip(hashes, blocks, strict=True):
            self.mirror[block] = content(hash_, self.random.randrange(_VARIANTS))
        self.device.copy_(self.torch.from_numpy(self.mirror.reshape(-1)))
        saved = self.cc.save(*arguments)
        assert self.small or saved.success == len(hashes), f"{saved} in a pool with room"
        if not self.small:
            for hash_ in hashes:
                self.kept.setdefault(hash_, None)

    def _load(self):
        hashes, blocks, arguments = self._pick()
        found = self.cc.load(*arguments)
        now = self.device.cpu().numpy().reshape(self.mirror.shape)
        must = next((at for at, one in enumerate(hashes) if one not in self.kept), len(hashes))
        assert self.small or found.success >= must, f"{found}, but {hashes[:must]} were saved"
        for hash_, block in list(zip(hashes, blocks, strict=True))[: found.success]:
            same = [bool((now[block] == content(hash_, one)).all()) for one in range(_VARIANTS)]
            assert any(same), f"hash {hash_} in block {block} holds what nobody saved"
            # in a pool with room the first content stays
            known = self.kept.get(hash_)
            assert self.small or known in {None, same.index(True)}, f"hash {hash_} has changed"
            if not self.small:
                self.kept[hash_] = same.index(True)
            self.mirror[block] = now[block]
            self.hits += 1
        assert (now == self.mirror).all(), f"blocks were written that {found} does not count"
