"""Computes the growth ledger: joins the events of a run with the metrics recorded around them."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import InputError
from fieldwatch.record import EVENTS, History, Series, read_history
from fieldwatch.report.growth.entry import FALL, Kind, LedgerEntry

Floats = NDArray[np.float64]
KINDS: tuple[Kind, ...] = ("growth", "prune", "reset")
"""Kinds of events in the ledger, in the order in which events of one step are listed."""
AROUND = 20
"""Number of steps before and after an event whose means are compared."""
RECOVERY = 200
"""Number of steps after an event in which PSNR can recover."""
LEAST_PAIRS = 5
"""Minimum number of photos with visits before and after an event; with fewer, plain means are compared."""
_TAGS = ("Loss/total", "Train/PSNR", "Memory/allocated_MB", "Memory/parameters_MB")
_COUNTS = ("cloned", "split", "children", "pruned", "too_large", "relocated", "drawn", "held_back", "lowered")
"""Fields of an event that become fields of the same name of its entry."""


def growth_ledger(folder: Path | str, history: History | None = None) -> tuple[LedgerEntry, ...]:
    """Return every densification, prune and reset of a run, in order.

    An event happens after the update of its step, so that step still belongs to the values before it. Of several events
    in one step only the last one has values after it, because their effects cannot be separated; the others have NaN.

    Args:
        folder: run folder.
        history: record of the run, if already read.

    Raises:
        FileNotFoundError: if the folder does not exist.
        CorruptRecord: if a line of the record cannot be read.
        ValueError: if a count of an event is not an integer of at least 0.
    """
    history = read_history(folder) if history is None else history
    events: list[tuple[Kind, Mapping[str, Any]]] = [(kind, event) for kind in KINDS for event in history.events(kind)]
    events.sort(key=lambda pair: (pair[1]["step"], KINDS.index(pair[0])))
    metrics = _MetricsAround(history)
    entries: list[LedgerEntry] = []
    for place, (kind, event) in enumerate(events):
        same_step = bool(entries) and entries[-1].step == event["step"]
        last = place + 1 == len(events) or events[place + 1][1]["step"] > event["step"]
        previous = entries[-1].after if same_step else None
        entries.append(_entry(event, kind, metrics, previous=previous, last=last))
    return tuple(entries)


def _entry(
    event: Mapping[str, Any], kind: Kind, metrics: "_MetricsAround", *, previous: int | None, last: bool
) -> LedgerEntry:
    """Return the entry of an event.

    Args:
        event: recorded event.
        kind: kind of the event.
        metrics: metrics recorded around the event.
        previous: number of primitives after the previous event of the same step; None if there is none.
        last: whether this is the last event of its step, which the values after the step are attributed to.
    """
    step = int(event["step"])
    counts = {name: _count(event, name) for name in _COUNTS}
    sizes = metrics.sizes(step)
    # The event knows best; the recorded sizes fill in for loops that record only what they did.
    before = _count(event, "before", sizes[0] if previous is None else previous)
    # A reset changes opacities, not the number of primitives.
    after = _count(event, "after", before if kind == "reset" else sizes[1])
    removed = _count(event, "removed", max(before - after, 0) if kind == "prune" else 0)
    # Of a growth, `removed` also counts split primitives, so only a prune can use it.
    if kind == "prune":
        counts["pruned"] = removed
    change, recovered = metrics.quality(step) if last else (math.nan, None)
    loss, psnr, memory, parameters = (metrics.means(tag, step, with_after=last) for tag in _TAGS)
    return LedgerEntry(
        step=step,
        kind=kind,
        before=before,
        after=after,
        removed=removed,
        psnr_change=change,
        recovered_after=recovered,
        watched=metrics.watched(step) if last else 0,
        loss_before=loss[0],
        loss_after=loss[1],
        psnr_before=psnr[0],
        psnr_after=psnr[1],
        memory_before=memory[0],
        memory_after=memory[1],
        parameters_before=parameters[0],
        parameters_after=parameters[1],
        **counts,
    )


def _count(event: Mapping[str, Any], name: str, default: int = 0) -> int:
    value = event.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise InputError(
            f"{EVENTS}: event '{event['kind']}' of step {event['step']}: expected {name} to be an integer of at least "
            f"0, got {value!r}; the file was edited by hand or written by another program"
        )
    return value


class _MetricsAround:
    """Metrics recorded around events."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._last = history.step
        has_psnr = "Train/PSNR" in history
        self._psnr = history["Train/PSNR"] if has_psnr else None
        self._photos = None if self._psnr is None else _photos(history, self._psnr)

    def means(self, tag: str, step: int, *, with_after: bool) -> tuple[float, float]:
        """Return the mean of a metric before an event and, if ``with_after``, after it, else NaN."""
        if tag not in self._history:
            return math.nan, math.nan
        series = self._history[tag]
        after = _mean(series, step, step + AROUND) if with_after else math.nan
        return _mean(series, step - AROUND, step), after

    def sizes(self, step: int) -> tuple[int, int]:
        """Return the number of primitives at a step and at the next recorded step; 0 if not recorded."""
        if "Model/size" not in self._history:
            return 0, 0
        series = self._history["Model/size"]
        # The size of the event's own step was recorded before the event.
        at = int(np.searchsorted(series.steps, step, side="right"))
        before = series.values[at - 1] if at else math.nan
        after = series.values[at] if at < len(series) else before
        return _size(before), _size(after)

    def watched(self, step: int) -> int:
        """Return the number of recorded steps after an event in which a recovery can be observed."""
        return max(min(self._last - step, RECOVERY), 0)

    def quality(self, step: int) -> tuple[float, int | None]:
        """Return the change of PSNR by an event, and the steps until recovery from a drop of more than 1 dB."""
        if self._psnr is None:
            return math.nan, None
        steps, changes = self._changes(self._psnr, step)
        near = changes[steps <= step + AROUND]
        if not len(near):
            return math.nan, None
        change = float(near.mean())
        # With fewer values, there is no full window in which a recovery could be seen.
        if change >= -FALL or len(changes) < AROUND:
            return change, None
        # Moving mean over 20 steps by cumulative sums.
        sums = np.concatenate(([0.0], np.cumsum(changes)))
        means = (sums[AROUND:] - sums[:-AROUND]) / AROUND
        recovered = np.flatnonzero(means >= -FALL)
        # The recovery is complete at the last step of the window.
        return change, int(steps[recovered[0] + AROUND - 1]) - step if len(recovered) else None

    def _changes(self, series: Series, step: int) -> tuple[Floats, Floats]:
        """Return steps after an event and their PSNR change: per photo, or against the mean if too few photos match."""
        steps = series.steps
        values = series.values
        before = (steps <= step) & np.isfinite(values)
        after = (steps > step) & (steps <= step + RECOVERY) & np.isfinite(values)
        # Photos differ by up to 10 dB: plain means would mostly show which photos were drawn after the event.
        if self._photos is not None:
            # Indexed by photo; -1 (no photo, or several) addresses the extra last place.
            previous = np.full(int(self._photos.max(initial=-1)) + 2, np.nan)
            previous[self._photos[before]] = values[before]  # the last of several visits wins
            previous[-1] = np.nan
            paired = values[after] - previous[self._photos[after]]
            known = np.isfinite(paired)
            if np.count_nonzero(known & (steps[after] <= step + AROUND)) >= LEAST_PAIRS:
                return steps[after][known], paired[known]
        return steps[after], values[after] - _mean(series, step - AROUND, step)


def _photos(history: History, series: Series) -> NDArray[np.intp] | None:
    """Return the photo of each recorded value, -1 for none or several per step; None if photos are not named."""
    losses = history.sample_losses()
    steps, counts = np.unique(losses.visits.steps, return_counts=True)
    if not len(steps):
        return None
    # Sorted by step, the visits of a step are neighbors, and its first one is at the end of the counts before it.
    order = np.argsort(losses.visits.steps, kind="stable")
    first = losses.owners[order][np.cumsum(counts) - counts]
    # A batch of several photos has one PSNR, which belongs to none of them.
    photos = np.where(counts == 1, first, -1)
    places = np.minimum(np.searchsorted(steps, series.steps), len(steps) - 1)
    return np.where(steps[places] == series.steps, photos[places], -1)


def _size(size: float) -> int:
    return int(size) if math.isfinite(size) and size > 0 else 0


def _mean(series: Series, after: float, until: float) -> float:
    """Return the mean of the finite values of the steps in (after, until]; NaN if there are none."""
    first, last = np.searchsorted(series.steps, (after, until), side="right")
    values = series.values[first:last]
    values = values[np.isfinite(values)]
    return float(values.mean()) if len(values) else math.nan
