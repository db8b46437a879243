"""What lies in a pool: headers and records of LMDB, headers in Mooncake, the pool's agreement."""

import ctypes
import json
from contextlib import ExitStack, closing
from dataclasses import asdict

import xxhash
from fuzz_made import GIANTS, anything, spoiled_bytes, spoiled_json

from ems.common.exception import PoolUnavailable
from ems.layout.key import PoolKey
from ems.pool.base import Held, Miss, Place
from ems.pool.lmdb.home import Agreement
from ems.pool.lmdb.pool import LmdbPool
from ems.pool.lmdb.record import BROKEN, LONG_PIECE_PAGES, SHORT_PIECE_PAGES, Header
from ems.pool.mooncake import header as mooncake
from ems.pool.url import PoolUrl
from ems_cli.diagnostics.host_pages import HostPages

LIMIT = 1 << 30
_WORD = 2**64


def lmdb_header(random):
    """What is packed is read again; anything else is broken, or forged and small enough."""
    header = Header(
        *(random.choice((0, 1, random.getrandbits(64), _WORD - 1)) for _ in range(2)),
        random.randrange(LIMIT + 1),
        random.getrandbits(64),
        random.choice((None, 0, random.getrandbits(64))),
        random.choice((SHORT_PIECE_PAGES, LONG_PIECE_PAGES)),
    )
    raw = header.pack()
    assert Header.parse(raw, limit_nbytes=LIMIT) == header
    forged = spoiled_bytes(random, raw[:-8])
    forged += xxhash.xxh3_64_intdigest(forged).to_bytes(8, "little")
    changed = random.choice((spoiled_bytes(random, raw), random.randbytes(len(raw)), forged))
    found = Header.parse(changed, limit_nbytes=LIMIT)
    assert found is BROKEN or (len(changed) == len(raw) and 0 <= found.nbytes <= LIMIT)
    if found is not BROKEN and found.nbytes < 1 << 24:
        assert sum(length for _, length in found.pieces()) == found.nbytes
    return found is not BROKEN


def mooncake_header(random):
    """A sealed entry is what was sealed; a changed one is nothing, or still has its bytes."""
    nbytes = random.choice((1, 64, 100, 4096))
    tokens = random.choice((1, 61, random.getrandbits(40)))
    size = mooncake.object_nbytes(tokens=tokens, nbytes=nbytes)
    memory = ctypes.create_string_buffer(random.randbytes(size), size)
    address, checksum = ctypes.addressof(memory), random.random() < 0.8
    mooncake.seal(address, "key", tokens=tokens, nbytes=nbytes, checksum=checksum)
    sealed = memory.raw
    header = mooncake.verified(address, "key", size=size, checksum=True)
    assert (header.tokens, header.nbytes) == (tokens, nbytes)
    assert mooncake.verified(address, "other", size=size, checksum=True) is None
    assert mooncake.verified(address, "key", size=size + 1, checksum=True) is None
    changed = spoiled_bytes(random, sealed)[:size].ljust(size, b"\0")
    memory.raw = changed
    found = mooncake.verified(address, "key", size=size, checksum=True)
    used = mooncake.HEADER_NBYTES + (nbytes if checksum else 0)
    assert found is None or (found == header and changed[:used] == sealed[:used])
    return found is not None


def agreement(random):
    """What a pool's files say about it is read as written, or not at all."""
    true = Agreement(1 << 30, 4, "boot")
    text = json.dumps(asdict(true))
    assert Agreement.parse(text) == true
    raw = random.choice(
        (
            json.dumps(spoiled_json(random, asdict(true))),
            spoiled_bytes(random, text.encode()).decode(errors="replace"),
            json.dumps(anything(random)),
            "[" * 100_000,
        )
    )
    found = Agreement.parse(raw)
    if found is not None:
        assert found.capacity_nbytes > 0 < found.shards <= found.capacity_nbytes
        assert found.file_nbytes >= found.capacity_nbytes // 2
    return found is not None


class LmdbEntries:
    """A small pool whose records are changed behind its back."""

    NAMES = tuple(PoolKey(f"entry{at}") for at in range(4))

    def __init__(self, room):
        url = PoolUrl.parse(f"lmdb://{room}/pool?capacity=2MiB&staging=1MiB")
        self._stack = ExitStack()
        self.pool = self._stack.enter_context(closing(LmdbPool.from_url(url, HostPages())))

    def close(self):
        """Let go of the pool."""
        self._stack.close()

    def __call__(self, random):
        """An entry comes back as it was stored, or is a miss; the pool stays usable."""
        name = random.choice(self.NAMES)
        content = random.randbytes(random.choice((1, 100, 5000, 70_000)))
        self.pool.remove([name])
        [place] = self.pool.reserve([name], [8], [len(content)], deadline=None)
        assert isinstance(place, Place)
        ctypes.memmove(place.address, content, len(content))
        self.pool.commit([place])
        hit = random.random() < 0.05
        if not hit:
            self._change(random, name)
        [info] = self.pool.lookup([name])
        assert info is None or info.nbytes <= 2 << 20
        try:
            [found] = self.pool.acquire([name], [8], deadline=None)
        except PoolUnavailable:  # a header may tell of more than the staging memory takes
            assert not hit
            assert info.nbytes > len(content)
            return False
        assert isinstance(found, Held | Miss)
        if isinstance(found, Held):
            assert ctypes.string_at(found.address, len(content)) == content
            assert found.nbytes == len(content)
            self.pool.release([found])
        else:
            assert not hit
        stats = self.pool.stats()
        assert (stats.reserved_nbytes, stats.held_nbytes) == (0, 0)
        return isinstance(found, Held)

    def _change(self, random, name):
        with self.pool._home.shards() as shards:
            [shard] = shards._shards
            tables = shard._tables
            with shard._transactions.environment.begin(write=True) as txn:
                kind = random.random()
                raw = bytes(txn.get(name.encode(), db=tables.entries))
                header = Header.parse(raw, limit_nbytes=LIMIT)
                if kind < 0.3:
                    txn.put(name.encode(), spoiled_bytes(random, raw), db=tables.entries)
                elif kind < 0.5:
                    giant = min(random.choice(GIANTS), _WORD - 1)
                    nbytes = random.choice((0, giant, header.nbytes + 1, 2 << 20))
                    lie = Header(header.serial, header.tokens, nbytes, 1, header.checksum)
                    txn.put(name.encode(), lie.pack(), db=tables.entries)
                else:
                    with txn.cursor(db=tables.pieces) as cursor:
                        pieces = [bytes(key) for key in cursor.iternext(values=False)]
                    piece = random.choice(pieces)
                    bytes_ = bytes(txn.get(piece, db=tables.pieces))
                    txn.delete(piece, db=tables.pieces)
                    if kind < 0.9:
                        txn.put(piece, spoiled_bytes(random, bytes_) or b"?", db=tables.pieces)


TARGETS = {
    lmdb_header: (10, ()),
    mooncake_header: (8, ()),
    agreement: (4, ()),
}
