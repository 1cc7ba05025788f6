"""Each sample (view, frame, patch) against its own past."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.losses import RESETS
from fieldwatch.health.threshold import threshold
from fieldwatch.health.visits import Visits
from fieldwatch.health.window import excused, phases
from fieldwatch.record import History

_Array = NDArray[np.float64]
_TEST = "chosen by the authors; held by tests/health/test_rule_details.py"


@dataclass(frozen=True, kw_only=True)
class SampleSpike(HealthRule):
    """One sample's loss stands far above that sample's own last visits.

    A global window cannot see this: views differ by more than a spike does (+50 % on one view scores z = 0.42
    against the last 128 steps). Here each loss is divided by the median of the same sample's three visits before, and
    that ratio is compared with the spread of all samples' ratios of the last 512 steps: the larger of 1.4826 times the
    median absolute deviation and of what the 98th percentile would make of a normal distribution.
    """

    excuses: Sequence[str] = RESETS
    deviation: float = threshold(
        8.0,
        unit="robust standard deviations",
        reason="a +50 % spike on one view scores 10 to 17, a healthy run at most 4.2",
        source=_TEST,
    )
    ratio: float = threshold(1.25, unit="times the sample's baseline", reason="smaller rises of one visit do no harm")
    grave: float = threshold(
        3.0,
        unit="times the sample's baseline",
        reason="three times the baseline pulls the parameters away: a warning instead of a note",
    )
    window: int = threshold(
        512,
        unit="steps",
        reason="their residuals give the usual spread; the baseline comes from the sample's own visits",
    )
    settled: int = threshold(128, unit="residuals", reason="a spread from fewer residuals is itself noise")
    floor: float = threshold(
        0.02, unit="relative spread", reason="with a spread below 2 %, rounding would count as a spike"
    )
    warmup: int = threshold(100, unit="steps", reason="at first, samples improve at different speeds")
    grace: int = threshold(
        200,
        unit="steps",
        reason="a declared reset, such as an opacity reset, lifts the loss of every view for about this long",
    )
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
        findings: dict[tuple[str, Severity], Finding] = {}
        for at in np.flatnonzero(scores > self.deviation).tolist():
            name = visits.name(at)
            loss = visits.values[at]
            ratio = ratios[at]
            grade: Severity = "warning" if ratio > self.grave else "note"
            text = f"sample '{name}' had loss {loss:.4g}, {ratio:.2f} times its own last visits (z = {scores[at]:.1f})."
            findings.setdefault((name, grade), self.finding(int(visits.steps[at]), text, subject=name, severity=grade))
        return findings.values()

    def _scores(self, steps: _Array, ratios: _Array, high: NDArray[np.bool_]) -> _Array:
        """Return robust z values of the high ratios, 0 elsewhere; each block of 64 steps shares one spread."""
        scores = np.zeros(len(steps))
        blocks = np.floor(steps / 64)
        known = np.isfinite(ratios)
        for block in np.unique(blocks[high]):
            until = block * 64
            # Only residuals from before the block: the live run and a replay then use the same pool.
            pool = ratios[known & (steps < until) & (steps >= until - self.window)]
            if len(pool) >= self.settled:
                middle, spread = _spread(pool, self.floor)
                in_block = high & (blocks == block)
                scores[in_block] = (ratios[in_block] - middle) / spread
        return scores


def _spread(pool: _Array, floor: float) -> tuple[float, float]:
    """Return the median of a pool, and a spread that neither single spikes shrink nor heavy tails fool."""
    middle = float(np.median(pool))
    # 1.4826 times the median deviation estimates a normal standard deviation.
    deviation = 1.4826 * float(np.median(np.abs(pool - middle)))
    index = int(0.98 * (len(pool) - 1))
    # 2.054 is the 98th percentile of the standard normal distribution.
    tail = (float(np.partition(pool, index)[index]) - middle) / 2.054
    return middle, max(deviation, tail, floor)
