"""Takes entries out of a pool that processes share."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from ems.pool.base import PoolKey
from ems_cli.diagnostics.bad_input import BadInput
from ems_cli.diagnostics.pool_address import PoolAddress
from ems_cli.diagnostics.pool_namespaces import keys_of, namespace_of, users_of

_BATCH: Final = 256


@dataclass(frozen=True, slots=True)
class RemovalReport:
    """Everything `ems-cli pool clear` or `remove` did."""

    url: str
    engine: str
    what: Literal["everything", "keys", "namespace"]
    namespace: str | None
    removed: int
    """Entries that went."""
    missing: tuple[str, ...]
    """Keys that were named, and that nothing is stored under."""
    pids: tuple[int, ...]
    """Live processes of this host that use what was to go, as they have told."""


def clear_pool(address: PoolAddress, run_dir: Path, *, certain: bool) -> RemovalReport:
    """Remove every entry.

    Raises:
        BadInput: there is no such pool, or the caller is not `certain`: the text says what would
            go.
        EmsException: it does not answer.
    """
    pids = users_of(address.place, run_dir).of_pool
    if not certain and not address.lists_keys:
        raise BadInput(f"say --yes to remove every entry of {address.shown}", option="--yes")
    with address.opened() as pool:
        if not certain:
            count = len(list(pool.keys()))
            using = f", which {len(pids)} live processes use" if pids else ""
            raise BadInput(
                f"say it to remove {counted(count)} from {address.shown}{using}; nothing was"
                " removed",
                option="--yes",
            )
        removed = pool.clear()
    return RemovalReport(address.shown, address.engine, "everything", None, removed, (), pids)


def remove_keys(address: PoolAddress, run_dir: Path, keys: Sequence[str]) -> RemovalReport:
    """Remove the entries under `keys`.

    Raises:
        BadInput: there is no such pool.
        EmsException: it does not answer; the keys before may have gone.
    """
    wanted = [PoolKey(key) for key in dict.fromkeys(keys)]
    pids = users_of(address.place, run_dir).of_namespaces(map(namespace_of, wanted))
    with address.opened() as pool:
        missing = tuple(key for key in wanted if not pool.remove([key]))
    removed = len(wanted) - len(missing)
    return RemovalReport(address.shown, address.engine, "keys", None, removed, missing, pids)


def remove_namespace(address: PoolAddress, run_dir: Path, namespace: str) -> RemovalReport:
    """Remove the entries of a namespace.

    Raises:
        BadInput: there is no such pool or namespace, or it does not list keys.
        EmsException: it does not answer.
    """
    address.need_keys("--namespace")
    users = users_of(address.place, run_dir)
    with address.opened() as pool:
        keys = keys_of(list(pool.keys()), namespace)
        batches = (keys[start : start + _BATCH] for start in range(0, len(keys), _BATCH))
        removed = sum(map(pool.remove, batches))
    digest = namespace_of(keys[0])
    pids = users.of_namespaces([digest])
    return RemovalReport(address.shown, address.engine, "namespace", digest, removed, (), pids)


def counted(count: int) -> str:
    """Return so many entries in words."""
    return "1 entry" if count == 1 else f"{count} entries"
