"""Which pool is meant, and how to open it without changing it."""

import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlencode

from ems.common.exception import InvalidArgument, PoolUnavailable
from ems.common.secret import masked
from ems.pool.base import PoolEngine
from ems.pool.lmdb.settings import LmdbSettings
from ems.pool.mooncake.settings import MooncakeSettings
from ems.pool.registry import open_pool
from ems.pool.url import PoolUrl
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.host_pages import HostPages

_TIERED: Final = "tiered+"
_LITTLE_NBYTES: Final = 1 << 20
"""Staging memory where no entry is read or written."""
_AGREEMENT: Final = "pool.json"
"""What an LMDB pool keeps beside its files; without it, opening would make a pool."""
_WIDEST: Final = 400
_SECONDS: Final = 5.0
_HOW: Final = "lmdb:///dev/shm/pool, or mooncake://HOST:PORT?metrics=PORT"


@dataclass(frozen=True, slots=True)
class PoolAddress:
    """A pool that processes share."""

    shown: str
    """The URL as it may be shown."""
    engine: str
    place: tuple[str, ...]
    """Equal for URLs of the same pool, as far as URLs tell."""
    lists_keys: bool
    staging_nbytes: int
    """What a process with this URL puts entries through."""
    option: str
    """Where the URL was given."""
    parsed: PoolUrl

    def refusal(self, why: str) -> BadInput:
        """Return what says that this URL does not do."""
        return BadInput(f"{self.shown}: {why}", option=self.option)

    def need_keys(self, purpose: str) -> None:
        """Raise BadInput if the keys cannot be listed."""
        if not self.lists_keys:
            raise self.refusal(
                f"{purpose} needs the list of keys; add metrics=PORT, the master's --metrics_port"
            )

    @contextmanager
    def opened(self, *, usual_staging: bool = False) -> Generator[PoolEngine, None, None]:
        """Open the pool that is there; none is made, and its capacity is not touched.

        Raises:
            BadInput: there is no pool.
            EmsException: it cannot be opened.
        """
        if self.engine == "lmdb":
            self._check_files()
        else:
            self._check_master()
        staging_nbytes = self.staging_nbytes if usual_staging else _LITTLE_NBYTES
        pool = open_pool(self._text(staging_nbytes), HostPages())
        try:
            yield pool
        finally:
            pool.close()

    def _check_master(self) -> None:
        """Raise if nobody could use the pool: figures and keys come from another port."""
        settings = MooncakeSettings.from_url(self.parsed)
        place = settings.master_host, settings.master_port
        try:
            socket.create_connection(place, timeout=_SECONDS).close()
        except OSError as error:
            raise PoolUnavailable(
                f"mooncake's master at {settings.master} does not accept connections: {error}"
            ) from error

    def _text(self, staging_nbytes: int) -> str:
        """Return the URL for this process: the capacity is what the files say."""
        unwanted = {"capacity", "staging", "segment"}
        query = [item for item in self.parsed.query if item[0] not in unwanted]
        text = urlencode([*query, ("staging", str(staging_nbytes))])
        rest = self.parsed.text.partition("://")[2].partition("?")[0]
        return f"{self.engine}://{rest}?{text}"

    def _check_files(self) -> None:
        from ems.pool.lmdb.home import Agreement  # noqa: PLC0415 - lmdb

        path = Path(self.place[1])
        try:
            text = (path / _AGREEMENT).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise self.refusal(f"there is no pool in {path}") from None
        except OSError as error:
            raise self.refusal(f"{path} cannot be read: {error.strerror}") from error
        found, today = Agreement.parse(text), Agreement.of(1)
        if found is None or found.layout != today.layout:
            raise self.refusal(f"the pool in {path} was made by another version of ems")
        if found.boot != today.boot:
            raise self.refusal(
                f"the pool in {path} is from before this host was started anew: nobody knows what "
                "it holds, and the next process that uses it makes it anew"
            )


def pool_address(url: str | None, environment: Mapping[str, str]) -> PoolAddress:
    """Return the pool of a URL, or else of EMS_POOL.

    Raises:
        BadInput: neither is given, or it is no pool that processes share.
    """
    option = "URL" if url else "EMS_POOL"
    text = url or environment.get("EMS_POOL")
    if not text:
        raise BadInput(
            f"EMS_POOL is not set, and the default pool is inside of each process, where"
            f" `ems-cli inspect` shows it; name a pool that processes share: {_HOW}",
            option="URL",
        )
    try:
        return _address(PoolUrl.parse(text), option)
    except InvalidArgument as error:
        raise BadInput(masked(str(error)), option=option) from error


def place_of(url: str) -> tuple[str, ...] | None:
    """Return the place of a shared pool, see `PoolAddress`; None for other texts."""
    try:
        return pool_address(url, {}).place
    except BadInput:
        return None


def _short(text: str) -> str:
    """Return a URL as it may be shown."""
    text = masked(text)
    return text if len(text) <= _WIDEST else f"{text[:_WIDEST]}…"


def _address(url: PoolUrl, option: str) -> PoolAddress:
    shared = url
    if url.scheme.startswith(_TIERED):
        query = tuple(item for item in url.query if item[0] != "local")
        shared = replace(url, scheme=url.scheme.removeprefix(_TIERED), query=query)
    engine = shared.scheme
    if engine == "lmdb":
        lmdb = LmdbSettings.from_url(shared)
        place: tuple[str, ...] = (engine, str(lmdb.path))
        staging_nbytes, lists_keys = lmdb.staging_nbytes, True
    elif engine == "mooncake":
        mooncake = MooncakeSettings.from_url(shared)
        place = (engine, mooncake.master)
        staging_nbytes, lists_keys = mooncake.staging_nbytes, mooncake.metrics_port is not None
    else:
        whose = "is inside of one process, where `ems-cli inspect` shows it"
        why = whose if engine == "memory" else "is of no engine that is known"
        raise BadInput(
            f"{_short(url.text)} {why}; name a pool that processes share: {_HOW}", option=option
        )
    return PoolAddress(
        _short(url.text), engine, place, lists_keys, staging_nbytes, option, parsed=shared
    )
