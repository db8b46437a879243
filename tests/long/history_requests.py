"""Random saves and loads in all forms, with the bytes that they name."""

from dataclasses import dataclass, field

import numpy as np
from history_caches import CELL

from ems import ChunkDesc, PrimaryKey

HASHES = (*range(12), -3, 2**63, -(2**70), "ab", b"ab", "x" * 70)
_BUFFER_KEYS = ("a", "b", "k" * 127, "c", "d", "é")


@dataclass
class Part:
    """What a request moves in one layer group, or as buffers."""

    keys: list
    places: list
    """By hash, the positions of its bytes in the memory, token after token; None for nothing."""
    tokens: list
    window: int | None = None

    def nbytes(self, at):
        return len(self.places[at])


@dataclass
class Request:
    """The arguments of a call, and what they mean."""

    form: str
    arguments: dict
    parts: list
    device: int
    """On which NPU all of its bytes lie."""
    hashes: list = field(default_factory=list)

    def __post_init__(self):
        self.count = len(self.parts[0].keys)
        self.tokens = [max(part.tokens[at] for part in self.parts) for at in range(self.count)]
        self.windows = [part.window for part in self.parts]
        keys = self.parts[0].keys
        self.first = [keys.index(key) for key in keys]
        self.keys = {key for part in self.parts for key in part.keys}
        named = [place for part in self.parts for place in part.places if place is not None]
        self.bytes = np.concatenate(named)
        """All positions that it names."""


class Requests:
    """Makes requests on the memory's caches; `names` are (of the cache, of the buffers)."""

    def __init__(self, random, memory):
        self.random = random
        self.memory = memory

    def request(self, cache, names, *, writes, hashes=None):
        random = self.random
        if cache is None or (hashes is None and random.random() < 0.12):
            return self._buffers(names[1])
        if hashes is None and cache.one_block_size and random.random() < 0.15:
            made = self._tokens(cache, names[0])
            if made is not None:
                return made
        if not cache.one_block_size or (hashes is None and random.random() < 0.3):
            return self._chunks(cache, names[0], writes=writes, hashes=hashes)
        return self._slots(cache, names[0], hashes=hashes)

    def hashes(self):
        random = self.random
        count = random.randint(1, 5)
        if random.random() < 0.5:
            start = random.randrange(len(HASHES) - count)
            return list(HASHES[start : start + count])
        return [random.choice(HASHES) for _ in range(count)]

    def _slots(self, cache, name, *, hashes=None):
        random = self.random
        size = cache.groups[0].block_size
        slots = min(group.slots for group in cache.groups)
        most = min(*(group.most for group in cache.groups), 2 * size + 1)
        hashes, offsets = hashes or self.hashes(), None
        if random.random() < 0.6:
            offsets = [size] * len(hashes)
            if random.random() < 0.3:
                offsets[-1] = random.randint(1, size)
            blocks = random.sample(range(slots // size), len(hashes))
            named = [block * size + at for block in blocks for at in range(size)]
            named = named[: sum(offsets)]
        else:
            offsets = [random.randint(1, most) for _ in hashes]
            while sum(offsets) > slots:
                offsets = [max(1, one - 1) for one in offsets]
            if random.random() < 0.5:
                start = random.randint(0, slots - sum(offsets))
                named = list(range(start, start + sum(offsets)))
            else:
                named = random.sample(range(slots), sum(offsets))
        arguments = {"slot_mapping": named, "hashes": hashes, "offsets": offsets}
        return self.of_slots("slots", arguments, cache, name)

    def _tokens(self, cache, name):
        random = self.random
        size = cache.groups[0].block_size
        slots = min(group.slots for group in cache.groups)
        count = random.randint(1, 3 * size)
        ids = [random.randrange(2) for _ in range(count)]
        if random.random() < 0.7:
            ids = [0] * max(0, count - 2) + ids[:2]
            ids = ids[:count]
        skipped = random.choice([0, 0, size]) if count > size else 0
        named = random.sample(range(slots), count)
        if random.random() < 0.5:
            start = random.randint(0, slots // size - (count + size - 1) // size) * size
            named = list(range(start, start + count))
        arguments = {"slot_mapping": named, "token_ids": ids}
        if skipped or random.random() < 0.5:
            arguments["mask"] = [int(at >= skipped) for at in range(count)]
        ends = [*range(skipped + size, count, size), count]
        hashes = [("tokens", *ids[:end]) for end in ends]
        offsets = [end - start for end, start in zip(ends, [skipped, *ends], strict=False)]
        meant = {"slot_mapping": named[skipped:], "hashes": hashes, "offsets": offsets}
        return self.of_slots("tokens", arguments, cache, name, meant)

    def of_slots(self, form, arguments, cache, name, meant=None):
        """Return a request; `meant` says the slots and hashes of other arguments."""
        named, hashes, offsets = (meant or arguments).values()
        ends = np.cumsum(offsets)
        cuts = [named[end - one : end] for end, one in zip(ends, offsets, strict=True)]
        parts = [
            Part(
                [(name, group.signature, one) for one in hashes],
                [group.rows[cut].ravel() for cut in cuts],
                list(offsets),
                group.window,
            )
            for group in cache.groups
        ]
        return Request(form, arguments, parts, cache.device, hashes)

    def _chunks(self, cache, name, *, writes, hashes=None):
        random = self.random
        hashes = hashes or self.hashes()
        chosen = []
        for group in cache.groups:
            width = min(group.most, 2 * group.block_size)
            cells = random.sample(
                range(group.slots // width), min(len(hashes), group.slots // width)
            )
            hashes = hashes[: len(cells)]
            chosen.append((group, width, cells))
        descs, parts = [], []
        for group, width, cells in chosen:
            mine, places, tokens = [], [], []
            # one group at least keeps something of every hash
            may_leave = group.window is not None and group is not cache.groups[0]
            for cell in cells[: len(hashes)]:
                if may_leave and random.random() < 0.3:
                    mine.append(None)
                    places.append(None)
                    tokens.append(0)
                    continue
                length = width if random.random() < 0.6 else random.randint(1, width)
                start = cell * width + random.randint(0, width - length)
                if not writes and random.random() < 0.2:
                    start = random.randint(0, group.slots - length)
                made = [(start, length), ChunkDesc(start, length), [start, length]]
                mine.append(random.choice([*made, {"start_slot": start, "length": length}]))
                places.append(group.rows[start : start + length].ravel())
                tokens.append(length)
            descs.append(mine)
            keys = [(name, group.signature, one) for one in hashes]
            parts.append(Part(keys, places, tokens, group.window))
        arguments = {"hashes": hashes, "chunk_descs": descs}
        return Request("chunks", arguments, parts, cache.device, hashes)

    def _buffers(self, name):
        random = self.random
        keys = random.sample(_BUFFER_KEYS, random.randint(1, 3))
        values, places = [], []
        device = random.choice([0, 0, 1])
        cells = iter(random.sample(self.memory.cells[device], 9))
        for _ in keys:
            spans = [
                (next(cells), random.choice([1, CELL, CELL, random.randint(1, CELL)]))
                for _ in range(random.randint(1, 3))
            ]
            values.append([self.memory.buffer(*span) for span in spans])
            places.append(np.concatenate([np.arange(start, start + size) for start, size in spans]))
        given = [PrimaryKey(key) if random.random() < 0.3 else key for key in keys]
        part = Part([(name, key) for key in keys], places, [len(one) for one in places])
        return Request("buffers", {"key_list": given, "value_list": values}, [part], device)
