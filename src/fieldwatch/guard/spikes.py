"""Detect divergence in recorded rows: sustained high losses, gradient surges, state that became non-finite."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number
from fieldwatch.guard.divergence import Rollback, TrainingDivergence
from fieldwatch.guard.refusals import REFUSED, SKIPPED
from fieldwatch.guard.state import BUFFERS, MOMENTS
from fieldwatch.record import Block, tags

WINDOW = 64
"""Number of good steps in the running median of a term."""
MIN_GOOD_STEPS = 32
"""Number of good steps before a term has a baseline; fewer would only measure noise."""
REFRESH_EVERY = 16
"""Number of steps between two updates of the baselines."""
NOISE_DEVIATIONS = 10.0
"""Standard deviations by which a high loss must also exceed its baseline: near 0, noise alone exceeds any factor."""
TO_SIGMA = 1.4826
"""Factor from the median absolute deviation of normally distributed noise to its standard deviation."""
RESTARTS = ("reset", "prune", "grid_rebuilt", "phase")
"""Events that change the loss deliberately, so that the baselines are discarded."""

_AT_START = (-1, -1, 0, 0, 0.0, "")
_Floats = NDArray[np.float64]


class _Baseline(NamedTuple):
    """Median and median absolute deviation of a term over the latest good steps."""

    value: float
    deviation: float


class Spikes:
    """Block reader that detects divergence. It runs on the writer thread, so it does not delay training steps.

    The result depends only on the rows and not on how they are divided into blocks, so a repeated or resumed run
    has the same result. Non-finite values, refused or skipped updates, and high losses do not enter the windows.

    Args:
        options: thresholds.
        state: return value of :meth:`state` to continue from; None starts without any history.

    Attributes:
        divergence: earliest divergence; None if none was detected.
    """

    def __init__(self, options: Rollback, state: Mapping[str, Any] | None = None) -> None:
        self._options = options
        state = state or {}
        self.divergence: TrainingDivergence | None = None
        self._windows = {name: np.array(values, np.float64) for name, values in state.get("windows", {}).items()}
        self._baselines = {name: _Baseline(*pair) for name, pair in state.get("usual", {}).items()}
        self._last_finite: dict[str, int] = dict(state.get("finite", {}))
        self._phase_starts: list[int] = list(state.get("borders", ()))
        step, refresh_index, high_count, high_start, highest_ratio, high_samples = state.get("at", _AT_START)
        self._step = step
        self._refresh_index = refresh_index
        self._high_count = high_count
        self._high_start = high_start
        self._highest_ratio = highest_ratio
        self._high_samples = high_samples

    @property
    def ongoing(self) -> bool:
        """Whether the latest loss was high, so that no checkpoint should be saved."""
        return self._high_count > 0

    def state(self) -> dict[str, Any]:
        """Return the complete detector state as plain values, for a checkpoint."""
        return {
            "windows": {name: window.tolist() for name, window in self._windows.items()},
            "usual": {name: list(baseline) for name, baseline in self._baselines.items()},
            "finite": dict(self._last_finite),
            "borders": list(self._phase_starts),
            "at": [
                self._step,
                self._refresh_index,
                self._high_count,
                self._high_start,
                self._highest_ratio,
                self._high_samples,
            ],
        }

    def event(self, event: Mapping[str, Any]) -> None:
        """Process an event that was recorded between the rows."""
        if event["kind"] == "phase":
            step = int(event["step"])
            if step > self._step:
                self._phase_starts = sorted({*self._phase_starts, step})
        elif event["kind"] in RESTARTS:
            self._reset()

    def __call__(self, block: Block) -> None:
        """Process one block of rows."""
        if block.axis != "step" or self.divergence is not None or not len(block):
            return
        self._read_state(block)
        self._step = max(self._step, int(block.steps[-1]))
        for rows in self._split(block):
            self._read(block, rows)

    def _split(self, block: Block) -> Iterator[slice]:
        """Split a block wherever baselines are updated or a phase begins."""
        refreshes = block.steps // REFRESH_EVERY
        # A number that changes wherever a window of REFRESH_EVERY steps or a phase begins; 2**40 keeps the two apart.
        segments = refreshes + np.searchsorted(np.array(self._phase_starts), block.steps, side="right") * (1 << 40)
        cuts = [0, *(np.flatnonzero(np.diff(segments)) + 1).tolist(), len(block)]
        for first, last in pairwise(cuts):
            # A new phase changes the loss: discard what was learned before it.
            passed = [step for step in self._phase_starts if step <= int(block.steps[first])]
            if passed:
                self._phase_starts = self._phase_starts[len(passed) :]
                self._reset()
            # Baselines are updated at fixed steps, so they do not depend on how rows are divided into blocks.
            if int(refreshes[first]) != self._refresh_index:
                self._refresh_index = int(refreshes[first])
                self._baselines = {
                    name: _baseline_of(w) for name, w in self._windows.items() if len(w) >= MIN_GOOD_STEPS
                }
            yield slice(first, last)

    def _read(self, block: Block, rows: slice) -> None:
        values, weights = _terms(block, rows)
        if not values:
            return
        updated = ~(_column(block, rows, REFUSED) > 0) & ~(_column(block, rows, SKIPPED) > 0)
        finite = np.isfinite(np.stack(list(values.values()))).all(axis=0)
        ratio = self._ratio(values, weights)
        high = updated & finite & (ratio > self._options.factor)
        began = block.steps[rows]
        if high.any() or self._high_count:
            began = self._count_high(block, rows, updated & finite, high, ratio)
        good = updated & finite & ~high
        self._read_gradient(block, rows, updated & finite, began)
        for name, column in values.items():
            self._extend(name, column[good])

    def _ratio(self, values: Mapping[str, _Floats], weights: Mapping[str, _Floats]) -> _Floats:
        """Return the ratio of each row's loss to its baseline; 0 where it is within the noise or has no baseline."""
        judged = [name for name in values if name in self._baselines]
        count = len(next(iter(values.values())))
        now = np.zeros(count)
        baseline = np.zeros(count)
        noise = np.zeros(count)
        for name in judged:
            # Use the weights of each row, so that a weight that ramps up scales the loss and its baseline alike.
            weight = weights[name]
            known = self._baselines[name]
            now += weight * values[name]
            baseline += weight * known.value
            noise += np.abs(weight) * known.deviation
        # The ratio alone would call noise around zero a spike, so the loss must also exceed the noise.
        beyond = (baseline > 0) & (now > baseline + NOISE_DEVIATIONS * TO_SIGMA * noise)
        return np.divide(now, baseline, out=np.zeros(count), where=beyond)

    def _count_high(
        self, block: Block, rows: slice, counts: NDArray[np.bool_], high: NDArray[np.bool_], ratio: _Floats
    ) -> NDArray[np.int64]:
        """Count consecutive high rows; return for each row the first step of its streak, or its own step if in none."""
        began = block.steps[rows].copy()
        for index in np.flatnonzero(counts):
            row = rows.start + int(index)
            # A single good loss ends the streak: a spike that recovers by itself is no divergence.
            if not high[index]:
                self._high_count = 0
                self._highest_ratio = 0.0
                continue
            if not self._high_count:
                self._high_start = int(block.steps[row])
                self._high_samples = _samples(block, row)
            began[index] = self._high_start
            self._high_count += 1
            self._highest_ratio = max(self._highest_ratio, float(ratio[index]))
            if self._high_count == self._options.patience:
                self._report(self._high_start, int(block.steps[row]), self._describe_high_loss())
        return began

    def _describe_high_loss(self) -> str:
        highest = number(self._highest_ratio, 3)
        high = f"the loss was above {self._options.factor:g} times its usual value, up to {highest} times"
        return f"{high}, for {self._high_count} steps in a row from step {self._high_start}{self._high_samples}"

    def _read_gradient(self, block: Block, rows: slice, counts: NDArray[np.bool_], began: NDArray[np.int64]) -> None:
        norms = _column(block, rows, tags.TOTAL_NORM)
        baseline = self._baselines.get(tags.TOTAL_NORM)
        calm = counts & np.isfinite(norms) & (norms > 0)
        if baseline is not None and baseline.value > 0:
            surging = calm & (norms > self._options.surge * baseline.value)
            for index in np.flatnonzero(surging)[:1]:
                row = rows.start + int(index)
                step = int(block.steps[row])
                ratio = float(norms[index] / baseline.value)
                cause = f"the gradient was {number(ratio, 3)} times its usual norm at step {step}{_samples(block, row)}"
                self._report(int(began[index]), step, cause)
            # Norms during a streak of high losses do not enter the window either.
            calm &= ~surging & (began == block.steps[rows])
        self._extend(tags.TOTAL_NORM, norms[calm])

    def _read_state(self, block: Block) -> None:
        """Detect moments, buffers and parameters that were finite when last recorded, but no longer are."""
        for column, name in enumerate(block.columns):
            owner = _owner(name)
            if owner is None:
                continue
            # State that was never finite, such as an attention mask of minus infinity, is intentional.
            for step, value in zip(block.steps.tolist(), block.values[:, column].tolist(), strict=True):
                if np.isfinite(value):
                    self._last_finite[name] = step
                elif name in self._last_finite:
                    last = self._last_finite[name]
                    cause = f"{owner} were finite at step {last} and are not at step {step}"
                    self._report(last, last - 1, cause, noticed_at=step)

    def _report(self, first: int, last: int, cause: str, *, noticed_at: int | None = None) -> None:
        divergence = TrainingDivergence(first, last, last if noticed_at is None else noticed_at, cause)
        # One block may contain several causes: report the one with the earliest step, whichever check found it.
        if self.divergence is None or divergence.noticed_at < self.divergence.noticed_at:
            self.divergence = divergence

    def _extend(self, name: str, values: _Floats) -> None:
        if len(values):
            known = self._windows.get(name)
            self._windows[name] = values[-WINDOW:] if known is None else np.concatenate((known, values))[-WINDOW:]

    def _reset(self) -> None:
        self._windows.clear()
        self._baselines.clear()
        self._high_count = 0
        self._highest_ratio = 0.0


