"""Memory panel: amounts, owners, remaining memory and the forecast."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from fieldwatch.base import mebibytes, percent
from fieldwatch.base.json_values import as_mapping, as_objects, is_number
from fieldwatch.health.forecast import forecast
from fieldwatch.record import DamageTally, History, tags
from fieldwatch.record.memory import MEMORY_LOG, PROFILE_ROOTS, read_memory_log
from fieldwatch.report.account.material import Material
from fieldwatch.report.account.series import short_labels
from fieldwatch.report.page import Panel, facts, group, lines, table

MIB = 2.0**20
_CHARTS = (
    ("By owner", "Tensor_Category/", "Memory by owner, at the update of every profiled step."),
    ("By component", "Component/", "Memory of each watched group with its gradients and optimizer state."),
    ("Account", "Account/", "Parts whose sum is exactly the allocated memory."),
    ("Peak by span", "Peak/", "Peak allocated memory within each span of the step."),
    ("By type", "Tensor_DType/", "Memory by dtype."),
    ("Idle memory", "Fragmentation/", "Memory that the allocator holds and no tensor uses, by reason."),
)
_TOTALS = ("Memory/allocated_MB", "Memory/peak_MB", "Memory/reserved_MB", "Memory/parameters_MB", "Memory/capacity_MB")
_COUNTS = (
    (
        "Number of tensors",
        {"Tensor_Count/total": "all tensors", "Large_Tensors/count": "large tensors"},
        "All tensors, and large ones.",
    ),
    ("Large tensors", {"Large_Tensors/total_MB": "all large tensors"}, "Total size of the large tensors, in MiB."),
)
_MOST_TENSORS = 20
_MOST_COMPONENTS = 40
_COMPONENTS = (
    ("component", "component", False),
    ("parameters", "parameters, MiB", True),
    ("gradients", "gradients, MiB", True),
    ("optimizer", "optimizer, MiB", True),
    ("buffers", "buffers, MiB", True),
    ("data", "data, MiB", True),
    ("all", "total, MiB", True),
)


def memory(material: Material) -> Panel:
    """Return the memory panel: totals, memory by owner and component, largest tensors, the machine, a forecast."""
    parts: list[Panel] = []
    summary = _facts(material.history)
    if summary["facts"]:
        parts.append(summary)
    # Without the capacity, which is often ten times as high and would press the other lines to the axis.
    totals = [name for name in _TOTALS[:-1] if name in material.series]
    if totals:
        about = "Allocated at the end of a step, peak, and reserved by the allocator. On a CPU, of the whole process."
        parts.append(lines("Memory", totals, about, labels=short_labels(totals, tags.MEMORY_SIZE)))
    for root in PROFILE_ROOTS:
        parts += _profile(material, f"{root}/")
    # The other readings differ in unit and scale, so each has a chart of its own.
    others = [name for name in material.of_family(tags.MEMORY_READING) if name not in totals and not _is_profile(name)]
    labels = short_labels(others, tags.MEMORY_READING)
    for name in others:
        title = labels[name].removesuffix("_MB").replace("_", " ").capitalize()
        parts.append(lines(title, [name], material.series[name]["meaning"], labels={name: title.lower()}))
    parts += _census_tables(material)
    parts += _machine(material)
    why = "No memory was recorded: run.track(...) starts the counters, --profile-tensors records the owners."
    return group("memory", "Memory", "Memory of the run, its owners, and how much of the capacity remains.", parts, why)


def _profile(material: Material, root: str) -> list[Panel]:
    """Return the charts of the tensor profile whose tags start with ``root``."""
    parts: list[Panel] = []
    for title, kind, about in _CHARTS:
        prefix = root + kind
        # Owners that never had any memory are left out: they would only fill the legend.
        names = [name for name in material.named(prefix) if material.series[name]["max"][0]]
        if names:
            parts.append(
                lines(title, names, about, labels=short_labels(names, tags.Family(prefix, "_MB"), tags.Family(prefix)))
            )
    for title, counts, about in _COUNTS:
        if labels := {root + name: label for name, label in counts.items() if root + name in material.series}:
            parts.append(lines(title, list(labels), about, labels=labels))
    return parts


def _is_profile(name: str) -> bool:
    """Return whether a tag below Memory/ belongs to the tensor profile and already has a chart."""
    kinds = (*(kind for _, kind, _ in _CHARTS), *(count for _, counts, _ in _COUNTS for count in counts))
    return (tags.MEMORY_READING.part(name) or "").startswith(kinds)


def _facts(history: History) -> Panel:
    pairs: list[tuple[str, Any]] = []
    peak = capacity = None
    if "Memory/peak_MB" in history:
        series = history["Memory/peak_MB"]
        # Not nanargmax, which raises if all values are NaN.
        finite = np.where(np.isfinite(series.values), series.values, -np.inf)
        place = int(np.argmax(finite))
        peak = float(finite[place])
        pairs.append(("peak", f"{mebibytes(peak)} in step {int(series.steps[place]):,}"))
    if "Memory/capacity_MB" in history and len(history["Memory/capacity_MB"]):
        # The last value: other processes on the device change what this one could have.
        capacity = float(history["Memory/capacity_MB"].values[-1])
        pairs.append(("capacity", mebibytes(capacity)))
    if peak is not None and capacity:
        pairs.append(("left at the peak", f"{mebibytes(capacity - peak)} ({percent(1 - peak / capacity, 0)})"))
    ahead = forecast(history)
    if ahead is not None:
        pairs.append(("forecast", f"{ahead.text()} (probability {percent(ahead.probability, 0)})"))
    elif pairs:
        pairs.append(("forecast", "no sign that memory will run out"))
    return facts("In short", pairs, "Peak, capacity and forecast.")


def _census_tables(material: Material) -> list[Panel]:
    """Return tables of the newest census: components by category, and the largest tensors."""
    if not (material.folder / MEMORY_LOG).exists():
        return []
    damage = DamageTally()
    censuses = read_memory_log(material.folder, damage)
    parts = [facts("Census", [(entry.file, entry.message)], "The memory log is damaged.") for entry in damage.entries]
    if not censuses:
        return parts
    last = censuses[-1]
    rows = _by_component(as_mapping(last.get("owners")))
    if rows:
        parts.append(table("Components at the end", _COMPONENTS, rows, f"At step {last['step']:,}, largest first."))
    large = as_objects(last.get("large"))
    if large:
        keys = [key for key in large[0] if key != "bytes"][:6]
        tensors = [
            {key: str(tensor.get(key, "")) for key in keys} | {"size": _mib(tensor.get("bytes"))} for tensor in large
        ]
        columns = [(key, key, False) for key in keys] + [("size", "MiB", True)]
        about = "Above the profile's threshold."
        parts.append(table("Largest tensors at the end", columns, tensors[:_MOST_TENSORS], about))
    return parts


def _by_component(owners: Mapping[str, Any]) -> list[dict[str, Any]]:
    rows: dict[str, dict[str, Any]] = {}
    for kind, components in owners.items():
        for name, size in as_mapping(components).items():
            row = rows.setdefault(name, {"component": name, "all": 0.0})
            row[kind] = _mib(size)
            # Rounded at each addition, so that the total shows no more decimals than its parts.
            row["all"] = round(row["all"] + (_mib(size) or 0.0), 3)
    return sorted(rows.values(), key=lambda row: -row["all"])[:_MOST_COMPONENTS]


def _machine(material: Material) -> list[Panel]:
    """Return the readings of the machine, one chart per unit."""
    parts: list[Panel] = []
    for title, ends, about in (
        ("Memory of the machine", ("_MB",), "Memory of the whole machine and of this process, in MiB."),
        ("Load of the machine", ("_percent",), "Utilization of CPU and GPU, in percent."),
        ("Power and temperature", ("_W", "_C"), "Of the GPU, in W and degrees Celsius."),
    ):
        names = [name for name in material.of_family(tags.MACHINE_READING) if name.endswith(ends)]
        if names:
            parts.append(lines(title, names, about, labels=short_labels(names, tags.MACHINE_READING)))
    return parts


def _mib(size: Any) -> float | None:
    return round(size / MIB, 3) if is_number(size) else None
