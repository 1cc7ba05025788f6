"""Detection of jumps, spikes and drops of memory, and their association with events."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldwatch.report.memory.trace import Floats, MemoryHistory, RecordedCurve, Steps

Shape = Literal["jump", "spike", "drop"]
SCORE = 10.0
"""Robust z-score above which a change between two snapshots is a jump; usual fluctuations stay below it."""
SHARE = 0.02
"""Minimum size of a jump as a fraction of the median memory; smaller ones end no run."""
LEAST_MIB = 4.0
"""Minimum size of a jump in MiB, for models so small that a fraction of their memory is noise."""
GRAVE = 0.10
"""Fraction of the memory above which an unexplained jump or spike is a warning."""
MOST = 20
"""Maximum number of jumps that are shown."""
_RETURN = 3
"""Maximum number of snapshots until a spike has returned."""


@dataclass(frozen=True, kw_only=True)
class Jump:
    """One sudden change of the allocated memory.

    Attributes:
        step: iteration of the first snapshot that shows the change.
        shape: a jump stays up, a spike returns within three snapshots, a drop stays down.
        change: change since the previous snapshot, in MiB.
        share: change as a fraction of the median memory.
        score: distance from the usual change, in robust standard deviations.
        quiet: number of preceding snapshots without a jump.
        parts: category that changed most in the same direction, and its change in MiB; empty if none is known.
        near: kinds of events since the previous snapshot.
    """

    step: int
    shape: Shape
    change: float
    share: float
    score: float
    quiet: int
    parts: tuple[tuple[str, float], ...]
    near: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Link:
    """Association between jumps and a kind of event.

    Attributes:
        kind: kind of the events; ``"loss spike"`` for steps at which the loss left its usual range.
        events: number of such events within the range of the snapshots.
        within: median number of iterations between snapshots, in which an event counts for the later one.
        jumps: number of jumps, spikes and drops.
        together: number of these with such an event.
        expected: expected number with such an event by chance.
        chance: probability of at least ``together`` by chance (hypergeometric).
    """

    kind: str
    events: int
    within: int
    jumps: int
    together: int
    expected: float
    chance: float


def find_jumps(trace: MemoryHistory, first: int) -> tuple[Jump, ...]:
    """Return the sudden changes of the allocated memory after the start-up, in order.

    Args:
        trace: memory history of the run.
        first: index of the first snapshot after the start-up.
    """
    values = trace.allocated[first:]
    # With fewer snapshots, nothing is known about the usual change.
    if len(values) < 8 or not np.isfinite(values).all():
        return ()
    changes = np.diff(values)
    level = float(np.median(values))
    usual = _spread(changes, level)
    # Relative to the median change, so that a model that grows steadily has no jumps.
    scores = (changes - np.median(changes)) / usual
    least = max(SHARE * level, LEAST_MIB)
    # Both conditions: in a run without any fluctuation, each change of a few bytes has a high score.
    places = np.flatnonzero((np.abs(scores) > SCORE) & (np.abs(changes) > least))
    has_event = {kind: _per_interval(trace.steps, steps) for kind, steps in all_events(trace).items()}
    jumps: list[Jump] = []
    skip_to = last = -1
    for place in places.tolist():
        # The change belongs to a spike that has already been counted.
        if place <= skip_to:
            continue
        shape, skip_to = _shape(values, place)
        jumps.append(
            Jump(
                step=int(trace.steps[first + place + 1]),
                shape=shape,
                change=float(changes[place]),
                share=float(changes[place] / level) if level else 0.0,
                score=float(scores[place]),
                quiet=place - last - 1,
                parts=_parts(trace, first + place),
                near=tuple(kind for kind, intervals in has_event.items() if intervals[first + place]),
            )
        )
        last = max(place, skip_to)
    return tuple(jumps)


def _spread(changes: Floats, level: float) -> float:
    """Return the robust standard deviation of usual changes, with a lower limit in case most of them are zero."""
    # 1.4826 times the median deviation estimates a normal standard deviation.
    spread = 1.4826 * float(np.median(np.abs(changes - np.median(changes))))
    return max(spread, 1e-4 * level, 1e-3)


def _shape(values: Floats, place: int) -> tuple[Shape, int]:
    """Return the shape of a change and its last index; the fall after a spike belongs to the spike."""
    before = values[place]
    change = values[place + 1] - values[place]
    if change < 0:
        return "drop", place
    for ahead in range(place + 2, min(len(values), place + 2 + _RETURN)):
        # Not all the way: what an evaluation allocates first may stay in a cache.
        if values[ahead] - before < 0.25 * change:
            return "spike", ahead - 1
    return "jump", place


def _parts(trace: MemoryHistory, row: int) -> tuple[tuple[str, float], ...]:
    """Return the category that explains most of the change after a row; empty if none changed in that direction."""
    changes = {name: float(values[row + 1] - values[row]) for name, values in trace.stack.items()}
    total = trace.allocated[row + 1] - trace.allocated[row]
    same_direction = [(name, change) for name, change in changes.items() if change * total > 0]
    return tuple(sorted(same_direction, key=lambda pair: -abs(pair[1]))[:1])


def all_events(trace: MemoryHistory) -> Mapping[str, Steps]:
    """Return the run's events by kind, together with the spikes of its loss."""
    spikes = _loss_spikes(trace.loss) if trace.loss is not None else np.empty(0, np.int64)
    return dict(trace.events) | ({"loss spike": spikes} if len(spikes) else {})