def _baseline_of(window: _Floats) -> _Baseline:
    # The median and the MAD are robust: single spikes in the window do not move them.
    ranked = np.sort(window)
    middle = len(window) // 2
    value = float(ranked[middle])
    return _Baseline(value, float(np.sort(np.abs(ranked - value))[middle]))


def _terms(block: Block, rows: slice) -> tuple[dict[str, _Floats], dict[str, _Floats]]:
    """Return values and weights of the loss terms by column; those of the total alone if no terms were recorded."""
    terms = tags.COMPONENT.parts(block.columns)
    if not terms and tags.TOTAL in block.columns:
        values = {tags.TOTAL: _column(block, rows, tags.TOTAL)}
        return values, {tags.TOTAL: np.ones_like(values[tags.TOTAL])}
    values = {name: _column(block, rows, name) for name in terms.values()}
    weights = {name: _column(block, rows, tags.WEIGHT.tag(term), missing=1.0) for term, name in terms.items()}
    return values, weights


def _column(block: Block, rows: slice, name: str, *, missing: float = 0.0) -> _Floats:
    if name in block.columns:
        return block.values[rows, block.columns.index(name)]
    return np.full(len(block.steps[rows]), missing, np.float64)


def _samples(block: Block, row: int) -> str:
    names = block.samples[row] if block.samples else ()
    # A batch may consist of hundreds of samples.
    return f" (sample {', '.join(names[:4])})" if names else ""


def _owner(name: str) -> str | None:
    """Return whose state a metric summarizes; None if it summarizes none."""
    if name == MOMENTS:
        return "the optimizers' moments"
    if name == BUFFERS:
        return "the buffers"
    group = tags.GROUP_MOMENTS.part(name)
    if group is not None:
        return f"the optimizers' moments of group '{group}'"
    group = tags.PARAMETER_MEAN.part(name)
    return None if group is None else f"the parameters of group '{group}'"
