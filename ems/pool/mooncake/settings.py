"""What a URL of Mooncake says: `mooncake://HOST:PORT?staging=…`, checked before anything starts."""

import re
from dataclasses import dataclass
from pathlib import Path

from ems.common.exception import InvalidArgument, shown
from ems.common.secret import masked
from ems.pool.url import PoolUrl

_STAGING_NBYTES = 256 << 20
_LEAST_STAGING_NBYTES = 64 << 10
_LEAST_SEGMENT_NBYTES = 16 << 20
"""Mooncake's allocator refuses smaller ones (client_buffer_allocation.cpp)."""
_PROTOCOLS = ("tcp", "rdma", "ascend")
_INFINIBAND = Path("/sys/class/infiniband")
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True, slots=True)
class MooncakeSettings:
    """Where the master is, and what this process brings along."""

    text: str
    """The URL, for error texts."""
    master_host: str
    master_port: int
    staging_nbytes: int
    """Pinned memory that entries pass through; nothing exceeds it."""
    segment_nbytes: int
    """Memory that this process lends to the cluster; 0 makes it a pure client."""
    host: str | None
    """The address at which others reach this process; None: the one that reaches the master."""
    protocol: str
    device: str
    """Network devices, comma-separated; "" leaves the choice to Mooncake."""
    checksum: bool
    """Whether entries get checksums, and those that have one are verified."""
    metrics_port: int | None
    """The master's HTTP port: look-ups that lease nothing, listings and figures."""

    @property
    def master(self) -> str:
        """The master's address as Mooncake writes it."""
        host = f"[{self.master_host}]" if ":" in self.master_host else self.master_host
        return f"{host}:{self.master_port}"

    @classmethod
    def from_url(cls, url: PoolUrl) -> "MooncakeSettings":
        """Return what `url` says.

        Raises:
            InvalidArgument: a part is missing, unknown or wrong, or there is no such network.
        """
        if not url.host or not url.port:
            raise url.refusal("the master's host and port are needed: mooncake://HOST:PORT")
        if url.path not in ("", "/"):
            raise url.refusal(f"the path {shown(url.path)} has no meaning")
        known = ("checksum", "device", "host", "metrics", "protocol", "segment", "staging")
        options = url.options(known)
        protocol = options.get("protocol", "tcp")
        if protocol not in _PROTOCOLS:
            raise url.refusal(f"protocol is {shown(protocol)}; known are {', '.join(_PROTOCOLS)}")
        settings = cls(
            text=masked(url.text),
            master_host=url.host,
            master_port=url.port,
            staging_nbytes=_nbytes(url, options, "staging", _STAGING_NBYTES, _LEAST_STAGING_NBYTES),
            segment_nbytes=_nbytes(url, options, "segment", 0, _LEAST_SEGMENT_NBYTES),
            host=options.get("host") or None,
            protocol=protocol,
            device=options.get("device", ""),
            checksum=_switch(url, "checksum", options.get("checksum", "on")),
            metrics_port=_port(url, options.get("metrics")),
        )
        if protocol == "rdma":
            _check_rdma(url, settings.device)
        return settings


def _nbytes(url: PoolUrl, options: dict[str, str], name: str, default: int, least: int) -> int:
    if name not in options:
        return default
    nbytes = 0 if options[name] == "0" else url.nbytes(name, options[name])
    if nbytes < least and not (nbytes == 0 and default == 0):
        raise url.refusal(f"{name} is {nbytes} bytes; at least {least} are needed")
    return nbytes


def _switch(url: PoolUrl, name: str, value: str) -> bool:
    if value not in ("on", "off"):
        raise url.refusal(f"{name} is {shown(value)}; it is on or off")
    return value == "on"


def _port(url: PoolUrl, value: str | None) -> int | None:
    if value is None:
        return None
    if not (_PORT.fullmatch(value) and 0 < int(value) < 1 << 16):
        raise url.refusal(f"metrics is {shown(value)}; it is the master's metrics port, 1 to 65535")
    return int(value)


def _check_rdma(url: PoolUrl, device: str) -> None:
    """Refuse a missing network: Mooncake itself falls back to TCP without a word."""
    there = sorted(one.name for one in _INFINIBAND.iterdir()) if _INFINIBAND.is_dir() else []
    missing = [name for name in device.split(",") if name and name not in there]
    if not there or missing:
        raise InvalidArgument(
            f"{url.refusal('protocol is rdma')}, but {_INFINIBAND} has "
            f"{', '.join(there) or 'no device'}" + (f", not {', '.join(missing)}" * bool(missing))
        )
