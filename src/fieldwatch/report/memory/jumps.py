"""Where memory jumped, spiked or dropped, and what happened at those steps."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldwatch.report.memory.trace import Floats, MemoryHistory, RecordedCurve, Steps

Shape = Literal["jump", "spike", "drop"]
SCORE = 10.0
"""Robust z of a change between two snapshots above which it is a jump: beyond what memory's usual swings do."""
SHARE = 0.02
LEAST_MB = 4.0
GRAVE = 0.10
"""An unexplained jump or spike of more than this share of the memory is worth a warning."""
MOST = 20
_RETURN = 3


@dataclass(frozen=True, kw_only=True)
class Jump:
    """One sudden change of the allocated memory.

    Attributes:
        step: iteration of the snapshot that shows it first.
        shape: a jump stays up, a spike comes back within three snapshots, a drop stays down.
        change: MB, against the snapshot before.
        share: of the usual memory (median).
        score: how many robust standard deviations the change is away from the usual one.
        quiet: how many snapshots without any had gone before: the plateau it broke.
        parts: the category that changed most in the same direction, and by how many MB; empty if none is known.
        near: kinds of events between the snapshot before and this one.
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
    """How often jumps come with a kind of event, against chance.

    Attributes:
        kind: of the events; ``"loss spike"`` stands for steps at which the loss left its usual range.
        events: how many there were within the snapshots' range.
        within: the iterations before a snapshot that count as its own: from the snapshot before.
        jumps: all jumps, spikes and drops.
        together: those with such an event.
        expected: how many of them would have one by chance.
        chance: the probability of at least so many by chance (hypergeometric).
    """

    kind: str
    events: int
    within: int
    jumps: int
    together: int
    expected: float
    chance: float


def find_jumps(trace: MemoryHistory, first: int) -> tuple[Jump, ...]:
    """Return the sudden changes of the allocated memory in order, those of the start-up left out.

    Args:
        trace: the run's memory.
        first: the first snapshot after the start-up.
    """
    values = trace.allocated[first:]
    if len(values) < 8 or not np.isfinite(values).all():
        return ()
    changes = np.diff(values)
    level = float(np.median(values))
    usual = _spread(changes, level)
    scores = (changes - np.median(changes)) / usual
    least = max(SHARE * level, LEAST_MB)
    places = np.flatnonzero((np.abs(scores) > SCORE) & (np.abs(changes) > least))
    happened = {kind: _per_interval(trace.steps, steps) for kind, steps in all_events(trace).items()}
    found: list[Jump] = []
    skip_to = last = -1
    for place in places.tolist():
        # Inside a spike that was counted already.
        if place <= skip_to:
            continue
        shape, skip_to = _shape(values, place)
        found.append(
            Jump(
                step=int(trace.steps[first + place + 1]),
                shape=shape,
                change=float(changes[place]),
                share=float(changes[place] / level) if level else 0.0,
                score=float(scores[place]),
                quiet=place - last - 1,
                parts=_parts(trace, first + place),
                near=tuple(kind for kind, hit in happened.items() if hit[first + place]),
            )
        )
        last = max(place, skip_to)
    return tuple(found)


def _spread(changes: Floats, level: float) -> float:
    """Return the robust standard deviation of usual changes; a thousandth of the level where most are zero."""
    # 1.4826 times the median deviation estimates a normal standard deviation.
    spread = 1.4826 * float(np.median(np.abs(changes - np.median(changes))))
    return max(spread, 1e-4 * level, 1e-3)


def _shape(values: Floats, place: int) -> tuple[Shape, int]:
    """Return what a change is, and the last place that belongs to it: a spike's way back is no drop of its own."""
    before = values[place]
    change = values[place + 1] - values[place]
    if change < 0:
        return "drop", place
    for ahead in range(place + 2, min(len(values), place + 2 + _RETURN)):
        if values[ahead] - before < 0.25 * change:
            return "spike", ahead - 1
    return "jump", place


def _parts(trace: MemoryHistory, row: int) -> tuple[tuple[str, float], ...]:
    changes = {name: float(values[row + 1] - values[row]) for name, values in trace.stack.items()}
    whole = trace.allocated[row + 1] - trace.allocated[row]
    alike = [(name, change) for name, change in changes.items() if change * whole > 0]
    return tuple(sorted(alike, key=lambda pair: -abs(pair[1]))[:1])


def all_events(trace: MemoryHistory) -> Mapping[str, Steps]:
    """Return the run's events by kind, together with the spikes of its loss."""
    spikes = _loss_spikes(trace.loss) if trace.loss is not None else np.empty(0, np.int64)
    return dict(trace.events) | ({"loss spike": spikes} if len(spikes) else {})


def link_all(trace: MemoryHistory, jumps: tuple[Jump, ...], first: int) -> tuple[Link, ...]:
    """Return, per kind of event, how often jumps come with it; nothing where there are no jumps or no events."""
    if not jumps:
        return ()
    links: list[Link] = []
    steps = trace.steps[first:]
    rows = np.searchsorted(steps, [jump.step for jump in jumps]) - 1
    for kind, told in all_events(trace).items():
        hit = _per_interval(steps, told)
        total = len(hit)
        marked = int(hit.sum())
        drawn = len(rows)
        if not marked:
            continue
        together = int(hit[rows].sum())
        links.append(
            Link(
                kind=kind,
                events=int(((told > steps[0]) & (told <= steps[-1])).sum()),
                within=int(np.median(np.diff(steps))),
                jumps=drawn,
                together=together,
                expected=drawn * marked / total,
                chance=_at_least(together, total, marked, drawn),
            )
        )
    return tuple(links)


def _per_interval(steps: Steps, told: Steps) -> NDArray[np.bool_]:
    """Return per interval between two snapshots whether an event lies in it: after the first, up to the second.

    An event of step s acts after that step's forward pass, so that the snapshot of step s may still miss it: an event
    exactly at the snapshot before counts too.
    """
    before = np.searchsorted(told, steps[:-1], side="left")
    return np.searchsorted(told, steps[1:], side="right") > before


def _at_least(together: int, total: int, marked: int, drawn: int) -> float:
    """Return the hypergeometric probability of at least ``together`` marked ones among the drawn."""
    whole = _log_choose(total, drawn)
    logs = [
        _log_choose(marked, k) + _log_choose(total - marked, drawn - k) - whole
        for k in range(max(together, drawn - (total - marked)), min(marked, drawn) + 1)
    ]
    return min(1.0, math.fsum(map(math.exp, logs)))


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def _loss_spikes(loss: RecordedCurve) -> Steps:
    """Return the steps at which the loss was above its neighbourhood's median by six robust deviations."""
    steps = loss.steps[np.isfinite(loss.values)]
    values = loss.values[np.isfinite(loss.values)]
    if len(values) < 32:
        return np.empty(0, np.int64)
    width = max(16, len(values) // 256)
    usable = len(values) // width * width
    blocks = values[:usable].reshape(-1, width)
    middle = np.median(blocks, axis=1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(blocks - middle), axis=1, keepdims=True)
    high = blocks > middle + np.maximum(6 * spread, 0.2 * np.abs(middle))
    return steps[:usable][high.reshape(-1)]
