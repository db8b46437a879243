"""What an entry looks like in LMDB: a header, and the bytes in pieces.

LMDB keeps a value in consecutive pages, and copies long ones fastest: an entry is one piece as a
rule. Where sizes are mixed, though, free pages are soon scattered, and a value of some MiB finds no
room in a file that is far from full. Then entries are cut into pieces of `SHORT_PIECE_PAGES` pages:
with these an eighth of slack is enough, whatever the mixture of sizes.
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import xxhash

from ems.layout.key import PoolKey
from ems.pool.staging import Bytes

PAGE_NBYTES = 4096
LONG_PIECE_PAGES = 4096
SHORT_PIECE_PAGES = 64
_PAGE_HEADER = 16
_INLINE_NBYTES = 1984
"""A record up to this size shares a page with others."""
_SMALL_NBYTES = 64 << 10
_FEW_PAGES = 64
"""Below this many, one page more for a few bytes is worth a piece of its own."""

VERSION = 3
_HEADER = struct.Struct("<HHIQQQQQ")
_CHECK = struct.Struct("<Q")
_UNCHECKED, _XXH3 = 0, 1
_KINDS = (_UNCHECKED, _XXH3)
_PIECE_PAGES = (SHORT_PIECE_PAGES, LONG_PIECE_PAGES)
_PIECE = struct.Struct(">QI")
_AGE = struct.Struct(">QQ")


class Header(NamedTuple):
    """What is known of a stored entry without reading its bytes."""

    serial: int
    """Which of the entries that ever were this is; names its pieces."""
    tokens: int
    nbytes: int
    clock: int
    """When it was last used: nanoseconds of the host's monotonic clock."""
    checksum: int | None
    """xxh3 of key, tokens, size and bytes; None where the writer was told not to."""
    piece_pages: int = LONG_PIECE_PAGES
    """How long its pieces are, but for the last."""

    def pack(self) -> bytes:
        """Return the header as it is stored, with a checksum of its own, whatever the pool's."""
        kind = _UNCHECKED if self.checksum is None else _XXH3
        fields = _HEADER.pack(
            VERSION,
            kind,
            self.piece_pages,
            self.serial,
            self.tokens,
            self.nbytes,
            self.clock,
            self.checksum or 0,
        )
        return fields + _CHECK.pack(xxhash.xxh3_64_intdigest(fields))

    def pieces(self) -> Sequence[tuple[int, int]]:
        """Return start and length of each piece."""
        return pieces_of(self.nbytes, self.piece_pages)

    @classmethod
    def parse(cls, raw: bytes, *, limit_nbytes: int) -> "Header":
        """Return the stored header, or BROKEN: also where its size is beyond what can be stored."""
        fields = bytes(raw[: _HEADER.size])
        if raw[_HEADER.size :] != _CHECK.pack(xxhash.xxh3_64_intdigest(fields)):
            return BROKEN
        version, kind, pages, serial, tokens, nbytes, clock, checksum = _HEADER.unpack(fields)
        known = version == VERSION and kind in _KINDS and pages in _PIECE_PAGES
        if not known or nbytes > limit_nbytes:
            return BROKEN
        return cls(serial, tokens, nbytes, clock, checksum if kind == _XXH3 else None, pages)


BROKEN = Header(serial=0, tokens=-1, nbytes=0, clock=0, checksum=None)
"""What a header is read as that no version of this engine has written."""


def piece_name(serial: int, index: int) -> bytes:
    """Return the name of a piece; those of one entry follow one another."""
    return _PIECE.pack(serial, index)


def serial_of(name: bytes) -> int:
    """Return whose piece has this name."""
    serial: int = _PIECE.unpack(name)[0]
    return serial


def serial_of_age(name: bytes) -> int:
    """Return whose age has this name."""
    serial: int = _AGE.unpack(name)[1]
    return serial


def age_name(header: Header) -> bytes:
    """Return the name under which an entry waits for its eviction: least recently used first."""
    return _AGE.pack(header.clock, header.serial)


@lru_cache(maxsize=1024)
def pieces_of(nbytes: int, piece_pages: int) -> Sequence[tuple[int, int]]:
    """Return start and length of each piece; of a short rest what shares a page with others."""
    longest = piece_pages * PAGE_NBYTES - _PAGE_HEADER
    whole = max(0, nbytes - 1) // longest
    pieces = [(at * longest, longest) for at in range(whole)]
    start, rest = whole * longest, nbytes - whole * longest
    pages = (rest + _PAGE_HEADER) // PAGE_NBYTES
    head = pages * PAGE_NBYTES - _PAGE_HEADER
    if 0 < pages < _FEW_PAGES and 0 < rest - head <= _INLINE_NBYTES:
        return (*pieces, (start, head), (start + head, rest - head))
    return (*pieces, (start, rest))


def charge_of(nbytes: int) -> int:
    """Return what an entry counts for: its pages, and one more for the names where it is small.

    The headers of its pieces are not counted; the files have room for them beside the capacity.
    """
    pages = -(-nbytes // PAGE_NBYTES)
    return (pages + (nbytes < _SMALL_NBYTES)) * PAGE_NBYTES


class Checksum:
    """Follows the bytes of one entry as they are copied, while the processor has them at hand."""

    def __init__(self, key: PoolKey, tokens: int, nbytes: int) -> None:
        self._digest = xxhash.xxh3_64(f"{key} {tokens} {nbytes} ".encode())

    def add(self, piece: Bytes) -> None:
        """Take in the next bytes."""
        self._digest.update(piece.data)

    def value(self) -> int:
        """Return the checksum of everything so far."""
        return self._digest.intdigest()