def link_all(trace: MemoryHistory, jumps: tuple[Jump, ...], first: int) -> tuple[Link, ...]:
    """Return the association of the jumps with each kind of event; empty without jumps or events."""
    if not jumps:
        return ()
    links: list[Link] = []
    steps = trace.steps[first:]
    rows = np.searchsorted(steps, [jump.step for jump in jumps]) - 1
    for kind, event_steps in all_events(trace).items():
        has_event = _per_interval(steps, event_steps)
        # In the terms of the hypergeometric distribution: intervals are items, marked if they have an event, and drawn
        # if they have a jump.
        total = len(has_event)
        marked = int(has_event.sum())
        drawn = len(rows)
        if not marked:
            continue
        together = int(has_event[rows].sum())
        links.append(
            Link(
                kind=kind,
                events=int(((event_steps > steps[0]) & (event_steps <= steps[-1])).sum()),
                within=int(np.median(np.diff(steps))),
                jumps=drawn,
                together=together,
                expected=drawn * marked / total,
                chance=_at_least(together, total, marked, drawn),
            )
        )
    return tuple(links)


def _per_interval(steps: Steps, event_steps: Steps) -> NDArray[np.bool_]:
    """Return for each interval between two snapshots whether it contains an event.

    An event of step s takes effect after the forward pass of that step, so the snapshot of step s may not show it yet:
    events exactly at the previous snapshot count as well.
    """
    before = np.searchsorted(event_steps, steps[:-1], side="left")
    return np.searchsorted(event_steps, steps[1:], side="right") > before


def _at_least(together: int, total: int, marked: int, drawn: int) -> float:
    """Return the hypergeometric probability of at least ``together`` marked items among the drawn ones."""
    # By logarithms: the binomial coefficients of thousands of snapshots exceed the range of floats.
    all_draws = _log_choose(total, drawn)
    logs = [
        _log_choose(marked, k) + _log_choose(total - marked, drawn - k) - all_draws
        for k in range(max(together, drawn - (total - marked)), min(marked, drawn) + 1)
    ]
    return min(1.0, math.fsum(map(math.exp, logs)))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _loss_spikes(loss: RecordedCurve) -> Steps:
    """Return the steps at which the loss exceeded the median of its block by six robust deviations."""
    steps = loss.steps[np.isfinite(loss.values)]
    values = loss.values[np.isfinite(loss.values)]
    if len(values) < 32:
        return np.empty(0, np.int64)
    # Blocks, because the loss falls by orders of magnitude during a run.
    width = max(16, len(values) // 256)
    usable = len(values) // width * width
    blocks = values[:usable].reshape(-1, width)
    middle = np.median(blocks, axis=1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(blocks - middle), axis=1, keepdims=True)
    high = blocks > middle + np.maximum(6 * spread, 0.2 * np.abs(middle))
    return steps[:usable][high.reshape(-1)]
