"""A trace from the counters that every run keeps in its journal: no categories, but every step."""

from pathlib import Path

import numpy as np

from fieldwatch.record import JOURNAL, History
from fieldwatch.report.memory.trace import Floats, MemoryHistory


def journal_trace(folder: Path, label: str, history: History) -> MemoryHistory | None:
    """Return what a run's journal tells about memory, None if it tells nothing."""
    if "Memory/allocated_MB" not in history:
        return None
    series = history["Memory/allocated_MB"]
    steps = series.steps.astype(np.int64)
    allocated = series.values
    reserved = _at(history, "Memory/reserved_MB", steps)
    idle = np.where(reserved > 0, 100 * (reserved - allocated) / np.where(reserved > 0, reserved, 1), np.nan)
    parameters = _at(history, "Memory/parameters_MB", steps)
    unknown = np.full(len(steps), np.nan)
    note = f"{folder.name}: no profile, only the counters of the journal; train with --profile-tensors for categories"
    return MemoryHistory(
        label=label,
        kind="journal",
        files=(folder / JOURNAL,),
        steps=steps,
        allocated=allocated,
        reserved=reserved,
        fragmentation=idle,
        tensors=unknown,
        categories={"parameters": parameters} if np.isfinite(parameters).all() else {},
        large_counts=unknown,
        notes=(note,),
    )


def _at(history: History, name: str, steps: np.ndarray) -> Floats:
    """Return a metric at some steps, NaN where it was not recorded."""
    found = np.full(len(steps), np.nan)
    if name in history:
        series = history[name]
        places = np.searchsorted(series.steps, steps).clip(max=max(0, len(series) - 1))
        same = series.steps[places] == steps
        found[same] = series.values[places[same]]
    return found
