"""Traces that the forecast reads from a history: memory, size, work and view per step, and the changes of size."""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.window import between, on_steps
from fieldwatch.record import History, SampleLosses
from fieldwatch.record.memory import profile_tag

PEAK = "Memory/peak_MB"
ALLOCATED = "Memory/allocated_MB"
CAPACITY = "Memory/capacity_MB"
PARAMETERS = "Memory/parameters_MB"
NOT_RETURNABLE = "TensorProfiling/Fragmentation/not_returnable_MB"
SIZE = "Model/size"
WORK = "Model/work"

STATES = 4.0
"""Memory of a parameter with its gradient and Adam's two moments, relative to the parameter."""
# Number of recordings that the capacity is a median of.
_LATEST = 5


@dataclass(frozen=True, kw_only=True)
class MemoryTrace:
    """Memory of the recorded steps; all arrays are ``[n]``, memory in MiB.

    Attributes:
        steps: recorded steps.
        peak: peak of allocated memory in each step.
        size: size of the model after each step: number of primitives, or MiB of parameters if the pipeline does not
            record primitives.
        before: size of the model before each step.
        work: work of each step, NaN if unknown.
        views: index into ``names`` of each step's sample, -1 if it had none or several.
        names: names of the samples.
        atypical: mask of steps that are not ordinary: growth, evaluation, reset.
        name: metric of ``size``.
        layout: memory of parameters, gradients and Adam's moments per unit of size, in MiB; NaN if unknown.
    """

    steps: NDArray[np.float64]
    peak: NDArray[np.float64]
    size: NDArray[np.float64]
    before: NDArray[np.float64]
    work: NDArray[np.float64]
    views: NDArray[np.intp]
    names: tuple[str, ...]
    atypical: NDArray[np.bool_]
    name: str
    layout: float

    @property
    def counted(self) -> bool:
        """Whether sizes count primitives; else they are MiB of parameters."""
        return self.name == SIZE

    @classmethod
    def of(cls, history: History, last: int) -> Self | None:
        """Read the steps up to ``last``; None if the peak or the size of the model is not recorded."""
        name = size_metric(history)
        if PEAK not in history or name is None:
            return None
        peak = between(history[PEAK], 0, last)
        size = on_steps(history[name], peak.steps)
        usable = np.isfinite(peak.values) & (size > 0)
        # Differences need at least two rows.
        if np.count_nonzero(usable) < 2:
            return None
        steps = peak.steps[usable]
        size = size[usable]
        work = on_steps(history[WORK], steps) if WORK in history else np.full(len(steps), np.nan)
        samples = history.sample_losses()
        return cls(
            steps=steps,
            peak=peak.values[usable],
            size=size,
            before=np.concatenate((size[:1], size[:-1])),
            work=np.where(work > 0, work, np.nan),
            views=_views(samples, steps),
            names=tuple(samples.names),
            atypical=_atypical(history, steps, size),
            name=name,
            layout=_layout(history, name, steps, size),
        )


@dataclass(frozen=True, kw_only=True)
class GrowthTrace:
    """Changes of the model's size.

    Attributes:
        steps: ``[k]`` steps at which the size changed; the first is the step from which the size is known.
        sizes: ``[k]`` size after each change.
    """

    steps: NDArray[np.float64]
    sizes: NDArray[np.float64]

    @classmethod
    def of(cls, history: History, name: str, last: int) -> Self | None:
        """Read the changes of a size metric; None if it was not recorded.

        Changes before the recordings that the history still holds are reconstructed from ``growth`` events.
        """
        series = between(history[name], 0, last)
        known = series.values > 0
        if not known.any():
            return None
        values = series.values[known]
        recorded = series.steps[known]
        changed = np.concatenate(([0], 1 + np.flatnonzero(np.diff(values))))
        steps = recorded[changed]
        sizes = values[changed]
        if name != SIZE:
            return cls(steps=steps, sizes=sizes)
        older: list[tuple[float, float]] = []
        size = float(sizes[0])
        # Walk back from the first recording held: each event contains the number of added and removed primitives.
        for event in reversed(history.events("growth")):
            if event["step"] >= steps[0]:
                continue
            # Sizes before an event without counts are unknown.
            if "added" not in event:
                break
            older.append((float(event["step"]), size))
            size -= float(event["added"]) - float(event.get("removed", 0))
        if not older or min(size for _, size in older) <= 0:
            return cls(steps=steps, sizes=sizes)
        past = np.array(older[::-1])
        return cls(steps=np.concatenate((past[:, 0], steps[1:])), sizes=np.concatenate((past[:, 1], sizes[1:])))

    @property
    def change(self) -> float:
        """Median increase of the size per change, over the last changes."""
        changes = np.diff(self.sizes[-17:])
        return upper_median(changes[changes > 0]) if (changes > 0).any() else 0.0

    @property
    def spacing(self) -> float:
        """Median number of steps between two changes."""
        return upper_median(np.diff(self.steps[-33:])) if len(self.steps) > 1 else np.inf


