"""Memory history from the counters in the journal of a run: every step, but no categories."""

from pathlib import Path

import numpy as np

from fieldwatch.record import JOURNAL, History
from fieldwatch.report.memory.trace import Floats, MemoryHistory


def journal_trace(folder: Path, label: str, history: History) -> MemoryHistory | None:
    """Return the memory history of a journal; None if it has no memory counters.

    Args:
        folder: run folder.
        label: short name of the run.
        history: record of the run.
    """
    if "Memory/allocated_MB" not in history:
        return None
    series = history["Memory/allocated_MB"]
    steps = series.steps.astype(np.int64)
    allocated = series.values
    reserved = _at(history, "Memory/reserved_MB", steps)
    # Divided only where memory is reserved; the inner condition avoids a warning about 0.
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
        # The leak test fits growth with the parameters, so it needs them at every step or not at all.
        categories={"parameters": parameters} if np.isfinite(parameters).all() else {},
        large_counts=unknown,
        notes=(note,),
    )


def _at(history: History, name: str, steps: np.ndarray) -> Floats:
    """Return a metric at the given steps; NaN at steps where it was not recorded."""
    values = np.full(len(steps), np.nan)
    if name in history:
        series = history[name]
        places = np.searchsorted(series.steps, steps).clip(max=max(0, len(series) - 1))
        recorded = series.steps[places] == steps
        values[recorded] = series.values[places[recorded]]
    return values
