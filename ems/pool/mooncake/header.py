"""The 64 bytes in front of each entry in Mooncake: whether the rest is what was saved."""

import ctypes
import struct
from dataclasses import dataclass

from xxhash import xxh3_64_intdigest

HEADER_NBYTES = 64
"""A multiple of the pool's alignment, so that what follows is aligned, too."""

_MAGIC = b"EMSENTRY"
_VERSION = 1
_TELL_TALE = 61
"""Less than 64: entries of one layout differ by multiples of that where their sizes differ."""
_FIELDS = struct.Struct("<8sQQQQ?7xQ")
_CHECK = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Header:
    """What the header of an entry says."""

    tokens: int
    nbytes: int
    has_checksum: bool
    checksum: int
    """xxh3_64 of the entry's bytes, or 0."""

    @property
    def size(self) -> int:
        """What the whole object must have."""
        return object_nbytes(tokens=self.tokens, nbytes=self.nbytes)


def object_nbytes(*, tokens: int, nbytes: int) -> int:
    """Return the size of an entry as an object: a few idle bytes tell its tokens, nearly.

    So an object of the same name, size and address as one that is known has its tokens, too.
    """
    return HEADER_NBYTES + nbytes + tokens % _TELL_TALE


def seal(address: int, name: str, *, tokens: int, nbytes: int, checksum: bool) -> None:
    """Write the header at `address` for the bytes that follow it."""
    content = _bytes_at(address + HEADER_NBYTES, nbytes)
    sum_ = xxh3_64_intdigest(content) if checksum else 0
    fields = _FIELDS.pack(_MAGIC, _VERSION, tokens, nbytes, _digest(name), checksum, sum_)
    header = fields + _CHECK.pack(xxh3_64_intdigest(fields))
    ctypes.memmove(address, header, HEADER_NBYTES)


def header_at(address: int, name: str) -> Header | None:
    """Return the header at `address`, or None if it is none of an entry of that name."""
    content = ctypes.string_at(address, HEADER_NBYTES)
    fields = content[: _FIELDS.size]
    if _CHECK.unpack_from(content, _FIELDS.size)[0] != xxh3_64_intdigest(fields):
        return None
    magic, version, tokens, nbytes, digest, *checksum = _FIELDS.unpack(fields)
    if (magic, version, digest) != (_MAGIC, _VERSION, _digest(name)):
        return None
    return Header(tokens, nbytes, *checksum)


def verified(address: int, name: str, *, size: int, checksum: bool) -> Header | None:
    """Return the header of an object of `size` bytes if that is what was sealed.

    Every byte is looked at where it has a checksum and `checksum` is True.
    """
    header = header_at(address, name)
    if header is None or header.size != size:
        return None
    if not (checksum and header.has_checksum):
        return header
    content = _bytes_at(address + HEADER_NBYTES, header.nbytes)
    return header if xxh3_64_intdigest(content) == header.checksum else None


def _digest(name: str) -> int:
    return xxh3_64_intdigest(name.encode())


def _bytes_at(address: int, nbytes: int) -> memoryview:
    return memoryview((ctypes.c_ubyte * nbytes).from_address(address))
