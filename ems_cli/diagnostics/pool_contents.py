"""What is in a pool that processes share."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ems.pool.base import EntryInfo, PoolEngine, PoolKey
from ems_cli.diagnostics.pool_address import PoolAddress
from ems_cli.diagnostics.pool_namespaces import (
    FOREIGN,
    NamespaceFigures,
    keys_of,
    namespace_of,
    namespaces_in,
    users_of,
)

_BATCH: Final = 256
_PATIENCE_SECONDS: Final = 30.0

Advance = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class StatsReport:
    """Everything `ems-cli pool stats` found."""

    url: str
    engine: str
    capacity_nbytes: int
    """What entries of all processes may take."""
    backed_nbytes: int
    """What the pool has taken from its hosts."""
    used_nbytes: int
    free_nbytes: int
    evictable_nbytes: int
    """At most: what is read lies in the processes' own memory, and what Mooncake has leased stays
    until the lease ends."""
    largest_free_nbytes: int
    """The largest entry that fits without evicting, as the engine counts it."""
    held_nbytes: int
    """What live processes of this host read now, in memory of their own."""
    reserved_nbytes: int
    """What live processes of this host are about to store, in memory of their own."""
    entries: int
    """Of whoever uses the pool; with Mooncake, objects that are not of ems count."""
    evictions: int
    namespaces: tuple[NamespaceFigures, ...]
    """The one with most entries first."""
    pids: tuple[int, ...]
    """Live processes of this host that use this pool, as they have told."""
    notes: tuple[str, ...]


def stats_report(address: PoolAddress, run_dir: Path) -> StatsReport:
    """Return the pool's figures.

    Raises:
        BadInput: there is no such pool, or it does not tell.
        EmsException: it does not answer.
    """
    address.need_keys("stats")
    users = users_of(address.place, run_dir)
    with address.opened(usual_staging=True) as pool:
        figures = pool.stats()
        own_nbytes = address.staging_nbytes
        whole = figures.capacity_nbytes - own_nbytes
        backed = min(figures.backed_nbytes, whole)
        free = max(0, whole - figures.used_nbytes)
        namespaces = namespaces_in(list(pool.keys()), users)
    return StatsReport(
        url=address.shown,
        engine=address.engine,
        capacity_nbytes=whole,
        backed_nbytes=backed,
        used_nbytes=figures.used_nbytes,
        free_nbytes=free,
        evictable_nbytes=figures.used_nbytes,
        largest_free_nbytes=min(free, figures.largest_free_nbytes),
        held_nbytes=users.held_nbytes,
        reserved_nbytes=users.reserved_nbytes,
        entries=figures.entries,
        evictions=figures.evictions,
        namespaces=namespaces,
        pids=users.of_pool,
        notes=tuple(_notes(address, figures.entries, whole, namespaces)),
    )


def _notes(
    address: PoolAddress, entries: int, capacity_nbytes: int, namespaces: Sequence[NamespaceFigures]
) -> Iterator[str]:
    if not capacity_nbytes:
        yield "no node lends memory to this pool: nothing can be stored"
    elsewhere = entries - sum(one.entries for one in namespaces)
    if address.engine == "mooncake" and elsewhere > 0:
        objects = "1 object" if elsewhere == 1 else f"{elsewhere} objects"
        yield f"{objects} of the cluster do not belong to ems"
    foreign = sum(one.entries for one in namespaces if one.digest == FOREIGN)
    if foreign:
        keys = "1 key is" if foreign == 1 else f"{foreign} keys are"
        yield f"{keys} not as this version of ems writes them"


@dataclass(frozen=True, slots=True)
class KeyFigures:
    """One entry; None where it could not be looked up: it went meanwhile, or cannot be read."""

    key: str
    namespace: str
    tokens: int | None
    nbytes: int | None


@dataclass(frozen=True, slots=True)
class KeysReport:
    """Everything `ems-cli pool keys` found."""

    url: str
    engine: str
    namespace: str | None
    """The namespace that was asked for."""
    matching: int
    """Entries that were asked for; the first of them are here."""
    keys: tuple[KeyFigures, ...]
    """LMDB's least recently used first; Mooncake has no order."""


def keys_report(
    address: PoolAddress, *, namespace: str | None, limit: int, advance: Advance
) -> KeysReport:
    """Return entries with their sizes.

    Raises:
        BadInput: there is no such pool or namespace, or it does not list keys.
        EmsException: it does not answer.
    """
    address.need_keys("keys")
    with address.opened() as pool:
        keys = list(pool.keys())
        if namespace is not None:
            keys = keys_of(keys, namespace)
            namespace = namespace_of(keys[0])
        found = [
            KeyFigures(
                key,
                namespace_of(key),
                None if info is None else info.tokens,
                None if info is None else info.nbytes,
            )
            for key, info in _looked_up(pool, keys[:limit], advance)
        ]
    return KeysReport(address.shown, address.engine, namespace, len(keys), tuple(found))


def _looked_up(
    pool: PoolEngine, keys: Sequence[PoolKey], advance: Advance
) -> Iterator[tuple[PoolKey, EntryInfo | None]]:
    """Yield what is stored under `keys`, in their order; a batch of them at a time is asked for."""
    for start in range(0, len(keys), _BATCH):
        some = keys[start : start + _BATCH]
        infos = pool.lookup(some, deadline=time.monotonic() + _PATIENCE_SECONDS)
        yield from zip(some, infos, strict=True)
        advance(len(some))
