"""Hashes of token ids, for callers that pass tokens instead of hashes.

The hash of a block covers all tokens up to its end, as the prefix does: digest i is the SHA-256 of
digest i-1 followed by the block's token ids, each as a signed 64-bit integer, least significant
byte first. Digest -1 is the SHA-256 of b"ems token hash 1". The last block may be shorter. It is
the same in every process, on every machine, and in every version until that text changes.
"""

import hashlib

from ems.layout.slots import Ints

_SEED = hashlib.sha256(b"ems token hash 1").digest()


def token_hashes(token_ids: Ints, block_size: int) -> list[bytes]:
    """Return one 32-byte digest per block of `block_size` tokens, the last one maybe shorter."""
    data = memoryview(token_ids.astype("<i8", copy=False)).cast("B")  # type: ignore[arg-type]
    width = block_size * 8
    digest = _SEED
    digests = []
    for start in range(0, len(data), width):
        block = hashlib.sha256(digest)
        block.update(data[start : start + width])
        digest = block.digest()
        digests.append(digest)
    return digests
