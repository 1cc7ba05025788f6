"""What a process on the CPU could have: free memory of the machine, and the limits set for it."""

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
"""From here on a limit is none: version 1 writes the largest number of pages it can think of."""


class _CgroupFiles(NamedTuple):
    """What a version of control groups calls its files, and the file cache that it would give up first."""

    limit: str
    usage: str
    cache: str


_VERSION_1 = _CgroupFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_VERSION_2 = _CgroupFiles("memory.max", "memory.current", "inactive_file")


def process_capacity(resident: int, *, cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP) -> int:
    """Bytes that this process could have: its own and what is free beside it, within the limits of its groups.

    Args:
        resident: what it has.
        cgroups: where control groups are mounted.
        membership: the table that says to which groups the process belongs.
    """
    capacities = [psutil.virtual_memory().available + resident, *_cgroup_capacities(resident, cgroups, membership)]
    return min([*capacities, *_address_space_capacity(resident)])


def _address_space_capacity(resident: int) -> Iterator[int]:
    """What ``ulimit -v`` leaves: the limit without what is mapped and not resident; nothing where there is none."""
    if resource is None:
        return
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY:
        # ``RLIMIT_AS`` counts mapped addresses; what is mapped and not resident is spent already.
        yield max(0, limit - psutil.Process().memory_info().vms + resident)


def _cgroup_capacities(resident: int, cgroups: Path, membership: Path) -> Iterator[int]:
    """What each limited group leaves to the process: the limit without what the group's other members use."""
    for folder, names in _groups(cgroups, membership):
        limit = _number(folder / names.limit)
        usage = _number(folder / names.usage)
        if limit is not None and usage is not None:
            # File cache that the kernel would drop is not in anybody's way.
            used_by_others = max(0, usage - _cache(folder / "memory.stat", names.cache) - resident)
            yield max(0, limit - used_by_others)


def _groups(cgroups: Path, membership: Path) -> Iterator[tuple[Path, _CgroupFiles]]:
    """The process's memory groups with all that they lie in; in a container only the mounted top may be seen."""
    if not membership.exists():
        return
    for line in membership.read_text().splitlines():
        _, controllers, path = line.split(":", maxsplit=2)
        # ``0::/path`` (no controllers) is version 2; in version 1 only the memory controller matters.
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (cgroups / "memory", _VERSION_1) if controllers else (cgroups, _VERSION_2)
        group = top / path.lstrip("/")
        # In a container the path may name a group that is not mounted here: the top is what can be read.
        yield top, names
        while group != top and top in group.parents:
            yield group, names
            group = group.parent


def _number(file: Path) -> int | None:
    """The number in a file; None where it says none, or is missing."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() and int(text) < NO_LIMIT else None


def _cache(file: Path, name: str) -> int:
    """Bytes of file cache that a group would give up for the asking."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(fields[1]) for fields in map(str.split, lines) if fields[:1] == [name]), 0)
