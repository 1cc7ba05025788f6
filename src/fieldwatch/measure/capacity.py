"""Memory available to a process on the host: free memory of the machine, within the limits set for the process."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil

if sys.platform == "win32":
    resource = None
else:
    import resource

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")
NO_LIMIT = 2**60
"""Limits of at least this many bytes mean "unlimited": cgroup v1 reports a huge page-aligned number."""


class _CgroupFiles(NamedTuple):
    """File names of a cgroup version, and the field of memory.stat with the reclaimable file cache."""

    limit: str
    usage: str
    cache: str


_VERSION_1 = _CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _CgroupFiles("memory.max", "memory.current", "inactive_file")


def process_capacity(resident: int, *, cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Return the memory available to this process in bytes: resident plus free memory, within all limits.

    The limits are those of its control groups and of ``ulimit -v``.

    Args:
        resident: resident memory of the process, in bytes.
        cgroups: mount point of the control groups.
        membership: file that lists the control groups of the process.
    """
    capacities = [psutil.virtual_memory().available + resident, *_cgroup_capacities(resident, cgroups, membership)]
    # The tightest limit counts: groups are nested, and any of them may be the one that is exceeded.
    return min([*capacities, *_address_space_capacity(resident)])


def _address_space_capacity(resident: int) -> Iterator[int]:
    """Yield the capacity under ``ulimit -v``, if that is set: the limit minus mapped memory that is not resident."""
    if resource is None:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        # RLIMIT_AS counts mapped addresses, so memory that is mapped but not resident is already used up.
        yield max(0, limit - psutil.Process().memory_info().vms + resident)


def _cgroup_capacities(resident: int, cgroups: Path, membership: Path) -> Iterator[int]:
    """Yield the capacity under each limited control group: its limit minus the memory used by its other members."""
    for folder, names in _groups(cgroups, membership):
        limit = _number(folder / names.limit)
        usage = _number(folder / names.usage)
        if limit is not None and usage is not None:
            # Do not count file cache that the kernel would reclaim under memory pressure.
            used_by_others = max(0, usage - _cache(folder / "memory.stat", names.cache) - resident)
            yield max(0, limit - used_by_others)


def _groups(cgroups: Path, membership: Path) -> Iterator[tuple[Path, _CgroupFiles]]:
    """Yield the memory control groups of the process and their ancestors, as far as they are mounted."""
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", maxsplit=2)
        # ``0::/path`` (no controllers) is version 2; in version 1 only the memory controller matters.
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (cgroups / "memory", _VERSION_1) if controllers else (cgroups, _VERSION_2)
        group = top / path.lstrip("/")
        # In a container the path may name a group that is not mounted there; then only the top can be read.
        yield top, names
        while group != top and top in group.parents:
            yield group, names
            group = group.parent


def _number(file: Path) -> int | None:
    """Read a number from a file; return None if the file is missing or contains no limit."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < NO_LIMIT else None


def _cache(file: Path, name: str) -> int:
    """Return the reclaimable file cache of a control group, in bytes."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(fields[1]) for fields in map(str.split, lines) if fields[:1] == [name]), 0)
