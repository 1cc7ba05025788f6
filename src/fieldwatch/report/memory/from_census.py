"""Memory history from the memory log of a run (``memory.jsonl``)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fieldwatch.base import InputError
from fieldwatch.record import DamageTally
from fieldwatch.record.memory import read_memory_log
from fieldwatch.report.memory.trace import MIB, Floats, LargestTensor, MemoryHistory

TOP = 5
"""Number of largest tensors, as in the original profiler."""
_ON_CPU = "On a CPU, unattributed memory is the rest of the process's heap: interpreter, libraries, record."
_ACCOUNT = ("rounding", "workspace", "unattributed")
"""Parts of the account in addition to the owners and to what is saved for backward."""


def census_trace(path: Path, label: str) -> MemoryHistory:
    """Read a memory log.

    Categories are the kinds of owners, ``activations`` (maximum memory saved for backward during the step) and
    ``other`` (memory without an owner), as in the tags. The parts of the account add up to the allocated memory at the
    time of the census.

    Args:
        path: memory log.
        label: short name of the run.

    Raises:
        InputError: if it contains no valid census.
        OSError: if the file cannot be read.
    """
    damage = DamageTally()
    censuses = read_memory_log(path, damage)
    if damage and not censuses:
        raise InputError(f"{path} contains no valid census: {damage.entries[0].message}")
    # Not validated field by field: the file is normally our own, and one message for all other files is enough.
    try:
        return _trace(path, label, censuses)
    except (AttributeError, KeyError, TypeError) as error:
        raise InputError(
            f"{path}: expected each line to have owners as {{kind: {{component: bytes}}}}, and saved, dtypes and "
            f"fragmentation as {{name: bytes}}, got a line of another form ({error!r})"
        ) from error


def _trace(path: Path, label: str, censuses: Sequence[Mapping[str, Any]]) -> MemoryHistory:
    def column(key: str) -> Floats:
        return np.array([census.get(key, 0) for census in censuses], np.float64)

    allocated = column("allocated") / MIB
    reserved = column("reserved") / MIB
    kinds = _columns([_by_kind(census) for census in censuses])
    saved = np.array([sum(census.get("saved", {}).values()) for census in censuses], np.float64) / MIB
    account = kinds | {"saved": saved} | {name: column(name) / MIB for name in _ACCOUNT}
    # A CPU run reserves nothing: without this, its idle memory would be negative.
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
        categories=kinds | _activations(censuses) | {"other": (column("workspace") + column("unattributed")) / MIB},
        components=_columns([_by_component(census) for census in censuses]),
        dtypes=_columns([census.get("dtypes", {}) for census in censuses]),
        account={name: values for name, values in account.items() if values.any()},
        fragments=_columns([census.get("fragmentation", {}) for census in censuses]),
        large_counts=np.array([len(census.get("large", ())) for census in censuses], np.float64),
        large_threshold=int(last.get("large_threshold", 100 * MIB)) // MIB,
        largest=large,
        began=_moment(censuses[:1]),
        ended=_moment(censuses[-1:]),
        device=device,
        notes=(_ON_CPU,) if device == "cpu" else (),
    )


def _activations(censuses: Sequence[Mapping[str, Any]]) -> dict[str, Floats]:
    """Return the maximum memory saved for backward in each step; empty if it was never measured."""
    # By span if spans were tracked, else one number for the step.
    by_span: list[Mapping[str, int]] = [census.get("saved_at_peak") or {} for census in censuses]
    peaks = [
        sum(spans.values()) or int(census.get("saved_peak", 0)) for spans, census in zip(by_span, censuses, strict=True)
    ]
    return {"activations": np.array(peaks, np.float64) / MIB} if any(peaks) else {}


def _by_kind(census: Mapping[str, Any]) -> dict[str, int]:
    return {kind: sum(components.values()) for kind, components in census.get("owners", {}).items()}


def _by_component(census: Mapping[str, Any]) -> dict[str, int]:
    total: dict[str, int] = {}
    for components in census.get("owners", {}).values():
        for name, size in components.items():
            total[name] = total.get(name, 0) + size
    return total


def _columns(rows: Sequence[Mapping[str, int]]) -> dict[str, Floats]:
    """Return sizes in MiB by name; 0 if a census does not have the name."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, 0) for row in rows], np.float64) / MIB for name in names}


def _large(census: Mapping[str, Any]) -> tuple[LargestTensor, ...]:
    ordered = sorted(census.get("large", ()), key=lambda tensor: -tensor["bytes"])[:TOP]
    return tuple(
        LargestTensor(
            size=tensor["bytes"] / MIB,
            shape=f"({', '.join(map(str, tensor['shape']))})",
            dtype=str(tensor["dtype"]),
            owner=f"{tensor['name']} ({tensor['kind']})",
            views=int(tensor.get("views", 0)),
        )
        for tensor in ordered
    )


def _moment(censuses: Sequence[Mapping[str, Any]]) -> str:
    # Up to the second, as in tensor logs.
    return str(censuses[0].get("time", ""))[:19].replace("T", " ") if censuses else ""
