"""A rank of the soak: saves and loads at random, and compares every byte of its cache each time.

    python soak_rank.py '{"url": …, "rank": …, …}'

Ends when its input does. What it has done it writes into its status file once a second; what
is not as it must be, too, and ends with 3.
"""

import json
import random
import sys
import threading
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch_npu  # noqa: F401 - makes npu a device

from ems import (
    CcConfig_v1,
    CcKvOption,
    ChunkDesc,
    Ems,
    EmsConfig,
    EmsErrorCode,
    EmsException,
    KvBufferWrapper,
    KVCacheType,
    StoreLayerGroupDesc,
)
from ems.layout.token_hash import token_hashes

LAYERS, PLANES, BLOCKS, BS, TOKEN_NBYTES = 4, 2, 32, 16, 512
SLOTS = BLOCKS * BS
GROUPS = (StoreLayerGroupDesc(BS, [0, 1]), StoreLayerGroupDesc(2 * BS, [2, 3]))
ALL = tuple(range(LAYERS))
LONGEST = 2 * BS
"""Tokens that one hash has at most."""

SLACK_SECONDS = 15
"""A call may end this much after its deadline: the rank itself is stopped now and then."""
HELD_SECONDS = 60
"""After which what the pool holds for calls that have ended is lost."""

WINDOW = 120
"""Hashes that the ranks use at the same time; they go on to others together."""
STEP_SECONDS = 2.0
PROMPTS = 40

TABLE = np.random.default_rng(1).integers(0, 256, 1 << 22, np.uint8)


def content(hash_, layer, plane, tokens):
    """The bytes that a hash owns in a plane: `[tokens, TOKEN_NBYTES]`, whoever saves them."""
    nbytes = LONGEST * TOKEN_NBYTES
    at = zlib.crc32(f"{hash_!r} {layer} {plane}".encode()) % (TABLE.size - nbytes)
    return TABLE[at : at + nbytes].reshape(LONGEST, TOKEN_NBYTES)[:tokens]


class WrongError(Exception):
    """Something is not as it must be."""


@dataclass
class Call:
    """One call in flight."""

    what: str
    chunks: list
    """For each hash what it owns: `(hash, [(layers, slots), …])`."""
    arguments: dict
    timeout: float
    future: object = None
    began: float = 0.0
    slots: list = field(default_factory=list)


