"""Rule that compares the loss of each sample (view, frame, patch) with earlier losses of the same sample."""

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
_TEST = "chosen by the authors; verified by tests/health/test_rule_details.py"


@dataclass(frozen=True, kw_only=True)
class SampleSpike(HealthRule):
    """The loss of one sample is far above its baseline, the median of its previous three visits.

    A global window cannot detect this, because views differ by more than a spike: +50 % on one view scores z = 0.42
    against the last 128 steps. Instead, each loss is divided by the sample's baseline, and the ratio is compared with
    the spread of the ratios of all samples over the last 512 steps. The spread is the larger of two estimates of the
    standard deviation: 1.4826 times the median absolute deviation, and the one from the 98th percentile.

    Attributes:
        excuses: kinds of events after which losses may rise for ``grace`` steps.
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
        reason="a loss three times the baseline moves the parameters far: a warning instead of a note",
    )
    window: int = threshold(
        512,
        unit="steps",
        reason="ratios of these steps give the usual spread; the baseline comes from visits to the same sample",
    )
    settled: int = threshold(128, unit="ratios", reason="a spread estimated from fewer ratios is too noisy")
    floor: float = threshold(
        0.02, unit="relative spread", reason="with a spread below 2 %, rounding would count as a spike"
    )
    warmup: int = threshold(100, unit="steps", reason="at first, samples improve at different speeds")
    grace: int = threshold(
        200,
        unit="steps",
        reason="a declared reset, such as an opacity reset, raises the loss of every view for about this long",
    )
    remedy: ClassVar[str] = (
        "Check that sample for a wrong pose, mask or image, for motion blur, or for a region that was just pruned; "
        "exclude it if its data is bad."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return the first spike of each sample and phase as a note, and the first above ``grave`` as a warning."""
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
        # Cheap test first: spreads are only computed for blocks with high ratios.
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
            level: Severity = "warning" if ratio > self.grave else "note"
            text = f"sample '{name}' had loss {loss:.4g}, {ratio:.2f} times its baseline (z = {scores[at]:.1f})."
            findings.setdefault((name, level), self.finding(int(visits.steps[at]), text, subject=name, severity=level))
        return findings.values()

    def _scores(self, steps: _Array, ratios: _Array, high: NDArray[np.bool_]) -> _Array:
        """Return robust z-scores of the high ratios and 0 elsewhere; each block of 64 steps shares one spread."""
        scores = np.zeros(len(steps))
        blocks = np.floor(steps / 64)
        known = np.isfinite(ratios)
        for block in np.unique(blocks[high]):
            until = block * 64
            # Only ratios from before the block, so that the live run and a replay use the same pool.
            pool = ratios[known & (steps < until) & (steps >= until - self.window)]
            if len(pool) >= self.settled:
                middle, spread = _spread(pool, self.floor)
                in_block = high & (blocks == block)
                scores[in_block] = (ratios[in_block] - middle) / spread
        return scores


def _spread(pool: _Array, floor: float) -> tuple[float, float]:
    """Return the median of a pool of ratios, and a spread that is robust to spikes and to heavy tails."""
    middle = float(np.median(pool))
    # 1.4826 times the median absolute deviation estimates the standard deviation of a normal distribution.
    deviation = 1.4826 * float(np.median(np.abs(pool - middle)))
    index = int(0.98 * (len(pool) - 1))
    # 2.054 is the 98th percentile of the standard normal distribution.
    tail = (float(np.partition(pool, index)[index]) - middle) / 2.054
    return middle, max(deviation, tail, floor)
