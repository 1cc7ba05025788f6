"""Reads divergence off the record: losses that stay high, gradients that surge, state that turned non-finite."""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fieldwatch.guard.divergence import Rollback, Trouble
from fieldwatch.guard.refusals import REFUSED, SKIPPED
from fieldwatch.guard.state import BUFFERS, MOMENTS
from fieldwatch.record import Block, tags

WINDOW = 64
"""Good steps in the running median of a term."""
SETTLED = 32
"""Good steps before a term has a usual value: fewer are noise."""
LOOK_EVERY = 16
"""Steps for which a usual value stands before it is taken anew."""
NOISE = 10.0
"""Usual deviations that a high loss is above its usual value, besides the factor: losses near zero jump by factors."""
TO_SIGMA = 1.4826
"""A median absolute deviation of noise times this is its standard deviation."""
RESTARTS = ("reset", "prune", "grid_rebuilt", "phase")
"""Events after which a loss is another one on purpose: usual values are learned anew."""

_Floats = NDArray[np.float64]


class _Usual(NamedTuple):
    """Median and median absolute deviation of what was good lately."""

    value: float
    deviation: float


class Spikes:
    """A reader of blocks that says when a run has diverged. It reads on the writer thread: no step waits for it.

    What it finds depends on the rows alone, not on how they were cut into blocks: a run that is repeated, or resumed,
    finds the same. Values that are not finite, updates that were refused or skipped, and high losses stay out of the
    windows.

    Args:
        options: bounds and counts.
        state: what :meth:`state` returned, to go on from; None begins anew.

    Attributes:
        trouble: what was found first; None while nothing was.
    """

    def __init__(self, options: Rollback, state: Mapping[str, Any] | None = None) -> None:
        self._options = options
        state = state or {}
        self.trouble: Trouble | None = None
        self._windows = {name: np.array(values, np.float64) for name, values in state.get("windows", {}).items()}
        self._usual = {name: _Usual(*pair) for name, pair in state.get("usual", {}).items()}
        self._finite: dict[str, int] = dict(state.get("finite", {}))
        self._borders: list[int] = list(state.get("borders", ()))
        at = state.get("at", (-1, -1, 0, 0, 0.0, ""))
        self._step, self._look, self._high, self._first, self._worst, self._whose = at

    @property
    def ongoing(self) -> bool:
        """Whether the last loss that was read was high: no state to save."""
        return self._high > 0

    def state(self) -> dict[str, Any]:
        """Everything that the next finding depends on, as plain values, for a checkpoint."""
        return {
            "windows": {name: window.tolist() for name, window in self._windows.items()},
            "usual": {name: list(usual) for name, usual in self._usual.items()},
            "finite": dict(self._finite),
            "borders": list(self._borders),
            "at": [self._step, self._look, self._high, self._first, self._worst, self._whose],
        }

    def event(self, event: Mapping[str, Any]) -> None:
        """Take in an event that came between the rows."""
        if event["kind"] == "phase":
            self._borders = sorted({*self._borders, *(step for step in (int(event["step"]),) if step > self._step)})
        elif event["kind"] in RESTARTS:
            self._forget()

    def __call__(self, block: Block) -> None:
        """Read one block."""
        if block.axis != "step" or self.trouble is not None or not len(block):
            return
        self._read_state(block)
        self._step = max(self._step, int(block.steps[-1]))
        for rows in self._parts(block):
            self._read(block, rows)

    def _parts(self, block: Block) -> Iterator[slice]:
        """Cut a block where usual values are taken anew, and where a phase begins."""
        looks = block.steps // LOOK_EVERY
        marks = looks + np.searchsorted(np.array(self._borders), block.steps, side="right") * (1 << 40)
        cuts = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(block)]
        for first, last in pairwise(cuts):
            passed = [step for step in self._borders if step <= int(block.steps[first])]
            if passed:
                self._borders = self._borders[len(passed) :]
                self._forget()
            if int(looks[first]) != self._look:
                self._look = int(looks[first])
                self._usual = {name: _usual(w) for name, w in self._windows.items() if len(w) >= SETTLED}
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
        if high.any() or self._high:
            began = self._count(block, rows, updated & finite, high, ratio)
        good = updated & finite & ~high
        self._read_gradient(block, rows, updated & finite, began)
        for name, column in values.items():
            self._extend(name, column[good])

    def _ratio(self, values: Mapping[str, _Floats], weights: Mapping[str, _Floats]) -> _Floats:
        """How many times its usual value the loss of each row is; 0 where it is within the noise or not judged."""
        judged = [name for name in values if name in self._usual]
        count = len(next(iter(values.values())))
        now = np.zeros(count)
        usual = np.zeros(count)
        noise = np.zeros(count)
        for name in judged:
            weight = weights[name]
            known = self._usual[name]
            now += weight * values[name]
            usual += weight * known.value
            noise += np.abs(weight) * known.deviation
        beyond = (usual > 0) & (now > usual + NOISE * TO_SIGMA * noise)
        return np.divide(now, usual, out=np.zeros(count), where=beyond)

    def _count(
        self, block: Block, rows: slice, counts: NDArray[np.bool_], high: NDArray[np.bool_], ratio: _Floats
    ) -> NDArray[np.int64]:
        """Count high rows in a row; return for each row where the stretch began that it is in, itself if in none."""
        began = block.steps[rows].copy()
        for at in np.flatnonzero(counts):
            row = rows.start + int(at)
            if not high[at]:
                self._high = 0
                self._worst = 0.0
                continue
            if not self._high:
                self._first = int(block.steps[row])
                self._whose = _samples(block, row)
            began[at] = self._first
            self._high += 1
            self._worst = max(self._worst, float(ratio[at]))
            if self._high == self._options.patience:
                self._tell(self._first, int(block.steps[row]), self._words())
        return began

    def _words(self) -> str:
        high = f"the loss was above {self._options.factor:g} times its usual value, up to {self._worst:.3g} times"
        return f"{high}, for {self._high} steps in a row from step {self._first}{self._whose} on"

    def _read_gradient(self, block: Block, rows: slice, counts: NDArray[np.bool_], began: NDArray[np.int64]) -> None:
        norms = _column(block, rows, tags.TOTAL_NORM)
        usual = self._usual.get(tags.TOTAL_NORM)
        calm = counts & np.isfinite(norms) & (norms > 0)
        if usual is not None and usual.value > 0:
            surging = calm & (norms > self._options.surge * usual.value)
            for at in np.flatnonzero(surging)[:1]:
                row = rows.start + int(at)
                step = int(block.steps[row])
                times = norms[at] / usual.value
                cause = f"the gradient was {times:.3g} times its usual norm at step {step}{_samples(block, row)}"
                self._tell(int(began[at]), step, cause)
            calm &= ~surging & (began == block.steps[rows])
        self._extend(tags.TOTAL_NORM, norms[calm])

    def _read_state(self, block: Block) -> None:
        """State that was finite when it was looked at last, and is not now."""
        for place, name in enumerate(block.columns):
            if name not in (MOMENTS, BUFFERS) and tags.PARAMETER_MEAN.part(name) is None:
                continue
            for step, value in zip(block.steps.tolist(), block.values[:, place].tolist(), strict=True):
                if np.isfinite(value):
                    self._finite[name] = step
                elif name in self._finite:
                    last = self._finite[name]
                    cause = f"{_owner(name)} were finite at step {last} and are not at step {step}"
                    self._tell(last, last - 1, cause, seen=step)

    def _tell(self, first: int, last: int, cause: str, *, seen: int | None = None) -> None:
        found = Trouble(first, last, last if seen is None else seen, cause)
        if self.trouble is None or found.seen < self.trouble.seen:
            self.trouble = found

    def _extend(self, name: str, values: _Floats) -> None:
        if len(values):
            known = self._windows.get(name)
            self._windows[name] = values[-WINDOW:] if known is None else np.concatenate((known, values))[-WINDOW:]

    def _forget(self) -> None:
        self._windows.clear()
        self._usual.clear()
        self._high = 0
        self._worst = 0.0


def _usual(window: _Floats) -> _Usual:
    ranked = np.sort(window)
    middle = len(window) // 2
    value = float(ranked[middle])
    return _Usual(value, float(np.sort(np.abs(ranked - value))[middle]))


def _terms(block: Block, rows: slice) -> tuple[dict[str, _Floats], dict[str, _Floats]]:
    """Values and weights of the terms by column; of the total alone where no terms were recorded."""
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
    return f" (sample {', '.join(names[:4])})" if names else ""


def _owner(name: str) -> str:
    if name == MOMENTS:
        return "the optimizers' moments"
    return "the buffers" if name == BUFFERS else f"the parameters of group '{tags.PARAMETER_MEAN.part(name)}'"
