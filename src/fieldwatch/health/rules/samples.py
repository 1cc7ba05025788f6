"""Rules that compare the loss of each sample (view, frame, patch) with its own past, and with the other samples."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.losses import RESETS
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.visits import Visits
from fieldwatch.health.window import DISTURBANCES, excused, finished, phases
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
    beyond: float = threshold(
        2.0,
        unit="times the largest of the earlier ratios",
        reason="losses near 0 rise tenfold between two visits in a healthy run: a grave rise is beyond all of them",
        source="measured by benchmarks/verdicts.py",
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
    around: int = threshold(
        16,
        unit="steps",
        reason="if the losses of other samples rose as well within so many steps, the program changed, not one sample",
    )
    many: float = threshold(
        0.25, unit="fraction of the visits around", reason="a spike of so many samples at once is not a sample's fault"
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
        # A change of the model by the program is the first suspect of what follows at once.
        high &= ~excused(history, DISTURBANCES, visits.steps, self.around)
        scores = self._scores(visits.steps, ratios, high)
        findings: dict[tuple[str, Severity], Finding] = {}
        for at in np.flatnonzero(scores > self.deviation).tolist():
            if self._others_rose(visits, ratios, at):
                continue
            name = visits.name(at)
            loss = visits.values[at]
            ratio = ratios[at]
            # A loss that is still below that of most samples moves no parameter far, nor does a rise that others have.
            earlier = (visits.steps < visits.steps[at]) & (visits.steps > visits.steps[at] - self.window)
            usual = ratios[earlier & np.isfinite(ratios)]
            unusual = ratio > max(self.grave, self.beyond * float(usual.max(initial=0.0)))
            level: Severity = "warning" if unusual and loss > np.nanmedian(visits.values[earlier]) else "note"
            text = f"sample '{name}' had loss {number(loss)}, {ratio:.2f} times its baseline (z = {scores[at]:.1f})."
            findings.setdefault((name, level), self.finding(int(visits.steps[at]), text, subject=name, severity=level))
        return findings.values()

    def _others_rose(self, visits: Visits, ratios: _Array, at: int) -> bool:
        """Return whether the losses of other samples had risen as well up to this visit."""
        step = visits.steps[at]
        # Only earlier visits, so that a later examination gives the same result.
        near = (visits.steps >= step - self.around) & (visits.steps <= step) & np.isfinite(ratios)
        near &= visits.owners != visits.owners[at]
        # The same step and the one before show a disturbance that has just begun.
        just = near & (visits.steps >= step - 1)
        return any(
            np.count_nonzero(part) > 0 and float(np.mean(ratios[part] > self.ratio)) > self.many
            for part in (near, just)
        )

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


@dataclass(frozen=True, kw_only=True)
class WrongSample(HealthRule):
    """The losses of a few samples are far above all others at the end of training, at every visit."""

    late: float = threshold(0.6, unit="fraction of the steps", reason="earlier, samples improve at different speeds")
    visits: int = threshold(3, unit="visits", reason="a single visit may fall into a disturbance of the whole run")
    deviation: float = threshold(
        6.0, unit="robust standard deviations", reason="difficult samples of healthy runs stay below"
    )
    gap: float = threshold(
        2.2,
        unit="times the next sample",
        reason="samples of a hard kind differ gradually; wrong ones are separated from all others",
    )
    ratio: float = threshold(2.0, unit="times the median", reason="smaller differences do not spoil the result")
    tail: float = threshold(
        0.1, unit="fraction of the other samples", reason="the usual number for an estimate of the tail index"
    )
    light: float = threshold(
        2.0, unit="tail index (Hill)", reason="below it the variance is infinite, and wide gaps are usual (Cauchy: 1)"
    )
    wide: float = threshold(
        20.0, unit="times the next sample, in a heavy tail", reason="rare even for Cauchy noise (1 in 20)"
    )
    chance: float = threshold(
        1e-3, unit="probability of such a gap, in a heavy tail", reason="there are several gaps to look at"
    )
    count: int = threshold(5, unit="samples", reason="fewer samples have no usual spread")
    most: float = threshold(0.25, unit="fraction of the samples", reason="more samples than that are no exception")
    remedy: ClassVar[str] = (
        "Check the named samples (view, photo, frame) for a wrong pose, mask, label or image and for another exposure; "
        "exclude them if their data is bad."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding at the end of the run that names all such samples."""
        visits = Visits.of(history.sample_losses()) if finished(history) else None
        if visits is None:
            return ()
        late = (visits.steps >= self.late * history.step) & np.isfinite(visits.values)
        medians: dict[str, float] = {}
        for owner in np.unique(visits.owners[late]).tolist():
            values = visits.values[late & (visits.owners == owner)]
            # A sample that was seen often needs fewer late visits.
            often = np.count_nonzero(visits.owners == owner) >= 2 * self.visits
            if len(values) >= self.visits or (often and len(values) > 1):
                medians[str(visits.names[owner])] = float(np.median(values))
        if len(medians) < self.count:
            return ()
        ordered = sorted(medians.items(), key=lambda item: -item[1])
        values = np.array([value for _, value in ordered])
        middle = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - middle)))
        bound = max(middle + self.deviation * spread, self.ratio * middle)
        # The last sample above the bound that is separated from the next one.
        most = int(self.most * len(values))
        wrong = [
            at
            for at in range(most)
            if values[at] > bound and values[at] > self.gap * values[at + 1] and self._is_apart(values, at)
        ]
        if not wrong:
            return ()
        named = ", ".join(f"'{name}' ({number(value)})" for name, value in ordered[: wrong[-1] + 1][:5])
        plural = "samples" if wrong[-1] else "sample"
        text = (
            f"the loss of {plural} {named} is far above that of all others (median {number(middle)}, next "
            f"{number(values[wrong[-1] + 1])}) at every late visit."
        )
        return (self.finding(history.step, text, subject=ordered[0][0]),)

    def _is_apart(self, values: _Array, at: int) -> bool:
        """Return whether the gap behind a sample is larger than the tail of the other samples explains.

        Args:
            values: losses of all samples, in descending order.
            at: index of the last sample before the gap.
        """
        rest = values[at + 1 :]
        count = max(int(self.tail * len(rest)), 3)
        if len(rest) <= count or not rest[count] > 0:
            return True
        # Hill's estimator of the tail index; in such a tail, the gap behind the k-th value has this probability.
        excess: _Array = np.log(rest[:count] / rest[count])
        index = 1 / max(float(excess.mean()), 1e-9)
        if index >= self.light:
            return True
        gap = float(values[at] / values[at + 1])
        probability = float(np.exp(-index * (at + 1) * np.log(gap)))
        return gap > self.wide and probability < self.chance


def _spread(pool: _Array, floor: float) -> tuple[float, float]:
    """Return the median of a pool of ratios, and a spread that is robust to spikes and to heavy tails."""
    middle = float(np.median(pool))
    # 1.4826 times the median absolute deviation estimates the standard deviation of a normal distribution.
    deviation = 1.4826 * float(np.median(np.abs(pool - middle)))
    index = int(0.98 * (len(pool) - 1))
    # 2.054 is the 98th percentile of the standard normal distribution.
    tail = (float(np.partition(pool, index)[index]) - middle) / 2.054
    return middle, max(deviation, tail, floor)
