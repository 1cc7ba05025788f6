"""Each sample (view, frame, patch) against its own past."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.defaults import integer, number
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.losses import RESETS
from fieldwatch.health.visits import Visits
from fieldwatch.health.window import excused, phases
from fieldwatch.record import History

_Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SampleSpike(HealthRule):
    """One sample's loss stands far above that sample's own last visits.

    A global window cannot see this: views differ by more than a spike does (+50 % on one view scores z = 0.42
    against the last 128 steps). Here each loss is divided by the median of the same sample's three visits before, and
    that ratio is compared with the spread of all samples' ratios of the last 512 steps: the larger of 1.4826 times the
    median absolute deviation and of what the 98th percentile would make of a normal distribution.
    """

    excuses: Sequence[str] = RESETS
    deviation: float = number("SampleSpike", "deviation")
    ratio: float = number("SampleSpike", "ratio")
    grave: float = number("SampleSpike", "grave")
    window: int = integer("SampleSpike", "window")
    settled: int = integer("SampleSpike", "settled")
    floor: float = number("SampleSpike", "floor")
    warmup: int = integer("SampleSpike", "warmup")
    grace: int = integer("SampleSpike", "grace")
    remedy: ClassVar[str] = (
        "Look at that sample: a wrong pose, mask or image, motion blur, or a region that was just pruned; exclude it "
        "if its data is bad."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, per sample and phase, its first spike, and its first grave one."""
        visits = Visits.of(history.sample_losses())
        if visits is None:
            return ()
        return tuple(
            finding
            for first, last in phases(history)
            for finding in self._judge(history, visits.within(first, last), first)
        )

    def _judge(self, history: History, visits: Visits, first: int) -> Collection[Finding]:
        ratios = visits.against_own_past()
        high = (ratios > self.ratio) & (visits.steps >= first + self.warmup)
        if not high.any():
            return ()
        high &= ~excused(history, self.excuses, visits.steps, self.grace)
        scores = self._scores(visits.steps, ratios, high)
        found: dict[tuple[str, Severity], Finding] = {}
        for at in np.flatnonzero(scores > self.deviation).tolist():
            name, loss, ratio = visits.name(at), visits.values[at], ratios[at]
            grade: Severity = "warning" if ratio > self.grave else "note"
            text = f"sample '{name}' had loss {loss:.4g}, {ratio:.2f} times its own last visits (z = {scores[at]:.1f})."
            found.setdefault((name, grade), self.finding(int(visits.steps[at]), text, subject=name, severity=grade))
        return found.values()

    def _scores(self, steps: _Array, ratios: _Array, high: NDArray[np.bool_]) -> _Array:
        """Return robust z values of the high ratios, 0 elsewhere; each block of 64 steps shares one spread."""
        scores = np.zeros(len(steps))
        blocks = np.floor(steps / 64)
        known = np.isfinite(ratios)
        for block in np.unique(blocks[high]):
            until = block * 64
            pool = ratios[known & (steps < until) & (steps >= until - self.window)]
            if len(pool) >= self.settled:
                middle, spread = _spread(pool, self.floor)
                mine = high & (blocks == block)
                scores[mine] = (ratios[mine] - middle) / spread
        return scores


def _spread(pool: _Array, floor: float) -> tuple[float, float]:
    """Return the median of a pool, and a spread that neither single spikes shrink nor heavy tails fool."""
    middle = float(np.median(pool))
    deviation = 1.4826 * float(np.median(np.abs(pool - middle)))
    place = int(0.98 * (len(pool) - 1))
    tail = (float(np.partition(pool, place)[place]) - middle) / 2.054
    return middle, max(deviation, tail, floor)
