"""Checks of the host: memory, limits, /dev/shm, huge pages."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ems.common.units import format_nbytes
from ems_cli.diagnostics.finding import Finding, failed, passed, skipped, warned
from ems_cli.diagnostics.surroundings import Machine

_SHM_NBYTES: Final = 256 << 20
_SHM_FREE_NBYTES: Final = 64 << 20
_NO_LIMIT: Final = 1 << 60
"""Control groups of version 1 say "no limit" by a number near 2^63."""
_TOO_MANY_HUGE: Final = 0.5


@dataclass(frozen=True, slots=True)
class CgroupMemory:
    """The memory limit of the innermost control group that has one."""

    limit_nbytes: int
    used_nbytes: int
    file: str


def memory_info(machine: Machine) -> dict[str, int]:
    """Return /proc/meminfo, sizes in bytes."""
    found = {}
    for line in (machine.text("proc/meminfo") or "").splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[1:] == ["kB"] else 1)
    return found


def check_memory(info: dict[str, int], pool_nbytes: int) -> Finding:
    """Return whether the host has memory for the pool."""
    wanted = f"{format_nbytes(pool_nbytes)} available for the pool of each process"
    if "MemAvailable" not in info:
        return skipped("memory", "/proc/meminfo does not tell")
    available = info["MemAvailable"]
    found = f"{format_nbytes(available)} of {format_nbytes(info.get('MemTotal', 0))} available"
    if available < pool_nbytes:
        fix = "give EMS_POOL a smaller capacity: memory://?capacity=2GiB"
        return warned("memory", found, wanted, fix)
    return passed("memory", found, wanted)


def cgroup_memory(machine: Machine) -> CgroupMemory | None:
    """Return the memory limit of this process's container; None for no limit."""
    limits = [*_version_2(machine), *_version_1(machine)]
    return min(limits, key=lambda one: one.limit_nbytes, default=None)


def check_container(cgroup: CgroupMemory | None, pool_nbytes: int) -> Finding:
    """Return whether the container's limit leaves room for the pool."""
    wanted = f"no limit, or {format_nbytes(pool_nbytes)} left for the pool of each process"
    if cgroup is None:
        return passed("container", "no memory limit", wanted)
    left = max(0, cgroup.limit_nbytes - cgroup.used_nbytes)
    limit = format_nbytes(cgroup.limit_nbytes)
    found = f"{format_nbytes(left)} of {limit} left by {cgroup.file}"
    if left < pool_nbytes:
        fix = "raise the container's memory limit, or give EMS_POOL a smaller capacity"
        return warned("container", found, wanted, fix)
    return passed("container", found, wanted)


def check_shm(path: Path) -> Finding:
    """Return whether /dev/shm is as large as torch and the run directory need it."""
    wanted = f"at least {format_nbytes(_SHM_NBYTES)}, {format_nbytes(_SHM_FREE_NBYTES)} of it free"
    try:
        space = os.statvfs(path)
    except OSError as error:
        return failed("shm", f"{path}: {error.strerror}", wanted, "mount a tmpfs there")
    return judge_shm(space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize, wanted)


def judge_shm(size_nbytes: int, free_nbytes: int, wanted: str = "") -> Finding:
    """Return whether a /dev/shm of this size will do."""
    found = f"{format_nbytes(free_nbytes)} of {format_nbytes(size_nbytes)} free"
    if free_nbytes < _SHM_FREE_NBYTES or size_nbytes < _SHM_NBYTES:
        fix = "start the container with --shm-size=16g, or clean up /dev/shm"
        return warned("shm", found, wanted, fix)
    return passed("shm", found, wanted)


def check_locked_memory(limit_nbytes: int | None, pool_nbytes: int, *, cann: str | None) -> Finding:
    """Return whether the limit on locked memory leaves room for a pinned pool."""
    name = "locked-memory"
    wanted = f"no limit, or {format_nbytes(pool_nbytes)} for the pool of each process"
    if limit_nbytes is None:
        return passed(name, "no limit", wanted)
    found = f"limit of {format_nbytes(limit_nbytes)}"
    if limit_nbytes >= pool_nbytes:
        return passed(name, found, wanted)
    if cann != "real":
        return skipped(name, f"{found}; it does not matter without an NPU")
    return warned(name, found, wanted, "ulimit -l unlimited; in a container --ulimit memlock=-1")


def check_huge_pages(info: dict[str, int]) -> Finding:
    """Return whether huge pages that are set aside leave memory for the pool."""
    name = "huge-pages"
    pages, size = info.get("HugePages_Total"), info.get("Hugepagesize", 0)
    total = info.get("MemTotal", 0)
    if pages is None or not total:
        return skipped(name, "/proc/meminfo does not tell")
    wanted = "none needed; at most half of the memory set aside, the pool cannot use it"
    free = info.get("HugePages_Free", 0)
    found = f"{pages} of {format_nbytes(size)} set aside, {free} free"
    if free * size > _TOO_MANY_HUGE * total:
        return warned(name, found, wanted, "lower vm.nr_hugepages")
    return passed(name, found, wanted)


def _version_2(machine: Machine) -> Iterator[CgroupMemory]:
    yield from _limits(
        machine, "sys/fs/cgroup", _group(machine, ""), "memory.max", "memory.current"
    )


def _version_1(machine: Machine) -> Iterator[CgroupMemory]:
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    yield from _limits(machine, "sys/fs/cgroup/memory", _group(machine, "memory"), *names)


def _limits(
    machine: Machine, mount: str, group: str, limit_name: str, used_name: str
) -> Iterator[CgroupMemory]:
    """Yield the limits of a group and of those around it; in a container only the mount is seen."""
    places = [Path(group), *Path(group).parents] if group else [Path("/")]
    for place in places:
        folder = Path(mount) / place.relative_to("/")
        limit = machine.number(str(folder / limit_name))
        if limit is not None and limit < _NO_LIMIT:
            used = machine.number(str(folder / used_name)) or 0
            yield CgroupMemory(limit, used, f"/{folder / limit_name}")


def _group(machine: Machine, controller: str) -> str:
    """Return this process's group of a controller; "" of version 2, as /proc writes it."""
    for line in (machine.text("proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if controller in names.split(",") and path.startswith("/"):
            return path
    return "/"
