"""Registrations of any geometry, arguments of any form, and copy plans against a plain model."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
from copy_model import Cache, Memory, TokenPlane, copy, naive_pairs, pairs_of
from layout_examples import ITEMSIZE, dense, facts
from sdk_calls import BLOCKS, BS, Arguments

from ems.common.exception import InvalidArgument
from ems.common.store_layer_group import StoreLayerGroupDesc
from ems.layout.buffers import BufferPart
from ems.layout.call import parse_call
from ems.layout.copy_plan import entry_nbytes, plan_spans
from ems.layout.key import make_keys
from ems.layout.registered import Registered
from ems.layout.registration import register
from ems.layout.request import Chunks

_SIZES = (*range(1, 6), 7, 16, 64, 128, 0, -1, 2**20, 2**31, 2**33, 2**62)
_ADDRESSES = (4096, 2**32 - 512, 2**47 - 4096, 0, 1, -8, 2**63 - 64, 2**63, 2**64)
_MODELLED = 2000
"""Blocks up to which every one of them is looked at."""


def registration(random):
    """Tensors of any geometry are refused, or no byte of them belongs to two."""
    kvcache = [
        [_tensor(random) for _ in range(random.choice((1, 1, 2, 2, 3)))]
        for _ in range(random.choice((1, 2, 3)))
    ]
    if random.random() < 0.2:
        kvcache.append(list(kvcache[0]))
    found = register(kvcache, _descriptions(random, len(kvcache)), device_id=0)
    assert found == register(kvcache, _same(found), device_id=0) or len(found.groups) != 1
    planes = [plane for group in found.groups for plane in group.planes]
    assert all(0 < plane.address < plane.end <= 2**63 for plane in planes)
    assert all(group.num_blocks >= 1 for group in found.groups)
    if sum(plane.num_blocks for plane in planes) <= _MODELLED:
        taken = sorted(
            (plane.address + at * plane.block_stride, plane.block_nbytes)
            for plane in planes
            for at in range(plane.num_blocks)
        )
        assert all(one + nbytes <= other for (one, nbytes), (other, _) in pairwise(taken))
    return True


def _same(found):
    group = found.groups[0]
    if group.store_block_size is None:
        return None
    return [StoreLayerGroupDesc(group.store_block_size, list(group.layer_ids), group.window)]


def _tensor(random):
    wild = random.random()
    pick = (lambda: random.choice(_SIZES)) if wild < 0.3 else (lambda: random.choice(_SIZES[:7]))
    dimensions = 4 if wild > 0.1 else random.randrange(7)
    shape = tuple(pick() for _ in range(dimensions))
    if random.random() < 0.4:
        shape = (6, 4, 2, 8)[: len(shape)] if len(shape) == 4 else shape
    dtype = random.choice(sorted(ITEMSIZE))
    strides = list(dense(shape)) if shape else []
    if strides and random.random() < 0.3:
        at = random.randrange(len(strides))
        strides[at] = random.choice((strides[at] * 2, strides[at] + 16, 0, 1, -1, *_SIZES[-4:]))
    near = random.choice((*_ADDRESSES[:3], 4096 + 64 * random.randrange(64)))
    address = near if random.random() < 0.3 else random.randrange(1, 4096) << 40
    tensor = facts(shape, address=address, dtype=dtype, strides=tuple(strides))
    if random.random() < 0.1:
        changes = {
            "device": random.choice(("cpu", "npu:1", "npu", "", "meta")),
            "address": random.choice(_ADDRESSES),
            "npu_format": random.choice((0, 2, 29, 99, -1)),
        }
        name = random.choice(sorted(changes))
        tensor = replace(tensor, **{name: changes[name]})
    if math.prod(abs(n) for n in tensor.shape[:1]) > 2**24 and wild > 0.05:
        tensor = replace(tensor, shape=(8, *tensor.shape[1:]))
    return tensor


def _descriptions(random, layers):
    kind = random.random()
    if kind < 0.4:
        return None
    ids = list(range(layers))
    random.shuffle(ids)
    cut = random.randrange(layers + 1)
    made = [
        StoreLayerGroupDesc(
            random.choice((1, 4, 128, 0, -1, 2**70)),
            part,
            random.choice((None, None, 1, 4096, 0, True)),
        )
        for part in (ids[:cut], ids[cut:])
        if part or kind < 0.5
    ]
    if kind > 0.9:
        made[0] = replace(made[0], layer_ids=random.choice(([0, 0], [-1], ["a"], [layers], None)))
    return made if kind < 0.97 else random.choice(([], "a", 7, [None]))


def _caches():
    """Registered caches as the calls of `Arguments` mean them, and of groups with a window."""
    shape = (BLOCKS, BS, 2, 8)
    tensors = [[facts(shape, address=(1 + at << 30) + (p << 20)) for p in (0, 1)] for at in (0, 1)]
    groups = [StoreLayerGroupDesc(4, [0], window=4), StoreLayerGroupDesc(8, [1])]
    mixed = [[facts((32, 2, 1, 16), address=1 << 33)], [facts(shape, address=1 << 34)]]
    for kvcache, parts in ((tensors, None), (tensors, groups), (mixed, groups)):
        found = register(kvcache, parts)
        yield Registered(found, tuple(f"g{group.index}-" for group in found.groups))


CACHES = (*_caches(), None)


def arguments(random):
    """Whatever a call has for arguments: it is parsed into parts that are sound, or refused."""
    made = Arguments(random.random())
    given = made.spoiled({**made.form(), "option": made.option()})
    whole = dict.fromkeys(("slot_mapping", "hashes", "offsets", "option")) | given
    registered = random.choice(CACHES)
    call = parse_call(
        whole,
        registered=registered,
        buffer_key_prefix="b-",
        writes=random.random() < 0.5,
    )
    for part in call.parts:
        keys, tokens = part.keys, part.tokens
        assert len(keys) == tokens.size == part.nbytes.size > 0
        assert (part.nbytes >= 0).all()
        if isinstance(part, BufferPart):
            assert int(part.lengths.sum()) == int(part.nbytes.sum())
            continue
        chunks, group = part.chunks, part.group
        assert int(chunks.tokens.sum()) == chunks.slots.size == int(chunks.runs.length.sum())
        assert not chunks.slots.size or 0 <= chunks.slots.min() <= chunks.slots.max()
        assert not chunks.slots.size or chunks.slots.max() < group.num_slots
        owned = np.flatnonzero(tokens)
        if owned.size:
            addresses = np.cumsum(part.nbytes[owned]).astype(np.uint64)
            spans = part.spans(owned, addresses, tokens[owned])
            assert spans.total_nbytes == chunks.slots.size * group.token_nbytes
    return bool(call.parts)


def keys(random):
    """Different hashes have different keys, each a short line of ASCII."""
    pool = (0, -1, 1, 2**63, -(2**256), 2**300, "1", "i1", b"1", "\ud800", "x" * 99, b"\0" * 80)
    hashes = list(dict.fromkeys(random.choice((*pool, random.getrandbits(256))) for _ in range(6)))
    made = make_keys("ems1-prefix-", hashes)
    assert len(set(made)) == len(hashes)
    assert all(key.isascii() and key.isprintable() and len(key) < 256 for key in made)
    return True


def copy_plan(random):
    """A plan moves, byte for byte, what moving each token of each plane by itself moves."""
    cache = _cache(random)
    at = random.randrange(len(cache.token_planes))
    group, planes = cache.registration.groups[at], cache.token_planes[at]
    slots, tokens = _cut(random, group)
    more = [random.choice((0, 0, 1, 3)) for _ in tokens]
    stored = tokens + np.array(more, np.int64)
    entries, host = _entries(random, group, stored)
    which = np.array(
        sorted(random.sample(range(len(tokens)), random.randint(1, len(tokens)))), np.int64
    )
    chunks = Chunks(slots, tokens, group.block_size)
    spans = plan_spans(group, chunks, which, entries[which], stored[which])
    device = cache.memory(random.getrandbits(32))
    planned, plain = (Memory(host.base, host.content.copy()) for _ in range(2))
    copy(planned, device, pairs_of(spans, save=True))
    starts = np.cumsum(tokens) - tokens
    for chunk in which:
        own = slots[starts[chunk] : starts[chunk] + tokens[chunk]]
        one = [each[chunk : chunk + 1] for each in (tokens, entries, stored)]
        copy(plain, device, naive_pairs(planes, own, *one, save=True))
    assert np.array_equal(planned.content, plain.content)
    assert np.array_equal(planned.writes, plain.writes)
    loaded = [Memory(cache.base, np.zeros(cache.nbytes, np.uint8)) for _ in range(2)]
    copy(loaded[0], planned, pairs_of(spans, save=False))
    copy(loaded[1], device, [(d, d, n) for d, _, n in pairs_of(spans, save=False)])
    assert np.array_equal(loaded[0].content, loaded[1].content)
    assert spans.total_nbytes == int(tokens[which].sum()) * group.token_nbytes
    return True


def _cache(random):
    """Some groups of layers; tensors dense, padded, or in one page with those of their layer."""
    base = address = random.choice((4096, (1 << 32) - 512, (1 << 40) + 64, (1 << 47) - 4096))
    kvcache, token_planes, descriptions = [], [], []
    for _ in range(random.randint(1, 2)):
        block_size, blocks = random.randint(1, 5), random.randint(1, 6)
        ids, planes = [], []
        for _ in range(random.randint(1, 2)):
            count, one_page = random.randint(1, 3), random.random() < 0.5
            dtype = random.choice(sorted(ITEMSIZE))
            heads, size = random.choice(((1, 32), (random.randint(1, 3), random.randint(1, 40))))
            token = heads * size * ITEMSIZE[dtype]
            block = -(-block_size * token // 4) * 4 + random.choice((0, 0, 4, 64))
            stride = block * count if one_page else block
            layer = []
            for at in range(count):
                start = address + at * (block if one_page else block * blocks)
                strides = (stride // ITEMSIZE[dtype], heads * size, size, 1)
                shape = (blocks, block_size, heads, size)
                layer.append(facts(shape, address=start, dtype=dtype, strides=strides))
                planes.append(TokenPlane(start, stride, block_size, token))
            address += block * count * blocks + random.choice((0, 4, 64))
            ids.append(len(kvcache))
            kvcache.append(layer)
        token_planes.append(planes)
        descriptions.append(StoreLayerGroupDesc(10**6, ids))
    return Cache(register(kvcache, descriptions), token_planes, base, address - base + 100)


def _cut(random, group):
    """Return different slots, in whole blocks or in any order, and how they are cut into chunks."""
    if random.random() < 0.3:
        blocks = random.sample(range(group.num_blocks), random.randint(1, group.num_blocks))
        slots = [b * group.block_size + at for b in blocks for at in range(group.block_size)]
        return np.array(slots, np.int64), np.full(len(blocks), group.block_size, np.int64)
    slots = random.sample(range(group.num_slots), random.randint(1, group.num_slots))
    if random.random() < 0.6:
        slots.sort()
    tokens = []
    while sum(tokens) < len(slots):
        tokens.append(random.randint(1, len(slots) - sum(tokens)))
    return np.array(slots, np.int64), np.array(tokens, np.int64)


def _entries(random, group, stored):
    places, address = np.zeros(len(stored), np.uint64), 1 << 50
    nbytes = entry_nbytes(group, stored)
    for index in random.sample(range(len(stored)), len(stored)):
        address += random.choice((0, 0, 64, 192))
        places[index] = address
        address += int(nbytes[index])
    content = np.full(address - (1 << 50) + 64, 0xEE, np.uint8)
    return places, Memory(1 << 50, content)


TARGETS = {
    registration: (16, (InvalidArgument,)),
    arguments: (20, (InvalidArgument,)),
    keys: (4, ()),
    copy_plan: (6, ()),
}
