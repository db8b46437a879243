"""What the URL of an LMDB pool says."""

import os
from dataclasses import dataclass
from pathlib import Path

from ems.common.exception import shown
from ems.pool.url import PoolUrl

_LEAST_NBYTES = 64 << 10
_OPTIONS = ("capacity", "staging", "checksum")


@dataclass(frozen=True, slots=True)
class LmdbSettings:
    """`lmdb:///path?capacity=8GiB&staging=256MiB&checksum=on`, read and judged."""

    path: Path
    capacity_nbytes: int | None = None
    """What entries may take; None takes the pool there is, or the default."""
    staging_nbytes: int = 256 << 20
    checked: bool = True
    """Whether entries are stored with a checksum, and compared with it when they are read."""
    shards: int | None = None
    """How many files; None for as many as the capacity is worth."""

    @classmethod
    def from_url(cls, url: PoolUrl) -> "LmdbSettings":
        """Return what `url` says; without a path it is the user's own pool in /dev/shm.

        Raises:
            InvalidArgument: the URL has other parts, or a value is wrong.
        """
        if url.host or url.port is not None:
            raise url.refusal("lmdb is files of this host; write lmdb:///path, with three slashes")
        options = url.options(_OPTIONS)
        checksum = options.pop("checksum", "on")
        if checksum not in {"on", "off"}:
            raise url.refusal(f"checksum is {shown(checksum)}; it is on or off")
        sizes = {name: url.nbytes(name, value) for name, value in options.items()}
        for name, nbytes in sizes.items():
            if nbytes < _LEAST_NBYTES:
                raise url.refusal(f"{name} is {nbytes} bytes; at least {_LEAST_NBYTES} are needed")
        return cls(
            path=default_path() if url.path in {"", "/"} else Path(url.path),
            capacity_nbytes=sizes.get("capacity"),
            staging_nbytes=sizes.get("staging", 256 << 20),
            checked=checksum == "on",
        )


def default_path() -> Path:
    """Return where a user's pool is when the URL does not say."""
    return Path(f"/dev/shm/ems-{os.geteuid()}-pool")  # noqa: S108 - ours alone, or refused