class Rank:
    """One rank's cache, what must be in it, and what was done."""

    def __init__(self, asked):
        self.asked = asked
        self.chance = random.Random(asked["seed"])  # noqa: S311 - a pattern, not a secret
        self.device = f"npu:{asked['device']}"
        self.done = Counter()
        self.worst = 0.0
        self.lost_since = None
        self.shadow = self.noise()
        self.seen = np.empty_like(self.shadow)
        self.kv = [
            [
                torch.from_numpy(self.shadow[layer, plane].view(np.int8))
                .reshape(BLOCKS, BS, 2, TOKEN_NBYTES // 2)
                .to(self.device)
                for plane in range(PLANES)
            ]
            for layer in range(LAYERS)
        ]
        self.cc = None
        self.grouped = False

    def noise(self):
        return np.random.default_rng(self.asked["seed"]).integers(
            0, 256, (LAYERS, PLANES, SLOTS, TOKEN_NBYTES), np.uint8
        )

    def boot(self):
        self.tell(opening=True)
        config = CcConfig_v1(
            rank_id=self.asked["rank"],
            device_id=self.asked["device"],
            model_id="soak",
            tp_world_size=16,
            rank_in_tp_group=self.asked["rank"],
            kvcache_type=KVCacheType.MLA,  # what one rank saves, the others load
        )
        Ems.init(EmsConfig(cc_config_v1=config, pool=self.asked["url"]))
        self.cc = Ems.get_cc()
        self.register()

    def register(self):
        self.grouped = self.chance.random() < 0.4
        self.cc.register_kvcache(self.kv, list(GROUPS) if self.grouped else None)
        self.done["registrations"] += 1

    def turn(self):
        """Make some calls at the same time, wait for all, and compare the cache."""
        blocks = list(range(BLOCKS))
        self.chance.shuffle(blocks)
        calls = []
        for _ in range(self.chance.randint(1, 3)):
            make = self.chance.choice(
                [self.by_groups]
                if self.grouped
                else [self.by_hashes, self.by_hashes, self.by_tokens, self.by_keys]
            )
            what = "save" if self.chance.random() < 0.4 else "load"
            calls.append(make(what, [blocks.pop() for _ in range(self.chance.randint(2, 10))]))
        for call in calls:
            self.start(call)
        self.ask_exists()
        for call in calls:
            self.end(call)
        self.compare(f"after {[(call.what, call.chunks) for call in calls]}")
        self.check_nothing_is_lost()

    def hashes(self, count):
        base = int((time.time() - self.asked["start"]) / STEP_SECONDS)
        first = base + self.chance.randrange(WINDOW)
        names = range(first, first + count)
        return [name if name % 3 else f"{name}".encode() for name in names]

    def by_hashes(self, what, blocks):
        hashes, chunks, slots = self.hashes(len(blocks)), [], []
        for hash_ in hashes:
            tokens = self.chance.choice([BS, BS, BS, BS, BS // 2, 3])
            start = blocks.pop() * BS
            own = list(range(start, start + tokens))
            if tokens == BS and self.chance.random() < 0.1 and blocks:
                start = blocks.pop() * BS
                own += range(start, start + self.chance.randint(1, BS))
            if not blocks:
                chunks.append((hash_, [(ALL, own)]))
                slots += own
                break
            chunks.append((hash_, [(ALL, own)]))
            slots += own
        return Call(
            what,
            chunks,
            {
                "slot_mapping": slots,
                "hashes": [hash_ for hash_, _ in chunks],
                "offsets": [len(parts[0][1]) for _, parts in chunks],
            },
            self.timeout(),
        )

    def by_tokens(self, what, blocks):
        base = int((time.time() - self.asked["start"]) / STEP_SECONDS / 20)
        prompt = base + self.chance.randrange(PROMPTS)
        count = len(blocks) * BS - self.chance.choice([0, 0, 5])
        ids = np.random.default_rng(prompt).integers(0, 100_000, 10 * BS)[:count]
        slots = [block * BS + at for block in blocks for at in range(BS)][:count]
        skipped = self.chance.choice([0, 0, 1])
        digests = token_hashes(ids, BS)[skipped:]
        chunks = [
            (digest, [(ALL, slots[at : at + BS])])
            for digest, at in zip(digests, range(skipped * BS, count, BS), strict=True)
        ]
        mask = [0] * (skipped * BS) + [1] * (count - skipped * BS)
        return Call(
            what, chunks, {"slot_mapping": slots, "token_ids": ids, "mask": mask}, self.timeout()
        )

    def by_keys(self, what, blocks):
        chunks, keys, values = [], [], []
        for hash_ in self.hashes(len(blocks)):
            key = f"key-{hash_!r}"
            layer = zlib.crc32(key.encode()) % LAYERS
            slots = list(range(start := blocks.pop() * BS, start + BS))
            chunks.append((key, [((layer,), slots)]))
            keys.append(key)
            values.append(
                [
                    KvBufferWrapper(plane.data_ptr() + start * TOKEN_NBYTES, BS * TOKEN_NBYTES)
                    for plane in self.kv[layer]
                ]
            )
        return Call(what, chunks, {"key_list": keys, "value_list": values}, self.timeout())

    def by_groups(self, what, blocks):
        chunks, descs = [], ([], [])
        # the second group keeps up to two blocks of a hash, in consecutive slots
        for hash_ in self.hashes(max(1, len(blocks) // 2)):
            first = blocks.pop() * BS
            parts = []
            for group, desc in zip(GROUPS, descs, strict=True):
                start = first
                length = self.chance.choice([BS, BS, BS - 5])
                parts.append((tuple(group.layer_ids), list(range(start, start + length))))
                desc.append(ChunkDesc(start, length))
            chunks.append((hash_, parts))
        arguments = {"hashes": [hash_ for hash_, _ in chunks], "chunk_descs": list(descs)}
        return Call(what, chunks, arguments, self.timeout())

    def timeout(self):
        return self.chance.choice([500, 2000, 5000, 5000]) / 1000

    def start(self, call):
        if call.what == "save":
            for chunk in call.chunks:
                self.expect(chunk)
            self.write_blocks({slot // BS for slot in slots_of(call.chunks)})
        call.began = time.monotonic()
        submit = self.cc.async_save if call.what == "save" else self.cc.async_load
        call.future = submit(
            **call.arguments, option=CcKvOption(timeout=round(call.timeout * 1000))
        )

    def end(self, call):
        until = call.began + call.timeout + SLACK_SECONDS
        while not self.cc.is_ready(call.future):
            if time.monotonic() > until:
                raise WrongError(f"{call.what} has not ended {SLACK_SECONDS} s after its deadline")
            time.sleep(0.002)
        self.took(call.began, call.timeout)
        self.done[f"{call.what}s"] += 1
        try:
            result = self.cc.get_result(call.future)
        except EmsException as error:
            self.failed(error)
            if call.what == "load":  # its slots may hold anything
                now = self.read()
                slots = slots_of(call.chunks)
                self.shadow[:, :, slots] = now[:, :, slots]
            return
        if result.total != len(call.chunks) or not 0 <= result.success <= result.total:
            raise WrongError(f"{result} of {len(call.chunks)} hashes")
        if call.what == "load":
            for chunk in call.chunks[: result.success]:
                self.expect(chunk)
            self.done["asked"] += result.total
            self.done["verified"] += result.success
        else:
            self.done["saved"] += result.success

    def ask_exists(self):
        hashes = self.hashes(self.chance.randint(1, 20))
        began = time.monotonic()
        result = self.cc.exists(hashes, CcKvOption(timeout=2000))
        self.took(began, 2)
        self.done["exists"] += 1
        if result.total != len(hashes) or not 0 <= result.success <= result.total:
            raise WrongError(f"exists says {result} of {len(hashes)}")

    def took(self, began, timeout):
        late = time.monotonic() - began - timeout
        self.worst = max(self.worst, late)
        if late > SLACK_SECONDS:
            raise WrongError(f"a call ended {late:.1f} s after its deadline")

    def failed(self, error):
        if error.status_code() not in (EmsErrorCode.EMS_IO_ERROR, EmsErrorCode.EMS_IO_TIMEOUT):
            raise WrongError(f"{error.status_code().name}: {error.message()}")
        self.done[error.status_code().name] += 1

    def expect(self, chunk):
        hash_, parts = chunk
        for layers, slots in parts:
            for layer in layers:
                for plane in range(PLANES):
                    self.shadow[layer, plane, slots] = content(hash_, layer, plane, len(slots))

    def write_blocks(self, blocks):
        for layer in range(LAYERS):
            for plane in range(PLANES):
                rows = self.shadow[layer, plane].view(np.int8)
                for block in blocks:
                    fresh = torch.from_numpy(rows[block * BS : block * BS + BS])
                    tensor = self.kv[layer][plane]
                    tensor[block].copy_(fresh.reshape(tensor.shape[1:]))

    def read(self):
        for layer, planes in enumerate(self.kv):
            for at, plane in enumerate(planes):
                torch.from_numpy(self.seen[layer, at]).copy_(
                    plane.view(torch.uint8).reshape(SLOTS, TOKEN_NBYTES)
                )
        return self.seen

    def compare(self, when):
        now = self.read()
        if not np.array_equal(now, self.shadow):
            wrong = np.argwhere((now != self.shadow).any(axis=-1))
            raise WrongError(f"wrong bytes in (layer, plane, slot) {wrong[:20].tolist()} {when}")
        self.done["turns"] += 1

    def check_nothing_is_lost(self):
        try:
            stats = self.cc.pool_stats()
        except EmsException:
            return
        if not stats.reserved_nbytes and not stats.held_nbytes:
            self.lost_since = None
            return
        self.lost_since = self.lost_since or time.monotonic()
        if time.monotonic() - self.lost_since > HELD_SECONDS:
            raise WrongError(f"no call runs, and the pool keeps {stats}")

    def tell(self, **more):
        path = Path(self.asked["status"])
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps({**self.done, "worst": self.worst, **more}))
        fresh.replace(path)


def slots_of(chunks):
    return [slot for _, parts in chunks for _, slots in parts for slot in slots]


def main():
    """Work until the input ends."""
    asked = json.loads(sys.argv[1])
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    rank = Rank(asked)
    try:
        work(rank, asked, ended)
    except Exception as error:
        rank.tell(wrong=f"{type(error).__name__}: {error}"[:2000])
        raise
    rank.tell(ended=True)
    Ems.shutdown()


def work(rank, asked, ended):
    told = 0.0
    used = time.thread_time()
    while not ended.is_set():
        wall = time.monotonic()
        try:
            if rank.cc is None:
                rank.boot()
            elif rank.chance.random() < 0.01:
                rank.register()
            rank.turn()
        except EmsException as error:
            if error.status_code() is not EmsErrorCode.EMS_RECOVERD_ERROR:
                rank.failed(error)
        if wall - told > 1:
            told = wall
            rank.tell()
        # this thread gets no more than its share of a core; the others take about as much again
        before, used = used, time.thread_time()
        rest = (used - before) / asked["share"] - (time.monotonic() - wall)
        ended.wait(min(max(rest, 0.01), 5))


if __name__ == "__main__":
    main()