def size_metric(history: History) -> str | None:
    """Return the metric of the model's size: primitives if recorded, else MiB of parameters; None if there is none."""
    return next((name for name in (SIZE, PARAMETERS) if name in history), None)


def declared_end(history: History, last: int) -> float:
    """Return the step at which growth ends, as declared by a ``growth`` event (``growth_until``), else infinity."""
    ends = [e["growth_until"] for e in history.events("growth") if e["step"] <= last and "growth_until" in e]
    return float(ends[-1]) if ends else np.inf


def capacity(history: History, last: int) -> float | None:
    """Return the memory in MiB that the process could have: the median of the last recordings; None if unknown.

    Memory that the profile found lost in blocks too small for large tensors is subtracted.
    """
    if CAPACITY not in history:
        return None
    values = between(history[CAPACITY], 0, last).values[-_LATEST:]
    values = values[np.isfinite(values) & (values > 0)]
    if not len(values):
        return None
    lost = 0.0
    not_returnable = profile_tag(NOT_RETURNABLE, history)
    if not_returnable in history:
        pieces = between(history[not_returnable], 0, last).values[-_LATEST:]
        lost = upper_median(pieces) if len(pieces) and np.isfinite(pieces).all() else 0.0
    return upper_median(values) - lost


def upper_median(values: NDArray[np.float64]) -> float:
    """Return the upper median of the values."""
    # np.median takes ten times as long on short arrays.
    half = len(values) // 2
    return float(np.partition(values, half)[half])


def _atypical(history: History, steps: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark steps with growth, evaluation or reset."""
    # The step before a change is marked too, because the size may be recorded before or after the update.
    changed = np.concatenate((np.diff(size) != 0, [False]))
    changed[1:] |= changed[:-1]
    return changed | had_event(history, steps, "evaluation", "growth", "reset")


def had_event(history: History, steps: NDArray[np.float64], *kinds: str) -> NDArray[np.bool_]:
    """Return for each of the ascending steps whether it had an event of one of the kinds."""
    event_steps = np.array([event["step"] for kind in kinds for event in history.events(kind)], np.float64)
    mask = np.zeros(len(steps) + 1, np.bool_)
    positions = np.searchsorted(steps, event_steps)
    # Infinity is appended so that an event after the last step gets a position that never matches.
    mask[positions[np.append(steps, np.inf)[positions] == event_steps]] = True
    return mask[:-1]


def _views(samples: SampleLosses, steps: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the index of each step's sample, -1 if it had none or several."""
    visits = samples.visits.steps
    if not len(visits):
        return np.full(len(steps), -1)
    first = int(min(visits.min(), steps[0]))
    offsets = (visits - first).astype(np.intp)
    # A lookup table by step is faster than a search. A step with several samples has no single view.
    table = np.full(int(max(visits.max(), steps[-1])) - first + 1, -1)
    table[offsets] = samples.owners
    table[np.bincount(offsets, minlength=len(table)) > 1] = -1
    return table[(steps - first).astype(np.intp)]


def _layout(history: History, name: str, steps: NDArray[np.float64], size: NDArray[np.float64]) -> float:
    """Return the memory in MiB of parameters with gradients and optimizer state per unit of size; NaN if unknown."""
    if name == PARAMETERS:
        return STATES
    if PARAMETERS not in history:
        return np.nan
    parameters = on_steps(history[PARAMETERS], steps)
    if not np.isfinite(parameters[[0, -1]]).all():
        return np.nan
    grown = float(size[-1] - size[0])
    # While the model grows, the difference excludes parameters that do not belong to primitives.
    if abs(grown) > 0.01 * size[-1]:
        return STATES * float(parameters[-1] - parameters[0]) / grown
    return STATES * float(parameters[-1] / size[-1])
