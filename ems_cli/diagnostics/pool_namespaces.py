"""Whose keys are in a pool: namespaces, and the processes that are known to use them."""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ems.layout.key import PoolKey, buffer_key_prefix
from ems.telemetry.run_dir import descriptions
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.pool_address import place_of

_VERSION: Final = "ems1"
_FIELDS: Final = 5
_FEW: Final = 6
_SHORTEST: Final = 8
"""Digits of a digest that may stand for it."""
FOREIGN: Final = ""
"""Stands for the namespace of keys that this version of ems does not write."""


@dataclass(frozen=True, slots=True)
class NamespaceFigures:
    """Entries that differ in layer group, layout or hash alone."""

    digest: str
    entries: int
    layouts: int
    """Pairs of layer group and fingerprint; more than a process has groups: layouts differ."""
    name: str | None
    """Model, tenant and ranks, where a process on this host has told; None: nobody has."""
    pids: tuple[int, ...]
    """Live processes that use it."""


@dataclass(frozen=True, slots=True)
class Users:
    """Processes of this host that have told what they do."""

    names: Mapping[str, str]
    """What digests stand for; dead processes have told some."""
    pids: Mapping[str, tuple[int, ...]]
    """Live processes by digest."""
    of_pool: tuple[int, ...]
    """Live processes that use the pool that is asked about."""
    held_nbytes: int
    """Of the latter, together."""
    reserved_nbytes: int

    def of_namespaces(self, digests: Iterable[str]) -> tuple[int, ...]:
        """Return the live processes of the pool whose keys are in one of these namespaces."""
        found = {pid for digest in digests for pid in self.pids.get(digest, ())}
        return tuple(pid for pid in self.of_pool if pid in found)


def users_of(place: tuple[str, ...], run_dir: Path) -> Users:
    """Return who has left a description in `run_dir`, and who uses the pool at `place`."""
    names: dict[str, str] = {}
    pids: dict[str, list[int]] = defaultdict(list)
    of_pool: list[int] = []
    held = reserved = 0
    for found in descriptions(run_dir):
        content = found.content
        with suppress(KeyError, TypeError, ValueError):
            for digest, name in _named(content):
                names[digest] = name
                if found.alive:
                    pids[digest].append(int(content["pid"]))
            if found.alive and place_of(content["pool_url"] or "") == place:
                held += int(content["pool"]["held_nbytes"])
                reserved += int(content["pool"]["reserved_nbytes"])
                of_pool.append(int(content["pid"]))
    known = {digest: tuple(several) for digest, several in pids.items()}
    return Users(names, known, tuple(of_pool), held, reserved)


def _named(content: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    """Yield the digests of a process's keys, with what they stand for."""
    namespace = content["namespace"]
    tenant, model = namespace["access_id"], namespace["model_id"]
    whose = f"{model}, tenant {tenant}" if tenant else str(model)
    parts = [
        f"{kind} {rank} of {size}"
        for kind, rank, size in (
            ("tp", namespace["rank_in_tp_group"], namespace["tp_world_size"]),
            ("pp", namespace["rank_in_pp_group"], namespace["pp_world_size"]),
        )
        if size is not None and size > 1
    ]
    yield str(content["namespace_digest"]), ", ".join([whose, *parts])
    yield namespace_of(buffer_key_prefix(tenant, model)), f"{whose}, buffers"


def namespace_of(key: str) -> str:
    """Return the digest of a key's namespace, or FOREIGN."""
    parts = key.split("-", _FIELDS - 1)
    return parts[1] if len(parts) > _FIELDS - 2 and parts[0] == _VERSION else FOREIGN


def namespaces_in(keys: Sequence[PoolKey], users: Users) -> tuple[NamespaceFigures, ...]:
    """Return the namespaces of `keys`, the largest first."""
    counts: dict[str, int] = defaultdict(int)
    layouts: dict[str, set[str]] = defaultdict(set)
    for key in keys:
        digest = namespace_of(key)
        counts[digest] += 1
        if digest != FOREIGN:
            layouts[digest].add(_layout(key))
    found = [
        NamespaceFigures(
            digest,
            count,
            len(layouts[digest]),
            users.names.get(digest),
            users.pids.get(digest, ()),
        )
        for digest, count in counts.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.entries, one.digest)))


def _layout(key: str) -> str:
    """Return layer group and fingerprint; the hash behind them may hold a minus."""
    group, *rest = key.split("-", _FIELDS - 1)[2:]
    return f"{group}-{rest[0]}" if len(rest) > 1 else group


def keys_of(keys: Sequence[PoolKey], wanted: str) -> list[PoolKey]:
    """Return the keys of the namespace that `wanted` is, or whose first 8 digits or more it is.

    Raises:
        BadInput: there is none, or there are several.
    """
    there = sorted({namespace_of(key) for key in keys} - {FOREIGN})
    matching = [one for one in there if one.startswith(wanted) and len(wanted) >= _SHORTEST]
    if wanted in there:
        matching = [wanted]
    if len(matching) != 1:
        offered = ", ".join((matching or there)[:_FEW]) or "none"
        what = f"{len(matching)} begin so" if matching else "no entry has it; there are"
        raise BadInput(f"{json.dumps(wanted)}: {what}: {offered}", option="--namespace")
    return [key for key in keys if namespace_of(key) == matching[0]]
