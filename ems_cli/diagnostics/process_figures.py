"""What the description of one process says, as figures; every total beside its parts."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ems_cli.diagnostics.shape import layers_text
from ems_cli.diagnostics.typed import check_types

FEW_LOOKUPS: Final = 10
"""Looked-up blocks below which no hit means nothing yet."""
_OPERATIONS: Final = ("save", "load", "exists")

State = Literal["alive", "dead", "ended", "saved"]
"""Dead: gone without cleaning up. Ended: has cleaned up. Saved: read from a file."""


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One layer group of a registered cache."""

    index: int
    layers: str
    block_size: int
    num_blocks: int
    token_nbytes: int
    window: int | None
    fingerprint: str


@dataclass(frozen=True, slots=True)
class LayoutFigures:
    """A registered cache."""

    layers: int
    planes: int
    """Tensors of all layers."""
    token_nbytes: int
    nbytes: int
    groups: tuple[GroupFigures, ...]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolFigures:
    """The pool of a process when it wrote its description."""

    url: str | None
    """None: the default."""
    capacity_nbytes: int
    """What entries may take, without the memory that they pass through in this process."""
    backed_nbytes: int
    used_nbytes: int
    reserved_nbytes: int
    held_nbytes: int
    evictable_nbytes: int
    """Used, and neither held nor reserved."""
    entries: int
    evictions: int


@dataclass(frozen=True, slots=True)
class Rates:
    """What an operation did per second since the last look."""

    calls_per_second: float
    blocks_per_second: float
    bytes_per_second: float


@dataclass(frozen=True, slots=True)
class OperationFigures:
    """All calls of one operation that have ended."""

    name: str
    calls: int
    failed: int
    blocks: int
    """Hashes that were named."""
    done: int
    """Saved, loaded or found."""
    nbytes: int
    seconds: float
    blocks_by_fate: Mapping[str, int]
    failures_by_code: Mapping[str, int]
    rates: Rates | None = None


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """One process that uses the pool."""

    pid: int
    process_start: int | None
    state: State
    host: str
    command: str | None
    file: str
    age_seconds: float
    written_seconds_ago: float
    """How old all the figures are: a process writes them after a call."""
    rank_id: int
    device_id: int
    visible_devices: str | None
    model_id: str
    kvcache_type: str
    namespace: Mapping[str, Any]
    namespace_digest: str
    python_hash_seed: str | None
    packages: Mapping[str, str | None]
    layout: LayoutFigures | None
    """None: nothing is registered yet."""
    pool: PoolFigures
    operations: tuple[OperationFigures, ...]
    hit_blocks: int
    looked_up_blocks: int
    """Blocks of all loads."""
    hit_share: float | None
    misses_by_reason: Mapping[str, int]
    failures_by_code: Mapping[str, int]
    doubts: tuple[str, ...]

    @property
    def identity(self) -> tuple[int, int | None]:
        """What tells processes apart even where pids are used again."""
        return self.pid, self.process_start


def process_figures(
    content: Mapping[str, Any], *, file: Path, state: State, now: float, command: str | None = None
) -> ProcessFigures:
    """Return what a description says.

    Raises:
        Exception: one of `typed.UNREADABLE`; it is none, or of another version.
    """
    counters = content["counters"]
    operations = tuple(_operation(name, counters[name]) for name in _OPERATIONS if name in counters)
    load = next((one for one in operations if one.name == "load"), None)
    layout = None if content["registration"] is None else _layout(content["registration"])
    pool = _pool(content)
    seed = content["python_hash_seed"]
    figures = ProcessFigures(
        pid=int(content["pid"]),
        process_start=content["process_start"],
        state=state,
        host=str(content["host"]),
        command=command,
        file=str(file),
        age_seconds=max(0.0, now - content["started"]),
        written_seconds_ago=max(0.0, now - content["written"]),
        rank_id=int(content["rank_id"]),
        device_id=int(content["device_id"]),
        visible_devices=content["visible_devices"],
        model_id=str(content["namespace"]["model_id"]),
        kvcache_type=str(content["kvcache_type"]),
        namespace=dict(content["namespace"]),
        namespace_digest=str(content["namespace_digest"]),
        python_hash_seed=seed,
        packages=dict(content["packages"]),
        layout=layout,
        pool=pool,
        operations=operations,
        hit_blocks=load.done if load else 0,
        looked_up_blocks=load.blocks if load else 0,
        hit_share=load.done / load.blocks if load and load.blocks else None,
        misses_by_reason=_misses(load),
        failures_by_code=_failures(operations),
        doubts=tuple(_doubts(operations, pool, seed)),
    )
    check_types(figures)
    return figures


