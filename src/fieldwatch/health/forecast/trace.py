"""What the forecast reads from a history: memory, size, work and view of each step, and when the model grew."""

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
"""A parameter, its gradient and Adam's two moments: so many times its own bytes."""
_LATEST = 5


@dataclass(frozen=True, kw_only=True)
class MemoryTrace:
    """The memory of the recorded steps; all arrays are ``[n]``, memory in MiB.

    Attributes:
        steps: the steps.
        peak: the most that was allocated at once in each step.
        size: the model's size after each step: primitives, or MiB of parameters where no pipeline says primitives.
        before: the size before each step.
        work: the work of each step, NaN where it is not known.
        views: which of ``names`` each step saw, -1 where it saw none or several.
        names: the samples.
        atypical: steps that say nothing of an ordinary one: growth, evaluation, reset.
        name: the metric that ``size`` comes from.
        layout: MiB per unit of size that parameters, gradients and Adam's moments are known to take.
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
        """Read the steps up to ``last``; None where the peak or the model's size is not recorded."""
        name = size_metric(history)
        if PEAK not in history or name is None:
            return None
        peak = between(history[PEAK], 0, last)
        size = on_steps(history[name], peak.steps)
        usable = np.isfinite(peak.values) & (size > 0)
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
    """When the model's size changed, and to what.

    Attributes:
        steps: ``[k]`` steps in which it changed; the first is the step from which the size is known.
        sizes: ``[k]`` size after each.
    """

    steps: NDArray[np.float64]
    sizes: NDArray[np.float64]

    @classmethod
    def of(cls, history: History, name: str, last: int) -> Self | None:
        """Read the changes of a metric, and those before its kept recordings from the events' counts; None if none."""
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
        # Walk back from the first kept recording: each event says what it added and removed.
        for event in reversed(history.events("growth")):
            if event["step"] >= steps[0]:
                continue
            # Sizes before an event without counts cannot be known.
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
        """What a change usually adds by now."""
        changes = np.diff(self.sizes[-17:])
        return upper_median(changes[changes > 0]) if (changes > 0).any() else 0.0

    @property
    def spacing(self) -> float:
        """The usual number of steps between two changes."""
        return upper_median(np.diff(self.steps[-33:])) if len(self.steps) > 1 else np.inf


def size_metric(history: History) -> str | None:
    """Return the metric that says how large the model is: primitives if they are counted; None if nothing says it."""
    return next((name for name in (SIZE, PARAMETERS) if name in history), None)


def declared_end(history: History, last: int) -> float:
    """Return the step at which growth ends, as a ``growth`` event says it (``growth_until``); infinity if none does."""
    ends = [e["growth_until"] for e in history.events("growth") if e["step"] <= last and "growth_until" in e]
    return float(ends[-1]) if ends else np.inf


def capacity(history: History, last: int) -> float | None:
    """Return how much memory in MiB the process could have: the median of the last recordings; None if unknown.

    What the profile found lost in pieces that no large tensor fits is taken off.
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
    """Return the upper median: numpy's own costs ten times as much on short arrays."""
    half = len(values) // 2
    return float(np.partition(values, half)[half])


def _atypical(history: History, steps: NDArray[np.float64], size: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Mark steps of growth (and the one before: a size may be read before or after it), evaluation and reset."""
    changed = np.concatenate((np.diff(size) != 0, [False]))
    changed[1:] |= changed[:-1]
    return changed | had_event(history, steps, "evaluation", "growth", "reset")


def had_event(history: History, steps: NDArray[np.float64], *kinds: str) -> NDArray[np.bool_]:
    """Tell which of the ascending steps had an event of one of the kinds."""
    event_steps = np.array([event["step"] for kind in kinds for event in history.events(kind)], np.float64)
    mask = np.zeros(len(steps) + 1, np.bool_)
    positions = np.searchsorted(steps, event_steps)
    # Infinity is appended so that an event after the last step finds a position that never matches.
    mask[positions[np.append(steps, np.inf)[positions] == event_steps]] = True
    return mask[:-1]


def _views(samples: SampleLosses, steps: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return which sample each step saw, -1 where it saw none or several."""
    visits = samples.visits.steps
    if not len(visits):
        return np.full(len(steps), -1)
    first = int(min(visits.min(), steps[0]))
    offsets = (visits - first).astype(np.intp)
    # A table by step is faster than a search; a step with several samples has no view.
    table = np.full(int(max(visits.max(), steps[-1])) - first + 1, -1)
    table[offsets] = samples.owners
    table[np.bincount(offsets, minlength=len(table)) > 1] = -1
    return table[(steps - first).astype(np.intp)]


def _layout(history: History, name: str, steps: NDArray[np.float64], size: NDArray[np.float64]) -> float:
    """Return the MiB that parameters with their states take per unit of size."""
    if name == PARAMETERS:
        return STATES
    if PARAMETERS not in history:
        return np.nan
    parameters = on_steps(history[PARAMETERS], steps)
    if not np.isfinite(parameters[[0, -1]]).all():
        return np.nan
    grown = float(size[-1] - size[0])
    # While the model grows, the difference leaves out parameters that are not primitives.
    if abs(grown) > 0.01 * size[-1]:
        return STATES * float(parameters[-1] - parameters[0]) / grown
    return STATES * float(parameters[-1] / size[-1])
