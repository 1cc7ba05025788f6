"""A trace from a run's ``memory.jsonl``."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fieldwatch.base import InputError
from fieldwatch.record import DamageTally
from fieldwatch.record.memory import read_memory_log
from fieldwatch.report.memory.trace import MB, Floats, LargestTensor, MemoryHistory

TOP = 5
_ON_CPU = "On a CPU the unattributed rest is the process's heap beside the tensors: interpreter, libraries, record."
_ACCOUNT = ("rounding", "workspace", "unattributed")


def census_trace(path: Path, label: str) -> MemoryHistory:
    """Read a memory log.

    Categories are the owners' kinds, ``activations`` (the most that was saved for backward at once in the step) and
    ``other`` (what nobody owns), as in the tags; the account is what adds up to ``allocated`` at that moment.

    Raises:
        InputError: it holds no census that can be read.
        OSError: the file cannot be read.
    """
    damage = DamageTally()
    censuses = read_memory_log(path, damage)
    if damage and not censuses:
        raise InputError(f"{path} holds no census that can be read: {damage.entries[0].message}")
    try:
        return _trace(path, label, censuses)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path} holds a census that is not laid out as ours ({error!r}): wanted owners as "
            f"{{kind: {{component: bytes}}}}, saved, dtypes and fragmentation as {{name: bytes}}"
        ) from error


def _trace(path: Path, label: str, censuses: Sequence[Mapping[str, Any]]) -> MemoryHistory:
    def column(key: str) -> Floats:
        return np.array([census.get(key, 0) for census in censuses], np.float64)

    allocated = column("allocated") / MB
    reserved = column("reserved") / MB
    kinds = _columns([_by_kind(census) for census in censuses])
    saved = np.array([sum(census.get("saved", {}).values()) for census in censuses], np.float64) / MB
    account = kinds | {"saved": saved} | {name: column(name) / MB for name in _ACCOUNT}
    idle = np.where(reserved > 0, reserved - allocated, 0.0)
    last: Mapping[str, Any] = censuses[-1] if censuses else {}
    large = _large(last)
    device = str(last.get("device", ""))
    return MemoryHistory(
        label=label,
        kind="memory.jsonl",
        files=(path,),
        steps=np.array([census["step"] for census in censuses], np.int64),
        allocated=allocated,
        reserved=reserved,
        fragmentation=100 * idle / np.maximum(reserved, 1e-9),
        tensors=column("tensors"),
        categories=kinds | _activations(censuses) | {"other": (column("workspace") + column("unattributed")) / MB},
        components=_columns([_by_component(census) for census in censuses]),
        dtypes=_columns([census.get("dtypes", {}) for census in censuses]),
        account={name: values for name, values in account.items() if values.any()},
        fragments=_columns([census.get("fragmentation", {}) for census in censuses]),
        large_counts=np.array([len(census.get("large", ())) for census in censuses], np.float64),
        large_threshold=int(last.get("large_threshold", 100 * MB)) // MB,
        largest=large,
        began=_moment(censuses[:1]),
        ended=_moment(censuses[-1:]),
        device=device,
        notes=(_ON_CPU,) if device == "cpu" else (),
    )


def _activations(censuses: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """Return the most that was saved for backward at once in each step; nothing where it was never followed."""
    followed: list[Mapping[str, int]] = [census.get("saved_at_peak") or {} for census in censuses]
    peaks = [sum(at.values()) or int(one.get("saved_peak", 0)) for at, one in zip(followed, censuses, strict=True)]
    return {"activations": np.array(peaks, np.float64) / MB} if any(peaks) else {}


def _by_kind(census: Mapping[str, Any]) -> dict[str, int]:
    return {kind: sum(components.values()) for kind, components in census.get("owners", {}).items()}


def _by_component(census: Mapping[str, Any]) -> dict[str, int]:
    total: dict[str, int] = {}
    for components in census.get("owners", {}).values():
        for name, size in components.items():
            total[name] = total.get(name, 0) + size
    return total


def _columns(rows: Sequence[Mapping[str, int]]) -> dict[str, Floats]:
    """Return MB per name; 0 where a census does not have it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, 0) for row in rows], np.float64) / MB for name in names}


def _large(census: Mapping[str, Any]) -> tuple[LargestTensor, ...]:
    ordered = sorted(census.get("large", ()), key=lambda one: -one["bytes"])[:TOP]
    return tuple(
        LargestTensor(
            size=one["bytes"] / MB,
            shape=f"({', '.join(map(str, one['shape']))})",
            dtype=str(one["dtype"]),
            owner=f"{one['name']} ({one['kind']})",
            views=int(one.get("views", 0)),
        )
        for one in ordered
    )


def _moment(censuses: Sequence[Mapping[str, Any]]) -> str:
    return str(censuses[0].get("time", ""))[:19].replace("T", " ") if censuses else ""