def _operation(name: str, values: Mapping[str, Any]) -> OperationFigures:
    fates = {str(fate): int(count) for fate, count in values["hashes_by_fate"].items()}
    return OperationFigures(
        name,
        int(values["calls"]),
        int(values["failed"]),
        int(values["hashes"]),
        fates.get("done", 0),
        int(values["nbytes"]),
        float(values["seconds"]),
        fates,
        dict(values["failures_by_code"]),
    )


def _layout(facts: Mapping[str, Any]) -> LayoutFigures:
    groups = tuple(
        GroupFigures(
            group["index"],
            layers_text(group["layer_ids"]),
            group["block_size"],
            group["num_blocks"],
            group["token_nbytes"],
            group["window"],
            group["fingerprint"],
        )
        for group in facts["groups"]
    )
    if facts["layers"] < 1:
        raise ValueError(f"layers is {facts['layers']!r:.40}")
    nbytes = sum(group.num_blocks * group.block_size * group.token_nbytes for group in groups)
    return LayoutFigures(
        facts["layers"],
        len(facts["planes"]),
        facts["token_nbytes"],
        nbytes,
        groups,
        tuple(facts["warnings"]),
    )


def _pool(content: Mapping[str, Any]) -> PoolFigures:
    stats = content["pool"]
    capacity = stats["capacity_nbytes"]
    room = capacity - stats.get("staging_nbytes", 0) or capacity
    return PoolFigures(
        content["pool_url"],
        room,
        min(stats["backed_nbytes"], room),
        min(stats["used_nbytes"], room),
        stats["reserved_nbytes"],
        stats["held_nbytes"],
        max(0, stats["used_nbytes"] - stats["reserved_nbytes"] - stats["held_nbytes"]),
        stats["entries"],
        stats["evictions"],
    )


def _misses(load: OperationFigures | None) -> dict[str, int]:
    if load is None:
        return {}
    fates = load.blocks_by_fate.items()
    return {fate: count for fate, count in fates if fate not in ("done", "failed") and count}


def _failures(operations: tuple[OperationFigures, ...]) -> dict[str, int]:
    codes: dict[str, int] = {}
    for operation in operations:
        for code, count in operation.failures_by_code.items():
            codes[code] = codes.get(code, 0) + count
    return codes


def _doubts(
    operations: tuple[OperationFigures, ...], pool: PoolFigures, seed: str | None
) -> list[str]:
    by_name = {operation.name: operation for operation in operations}
    found = []
    save = by_name.get("save")
    saved = save.done if save else 0
    asked = [by_name[name] for name in ("load", "exists") if name in by_name]
    looked_up = sum(operation.blocks for operation in asked)
    if saved and looked_up >= FEW_LOOKUPS and not any(operation.done for operation in asked):
        found.append(
            f"{saved} blocks saved, 0 hits in {looked_up} look-ups. Likely: "
            + "; ".join(_why_no_hits(saved, pool, seed))
        )
    if save and (left := save.blocks_by_fate.get("no_space", 0)):
        found.append(
            f"{left} of {save.blocks} blocks found no room in the pool: it is smaller than what is "
            "saved at once"
        )
    found += [
        f"{operation.failed} of {operation.calls} calls of {operation.name} failed"
        for operation in operations
        if operation.failed
    ]
    return found


def _why_no_hits(saved: int, pool: PoolFigures, seed: str | None) -> list[str]:
    causes = []
    if seed in (None, "random"):
        causes.append(
            "PYTHONHASHSEED is not set, so that hashes made by Python's hash() differ in every "
            "process"
        )
    if pool.evictions >= saved:
        causes.append(
            f"the pool is too small, {pool.evictions} entries were evicted before they were asked "
            "for"
        )
    if (pool.url or "memory://").startswith("memory://"):
        causes.append("memory:// is a pool of this process alone: what others saved is not in it")
    causes.append("model, rank or layout differ: compare two processes by `ems-cli inspect hash`")
    return causes
