"""A model of saving and loading that knows only tokens: bytes are moved one token at a time."""

from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st
from layout_examples import ITEMSIZE, facts

from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.copy_plan import entry_nbytes, plan_spans
from ems.layout.registration import register
from ems.layout.request import Chunks

POISON = 0xEE


class Memory:
    """Bytes at an address, and how often each was written."""

    def __init__(self, base, content):
        self.base = base
        self.content = content
        self.writes = np.zeros(len(content), np.int64)

    def at(self, address, nbytes):
        start = int(address) - self.base
        assert start >= 0
        assert start + nbytes <= len(self.content)
        return slice(start, start + int(nbytes))


def copy(target, source, pairs):
    """Run `pairs` of target address, source address and length as memcpys."""
    for to, where, nbytes in pairs:
        target.content[target.at(to, nbytes)] = source.content[source.at(where, nbytes)]
        target.writes[target.at(to, nbytes)] += 1


def pairs_of(spans, *, save):
    columns = (spans.device.tolist(), spans.host.tolist(), spans.nbytes.tolist())
    return [(h, d, n) if save else (d, h, n) for d, h, n in zip(*columns, strict=True)]


@dataclass
class TokenPlane:
    """Where the tokens of one tensor are, worked out from what was drawn and not by `ems`."""

    address: int
    block_stride: int
    block_size: int
    token_nbytes: int

    def token(self, slot):
        block, within = slot // self.block_size, slot % self.block_size
        return self.address + block * self.block_stride + within * self.token_nbytes


@dataclass
class Cache:
    registration: object
    token_planes: list
    """By group, in the order of its layers."""
    base: int
    nbytes: int

    def memory(self, seed):
        rng = np.random.default_rng(seed)
        return Memory(self.base, rng.integers(0, 256, self.nbytes, np.uint8))


def naive_pairs(token_planes, slots, tokens, entries, stored, *, save):  # noqa: PLR0913 - as `plan`
    """Return one memcpy per token and plane."""
    pairs = []
    start = 0
    for count, entry, stored_count in zip(tokens, entries, stored, strict=True):
        part = int(entry)
        for plane in token_planes:
            for i, slot in enumerate(slots[start : start + count]):
                device, host = plane.token(int(slot)), part + i * plane.token_nbytes
                pairs.append(
                    (host, device, plane.token_nbytes)
                    if save
                    else (device, host, plane.token_nbytes)
                )
            part += -(-int(stored_count) * plane.token_nbytes // 64) * 64
        start += count
    return pairs


@st.composite
def caches(draw):
    """One to three groups of layers, their tensors dense, padded, shifted or in shared pages."""
    base = draw(st.sampled_from([4096, (1 << 32) - 512, (1 << 40) + 64, (1 << 47) - 4096]))
    address = base
    kvcache, token_planes, descriptions = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        block_size = draw(st.integers(1, 5))
        num_blocks = draw(st.integers(1, 6))
        ids, planes = [], []
        for _ in range(draw(st.integers(1, 2))):
            shapes = draw(
                st.lists(
                    st.tuples(
                        st.sampled_from(sorted(ITEMSIZE)), st.integers(1, 3), st.integers(1, 40)
                    ),
                    min_size=1,
                    max_size=3,
                )
            )
            if draw(st.booleans()):  # K and V alike, with parts that need no padding
                shapes = [("float16", 1, 32)] * len(shapes)
            address += draw(st.sampled_from([0, 4, 64, 100]))
            made, address = _layer(draw, shapes, num_blocks, block_size, address)
            ids.append(len(kvcache))
            kvcache.append([each for each, _ in made])
            planes += [plane for _, plane in made]
        token_planes.append(planes)
        descriptions.append(StoreLayerGroupDesc(10**6, ids))
    return Cache(register(kvcache, descriptions), token_planes, base, address - base + 100)


def _layer(draw, shapes, num_blocks, block_size, address):
    tokens = [ITEMSIZE[dtype] * heads * size for dtype, heads, size in shapes]
    blocks = [-(-block_size * nbytes // 4) * 4 for nbytes in tokens]  # the next may hold floats
    one_page = draw(st.booleans())
    padding = draw(st.sampled_from([0, 0, 4, 64]))
    page = sum(blocks) + padding
    made = []
    for (dtype, heads, size), token_nbytes, block_nbytes in zip(
        shapes, tokens, blocks, strict=True
    ):
        stride = page if one_page else block_nbytes + padding
        three = heads == 1 and draw(st.booleans())
        shape = (num_blocks, block_size, *(() if three else (heads,)), size)
        inner = (heads * size, size, 1)[: None if not three else 1] + ((1,) if three else ())
        strides = (stride // ITEMSIZE[dtype], *inner)
        tensor = facts(shape, address=address, dtype=dtype, strides=strides)
        made.append((tensor, TokenPlane(address, stride, block_size, token_nbytes)))
        address += block_nbytes if one_page else num_blocks * stride
    if one_page:
        address += (num_blocks - 1) * page + padding
    return made, address


@st.composite
def cuts(draw, group):
    """Distinct slots in the order of a request, and the tokens of each chunk."""
    size, blocks = group.block_size, group.num_blocks
    kind = draw(st.sampled_from(["blocks", "in order", "shuffled slots", "shuffled blocks"]))
    order = draw(st.permutations(range(blocks)))
    if kind == "in order":
        order = range(blocks)
    slots = [block * size + i for block in order for i in range(size)]
    if kind == "blocks":
        count = draw(st.integers(1, blocks))
        return np.array(slots[: count * size]), np.full(count, size, np.int64)
    if kind == "shuffled slots":
        slots = draw(st.permutations(slots))
    first = draw(st.integers(0, len(slots) - 1))
    slots = slots[first : draw(st.integers(first + 1, len(slots)))]
    longest = draw(st.sampled_from([1, 2, 5, 30]))
    tokens = []
    while sum(tokens) < len(slots):
        tokens.append(draw(st.integers(1, min(longest, len(slots) - sum(tokens)))))
    return np.array(slots, np.int64), np.array(tokens, np.int64)


def chunks_of(group, slots, tokens):
    return Chunks(slots, tokens, group.block_size)


@st.composite
def entries_for(draw, group, stored, base):
    """Places of entries that do not overlap, in any order, some of them neighbours."""
    sizes = entry_nbytes(group, stored)
    places = np.zeros(len(stored), np.uint64)
    address = base
    for index in draw(st.permutations(range(len(stored)))):
        address += draw(st.sampled_from([0, 0, 64, 192]))
        places[index] = address
        address += int(sizes[index])
    return places, Memory(base, np.full(address - base + 64, POISON, np.uint8))


def plan(group, slots, tokens, entries, stored, *, which=None):  # noqa: PLR0913 - a request
    which = np.arange(len(tokens)) if which is None else np.array(which, np.int64)
    chunks = chunks_of(group, slots, tokens)
    return plan_spans(group, chunks, which, entries[which], stored[which])
