"""Rules that judge the result of a run: against no training, against its start, and held-out against training data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import (
    FRACTIONS,
    NATURAL,
    TRAINING,
    WORDS,
    Direction,
    core_words,
    declared_baselines,
    direction_of,
    gain_over,
    has_rewards,
    held_out_losses,
    held_out_metrics,
    implied_accuracy_gap,
    is_gain,
    is_plain_accuracy,
    is_relative_error,
    is_training,
    keeps_weights,
    loss_ends,
    mean_until,
    name_words,
    whole,
    yes_no,
)
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.squares import target_variance
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median, is_signed, noise
from fieldwatch.record import History, Series, tags


@dataclass(frozen=True, kw_only=True)
class WorseThanNothing(HealthRule):
    """The final result is no better than that of a prediction that needs no training.

    Baselines come from five places: ``Metric(trivial=...)``, a recorded series ``Baseline/<metric>``, the argument of
    the rule, the definition of metrics such as a correlation or an explained variance (0), and the measured targets:
    the share of the most frequent class for an accuracy, the variance for a mean of squares.

    Attributes:
        baselines: recorded series that hold the baseline of a metric, by the name of the metric.
    """

    severity: ClassVar[Severity] = "error"
    baselines: Mapping[str, str] = field(default_factory=dict[str, str])
    margin: float = threshold(
        0.05, unit="fraction of the baseline", reason="less than 5 % better than a guess is within the noise of a guess"
    )
    relative: float = threshold(
        0.15, unit="below a relative error of 1", reason="that of predicting 0; at 0.85, under 30 % is explained"
    )
    nothing: float = threshold(
        0.005, unit="gain", reason="as a fraction, in decibels or in nats, a gain of nearly 0 is none"
    )
    remedy: ClassVar[str] = (
        "Do not use this result. Check that inputs and targets (labels, images, poses, axes) belong together and are "
        "read in the right order and convention (`fieldwatch doctor --data` checks the data of the pipelines), that "
        "the loss depends on the input, that no term outweighs the one that teaches the result (its weight, a ramp, a "
        "threshold), and that the learning rate is neither far too high nor far too low."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, the metrics that are no better than their baselines."""
        if not finished(history):
            return ()
        findings: list[Finding] = []
        for name, (value, better, source) in self._known(history).items():
            last = float(history[name].values[-1])
            # Metrics whose baseline is 0 have a scale of 1.
            if gain_over(value, last, better) > self._margin(name) * (abs(value) or 1.0):
                continue
            worse = "no better" if gain_over(value, last, better) >= 0 else "worse"
            text = f"{name} ended at {number(last)}, {worse} than the trivial baseline of {number(value)} ({source})."
            findings.append(self.finding(int(history[name].steps[-1]), text, subject=name))
        return tuple(findings)

    def _margin(self, name: str) -> float:
        """Return how much better than its baseline a metric has to be, as a fraction of the baseline."""
        if is_gain(name):
            return self.nothing
        return self.relative if is_relative_error(name) else self.margin

    def _known(self, history: History) -> dict[str, tuple[float, Direction, str]]:
        """Return baseline, direction and source by metric."""
        series = {name: tags.BASELINE.tag(name) for name in history.names()} | dict(self.baselines)
        recorded = {name: each for name, each in series.items() if name in history and each in history}
        known = dict(_natural_baselines(history))
        for name, declared in declared_baselines(history).items():
            better = direction_of(name, history)
            if name in history and better and declared.get("value") is not None:
                known[name] = (float(declared["value"]), better, "declared")
        for name, each in recorded.items():
            better = direction_of(name, history)
            if better:
                known[name] = (float(history[each].values[-1]), better, each)
        return known


def _natural_baselines(history: History) -> Iterator[tuple[str, tuple[float, Direction, str]]]:
    """Yield the baselines that follow from the definition of a metric, or from the measured targets."""
    shares = [float(history[name].values[-1]) for name in tags.TARGET_SHARE.parts(history.names()).values()]
    sums = [finite_median(history[name].values) for name in tags.CLASS_SUM.parts(history.names()).values()]
    # With several classifiers, it is not known which one a metric judges.
    share = shares[0] if len(shares) == 1 and sums[0] < _ROUNDING else None
    answers = list(yes_no(history))
    if share is None and not shares and len(answers) == 1:
        yes = finite_median(history[tags.BINARY_SHARE.tag(answers[0])].values)
        share = max(yes, 1 - yes)
    source = "of always predicting the most frequent class"
    if share is None and not answers and not any(each < _ROUNDING for each in sums):
        share = _share_by_operations(history)
        source = "of equal chances for all classes, whose number the loss tells"
    squares = [target_variance(history, item) for item in tags.ERROR_SQUARE.parts(history.names())]
    variances = [each for each in squares if each is not None]
    for name in held_out_metrics(history):
        values = history[name].values
        value = 0.0 if not variances else variances[0] if "mse" in name_words(name) else variances[0] ** 0.5
        # Errors in other units than the loss are far from the baseline, and cannot be compared with it.
        near = len(variances) == 1 and value / _NEAR < float(values[0]) < value * _NEAR
        if near and name_words(name) & {"mse", "rmse"} and float(values[-1]) > 0.9 * float(values[0]):
            yield name, (value, "lower", "of always predicting the mean of the targets")
        known = [NATURAL[word] for word in name_words(name) if word in NATURAL]
        if known and float(np.nanmax(np.abs(values[-3:]))) <= _NATURAL_RANGE:
            yield name, (known[0], "higher", "of a prediction without information")
        elif is_relative_error(name) and float(np.nanmin(values)) >= 0:
            yield name, (1.0, "lower", "of predicting 0 everywhere")
        elif is_gain(name):
            yield name, (0.0, "higher", "of no gain")
        elif share is not None and is_plain_accuracy(name) and float(np.nanmin(values)) >= 0:
            yield name, (share * whole(values), "higher", source)


def _share_by_operations(history: History) -> float | None:
    """Return the accuracy of equal chances for all classes of the only cross-entropy of a run; None for other runs.

    The operations behind a loss tell the number of classes where no tracked module has the outputs.
    """
    outcomes = [int(event["outcomes"]) for event in history.events("chance_level")]
    single = len(outcomes) == 1 and len(tags.COMPONENT.parts(history.names())) == 1
    return 1 / outcomes[0] if single and outcomes[0] > _YES_OR_NO else None


_ROUNDING = 0.01
"""Sum of a cross-entropy's gradient over the classes, as a fraction of its size, up to rounding of half types."""
_NEAR = 3.0
_MEAN = 32
"""Recordings of the loss in a mean."""
_YES_OR_NO = 2
_NATURAL_RANGE = 1e12
"""Metrics beyond it have overflown."""


@dataclass(frozen=True, kw_only=True)
class HeldOutGap(HealthRule):
    """The final result on held-out data is far below that on training data, or became worse while training improved.

    Compared are metrics whose names differ only by ``train`` (``Eval/accuracy_train`` and ``Eval/accuracy``), and
    each held-out loss with its own best.

    Attributes:
        pairs: further pairs of metrics: held-out metric by training metric.
    """

    pairs: Mapping[str, str] = field(default_factory=dict[str, str])
    decibels: float = threshold(4.0, unit="dB", reason="gaps below 3 dB are usual between training and held-out photos")
    other_decibels: float = threshold(
        6.0,
        unit="dB",
        reason="of pairs whose names differ by more than 'train', and while held-out data still gain: few views or "
        "pixels are fitted more closely",
        source="measured by benchmarks/verdicts.py",
    )
    share: float = threshold(
        0.2, unit="difference of metrics in [0, 1]", reason="a fifth of all samples is right only because it was seen"
    )
    kept: float = threshold(
        0.3,
        unit="difference of metrics in [0, 1]",
        reason="few samples are learned by heart, and held-out data may gain by them up to the end",
    )
    shared: float = threshold(
        0.4,
        unit="difference of metrics in [0, 1]",
        reason="the same, as long as held-out data gain the larger part of what the training does",
    )
    half: float = threshold(
        0.5, unit="fraction of the gain of the training", reason="the larger part of what was learned holds for others"
    )
    near: float = threshold(
        0.05, unit="difference of metrics in [0, 1]", reason="from its best: a result that was not lost again"
    )
    ratio: float = threshold(3.0, unit="times the training value", reason="for errors and losses of any scale")
    rise: float = threshold(
        1.3, unit="times the best held-out loss", reason="a held-out loss wobbles by less between evaluations"
    )
    least: float = threshold(
        0.05, unit="fraction of the first loss", reason="smaller differences do not matter for the result"
    )
    fall: float = threshold(
        2.0, unit="loss of both signs (nats)", reason="a smaller fall of a likelihood may be one of few samples"
    )
    shown: float = threshold(
        0.8, unit="fraction of the fall", reason="held-out data that stay this close to the start show nothing of it"
    )
    high: float = threshold(
        0.5, unit="fraction of the first loss", reason="a held-out loss above it has hardly fallen at all"
    )
    lost: float = threshold(
        0.8,
        unit="fraction of the fall of the training loss",
        reason="0.5 in a healthy run that stopped early, with few and noisy samples",
        source="measured by benchmarks/verdicts.py",
    )
    gained: float = threshold(0.3, unit="fraction of the first loss", reason="of a smaller fall, much is noise")
    evaluations: int = threshold(3, unit="evaluations", reason="the first one may come before anything was learned")
    batches: int = threshold(
        4, unit="times the number of evaluations", reason="so often, a metric of the training is one of single batches"
    )
    course: int = threshold(6, unit="evaluations", reason="fewer show no course, only a few values")
    downward: float = threshold(
        0.75, unit="fraction of the evaluations behind the best", reason="each worse than the one before: no wobble"
    )
    noise: float = threshold(
        5.0, unit="times the usual bend of the course", reason="larger than what single evaluations deviate by"
    )
    certain: float = threshold(
        1.0, unit="standard errors", reason="a training loss that has fallen by less may as well stand still"
    )
    trained: float = threshold(
        0.2, unit="fraction of the loss at the best evaluation", reason="what was learned since then is not little"
    )
    remedy: ClassVar[str] = (
        "Use more data (samples, views, frames), check that every step draws another batch, regularize (weight decay, "
        "dropout) or take a smaller model, and keep the checkpoint with the best held-out score. Check that training "
        "and held-out data agree in targets (labels, order, shift) and preprocessing, and that what is evaluated is "
        "what was trained (an average of the weights needs the statistics of its norms, too); for views, the poses."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return findings at the end of the run."""
        if not finished(history):
            return ()
        lost = (*self._risen(history), *self._fallen(history))
        if keeps_weights(history):
            # The loop has a copy of earlier weights, as one that stops early has: what was lost is kept.
            lost = tuple(replace(each, severity="note") for each in lost)
        found = (*self._gaps(history), *lost) or tuple(self._by_heart(history))
        return found or (*self._of_likelihoods(history), *self._of_losses(history))

    def _gaps(self, history: History) -> Iterator[Finding]:
        held_out = held_out_metrics(history)
        by_words = {core_words(name): name for name in held_out}
        pairs = {
            name: by_words[words]
            for name in history.names()
            if is_training(name)
            and (words := core_words(name)) in by_words
            and self._is_pair(history, name, by_words[words])
        }
        for train, name in (pairs | dict(self.pairs)).items():
            if train not in history or name not in history:
                continue
            better = direction_of(name, history)
            seen = self._settled(history[train], len(history[name]))
            unseen = float(history[name].values[-1])
            if better and (
                self._is_far((train, seen), history, name, better) or self._never_gains(history, train, name)
            ):
                text = f"{name} ended at {number(unseen)}, {train} at {number(seen)}: held-out data gain far less."
                yield self.finding(int(history[name].steps[-1]), text, subject=name)

    def _never_gains(self, history: History, train: str, name: str) -> bool:
        """Return whether a PSNR of the training rose from the first evaluation on, and the held-out one did not."""
        seen = history[train].values
        unseen = history[name].values
        if "psnr" not in WORDS.findall(name.lower()) or len(seen) != len(unseen) or len(seen) < self.evaluations:
            return False
        gained = float(np.nanmax(unseen[1:]) - unseen[0])
        return seen[-1] - seen[0] > self.decibels / 2 and gained <= 0 and seen[-1] - unseen[-1] > self.decibels

    def _is_pair(self, history: History, train: str, name: str) -> bool:
        """Return whether two metrics measure the same on other data.

        A PSNR of single batches (Train/psnr) is none of evaluations: both have to be measured at the same times, or the
        names have to be the same apart from "train".
        """
        if "psnr" not in WORDS.findall(train.lower()) or len(history[train]) == len(history[name]):
            return True
        return _is_same_but_for_train(train, name)

    def _settled(self, train: Series, evaluations: int) -> float:
        """Return the last value of a training metric; if single batches are measured, the mean of the last ones."""
        batches = max(len(train) // 20, 5) if len(train) > self.batches * evaluations else 1
        return float(np.nanmean(train.values[-batches:]))

    def _by_heart(self, history: History) -> Iterator[Finding]:
        """Yield held-out results that are poor although the training loss has fallen to nearly nothing."""
        if tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
            return
        began, ended = loss_ends(history[tags.TOTAL])
        if not ended < self.least * began:
            return
        for name, better in held_out_metrics(history).items():
            last = float(history[name].values[-1])
            is_loss = better == "lower" and "loss" in core_words(name)
            missed = implied_accuracy_gap(history, name, ended)
            if missed > self._share(history[name]) or (is_loss and last > self.high * began):
                text = (
                    f"{name} ended at {number(last)}, although {tags.TOTAL} fell from {number(began)} to "
                    f"{number(ended)}: the "
                    "training data were learned by heart, and held-out data gain far less (overfitting)."
                )
                yield self.finding(int(history[name].steps[-1]), text, subject=name)

    def _of_likelihoods(self, history: History) -> Iterator[Finding]:
        """Yield held-out likelihoods and losses of both signs that show little of the fall of the training loss."""
        if tags.TOTAL not in history or len(tags.COMPONENT.parts(history.names())) > 1:
            return
        total = history[tags.TOTAL]
        began, ended = loss_ends(total)
        if not is_signed(total.values) or began - ended < self.fall:
            return
        for name in held_out_metrics(history):
            words = name_words(name)
            sign = -1.0 if words & {"likelihood", "loglik", "elbo"} else 1.0
            if sign > 0 and not words & {"loss", "nll"}:
                continue
            last = float(history[name].values[-1])
            first = float(history[name].values[0])
            # In other units, a likelihood that rises shows that something was learned.
            if -sign * (last - first) > 0.02 * abs(first):
                continue
            if sign * last > ended + self.shown * (began - ended):
                text = (
                    f"{name} ended at {number(last)}, although {tags.TOTAL} fell from {number(began)} to "
                    f"{number(ended)}: held-out data show nothing of it. The training loss measures something else (a "
                    "term or a sign), or the run is overfitting."
                )
                yield replace(
                    self.finding(int(history[name].steps[-1]), text, subject=name),
                    remedy="Check the sign of each term of the loss (log-determinant, entropy, divergence) against the "
                    "evaluation, and that both see data of the same kind; then see whether the run overfits.",
                )

    def _of_losses(self, history: History) -> Iterator[Finding]:
        """Yield held-out losses that show too little of what the same loss gained in training.

        Compared is the best evaluation with the training until then, so that a model that is overfitted later, and
        replaced by its best state, is judged by that state.
        """
        for name, loss in held_out_losses(history):
            values = history[name].values
            if len(values) < self.evaluations or not np.isfinite(values).all():
                continue
            at = int(np.argmin(values))
            best = float(values[at])
            began = loss_ends(loss)[0]
            seen = mean_until(loss, float(history[name].steps[at]))
            gained = began - seen
            if gained < self.gained * began or best - seen < self.lost * gained:
                continue
            shown = percent(max((began - best) / gained, 0.0), 0)
            text = (
                f"{name} was {number(best)} at best, while the same loss of the training had fallen from "
                f"{number(began)} to {number(seen)}: held-out data show {shown} of what was gained (targets or inputs "
                "differ, or overfitting)."
            )
            yield self.finding(int(history[name].steps[-1]), text, subject=name)

    def _share(self, series: Series, gained: float = np.inf) -> float:
        """Return how far a fraction may be below that of the training.

        Further while it is at its best, and still further if it has gained the larger part of what the training has.

        Args:
            series: the fraction.
            gained: what that of the training has gained since its first value.
        """
        best = float(np.nanmax(series.values))
        last = float(series.values[-1])
        if best - last > self.near * max(best, 1.0):
            return self.share
        return self.shared if last - float(series.values[0]) > self.half * gained > 0 else self.kept

    def _is_far(self, training: tuple[str, float], history: History, name: str, better: Direction) -> bool:
        """Return whether a held-out result is far below that of the training, given by its name and final value."""
        train, seen = training
        series = history[name]
        unseen = float(series.values[-1])
        gap = gain_over(unseen, seen, better)
        if "psnr" in name.lower():
            # Held-out data that still gain lose nothing by a closer fit of the training data.
            gains = unseen > float(series.values[0]) and unseen >= float(np.nanmax(series.values))
            close = _is_same_but_for_train(train, name) and not gains
            return gap > (self.decibels if close else self.other_decibels)
        share = self._share(series, gained=seen - float(history[train].values[0]))
        if better == "higher":
            # Only fractions have a scale that needs no unit.
            most = 100.0 if max(seen, unseen) > 1 and core_words(name) & FRACTIONS else 1.0
            bounded = min(seen, unseen) >= 0 or (seen > 0 and bool(name_words(name) & set(NATURAL)))
            return bounded and max(seen, unseen) <= most and gap > share * most
        return seen > 0 and unseen > self.ratio * seen and unseen - seen > self.share * abs(seen)

    def _risen(self, history: History) -> Iterator[Finding]:
        """Yield held-out losses that rose from their best while the training loss fell."""
        if tags.TOTAL not in history:
            return
        loss = history[tags.TOTAL]
        first, final = loss_ends(loss)
        # In a game, what one player gains the other one loses.
        if not is_signed(loss.values) and final > first:
            return
        for name, better in held_out_metrics(history).items():
            series = history[name]
            if better != "lower" or len(series) < 3 or is_signed(series.values):
                continue
            # A loss has the scale of the training loss; other errors have their own.
            began = loss_ends(loss)[0] if "loss" in core_words(name) else float(series.values[0])
            at = int(np.nanargmin(series.values)) if np.isfinite(series.values).any() else len(series) - 1
            best = float(series.values[at])
            last = float(np.median(series.values[-2:]))
            if at >= len(series) - 2 or last <= best or last < self.rise * best or last - best < self.least * began:
                continue
            # An evaluation in between was unusual: at the end, the result is as good as ever.
            if series.values[-1] <= best:
                continue
            if self._kept_falling(loss, float(series.steps[at]), float(series.steps[-1])):
                text = (
                    f"{name} rose from its best, {number(best)} at step {series.steps[at]:.0f}, to {number(last)}, "
                    "while the "
                    "training loss kept falling: the run is overfitting."
                )
                yield self.finding(int(series.steps[-1]), text, subject=name)

    def _kept_falling(self, loss: Series, begin: float, end: float) -> bool:
        """Return whether the loss of the training fell from one step to another by more than its noise."""
        fallen = mean_until(loss, begin, _MEAN) - mean_until(loss, end, _MEAN)
        between = loss.values[(loss.steps > begin) & (loss.steps <= end)]
        part = loss.values[loss.steps > begin - (end - begin)]
        # Both means share what is recorded before the one and within reach of the other.
        apart = min(len(between), _MEAN)
        error = noise(part) * float(np.sqrt(2 * apart)) / _MEAN
        return fallen > self.certain * error

    def _fallen(self, history: History) -> Iterator[Finding]:
        """Yield held-out scores that fell from their best to below the first one, steadily, while the loss fell."""
        if tags.TOTAL not in history or is_signed(history[tags.TOTAL].values) or has_rewards(history):
            return
        loss = history[tags.TOTAL]
        for name, better in held_out_metrics(history).items():
            series = history[name]
            values = series.values
            if better != "higher" or len(values) < self.course or not np.isfinite(values).all():
                continue
            at = int(np.argmax(values))
            steps = np.diff(values[at:])
            last = float(np.median(values[-2:]))
            usual = float(np.median(np.abs(np.diff(values, 2))))
            # What the run had gained, and more, is lost.
            lost = float(values[0]) - last > float(values[at] - values[0])
            steady = len(steps) > 2 and np.count_nonzero(steps < 0) >= self.downward * len(steps)
            if not lost or not steady or values[at] - last < self.noise * usual:
                continue
            before = mean_until(loss, float(series.steps[at]))
            after = mean_until(loss, float(series.steps[-1]))
            if after < (1 - self.trained) * before:
                text = (
                    f"{name} fell from its best, {number(values[at])} at step {series.steps[at]:.0f}, to "
                    f"{number(last)}, below its first value, while the training loss fell from {number(before)} to "
                    f"{number(after)}: the run is overfitting."
                )
                yield self.finding(int(series.steps[-1]), text, subject=name)


def _is_same_but_for_train(train: str, name: str) -> bool:
    """Return whether two names differ only by a word for training data."""
    return frozenset(WORDS.findall(train.lower())) - TRAINING == frozenset(WORDS.findall(name.lower()))


@dataclass(frozen=True, kw_only=True)
class WorstSample(HealthRule):
    """At the last evaluation, a few samples score far worse than all others.

    The scores come from events of the kind ``sample_scores`` with ``metric``, ``better`` and ``values`` by name.
    """

    deviation: float = threshold(
        5.0,
        unit="standard deviations of the other samples",
        reason="beyond the spread of difficult samples in a healthy run",
    )
    share: float = threshold(
        0.25, unit="fraction of the median score", reason="smaller differences are too small to spoil the result"
    )
    error: float = threshold(
        0.5,
        unit="fraction of the median error",
        reason="errors of healthy samples differ by such a factor more easily than scores do",
        source="measured by benchmarks/verdicts.py",
    )
    count: int = threshold(5, unit="samples", reason="fewer samples have no usual spread")
    most: float = threshold(
        0.34, unit="fraction of the samples", reason="two swapped samples of six; more than a third are no exception"
    )
    remedy: ClassVar[str] = (
        "Look at the named samples (view, photo, frame): check pose, mask, image, label and exposure, and exclude them "
        "if their data is bad."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per metric with outliers."""
        if not finished(history):
            return ()
        latest = {str(event.get("metric")): event for event in history.events(tags.SAMPLE_SCORES)}
        return tuple(found for metric, event in latest.items() if (found := self._judge(metric, event)))

    def _judge(self, metric: str, event: Mapping[str, Any]) -> Finding | None:
        scores = {str(name): float(value) for name, value in event.get("values", {}).items() if value is not None}
        if len(scores) < self.count or event.get("better") not in ("higher", "lower"):
            return None
        # Errors, so that larger is worse.
        sign = 1.0 if event["better"] == "lower" else -1.0
        ranked = sorted(scores, key=lambda name: -sign * scores[name])
        worse: dict[str, float] = {}
        for count in range(1, int(self.most * len(scores)) + 1):
            # The usual spread is that of the others: with few samples, two wrong ones would hide themselves.
            rest = np.array([scores[name] for name in ranked[count:]])
            middle = float(np.median(rest))
            share = self.share if sign < 0 else self.error
            bound = max(self.deviation * float(np.std(rest)), share * abs(middle))
            if sign * (scores[ranked[count - 1]] - middle) > bound:
                worse = {name: scores[name] for name in ranked[:count]}
        if not worse:
            return None
        middle = float(np.median([scores[name] for name in ranked[len(worse) :]]))
        ordered = sorted(worse.items(), key=lambda item: -sign * item[1])
        named = ", ".join(f"'{name}' ({number(value, 3)})" for name, value in ordered[:5])
        plural = "s" if len(worse) > 1 else ""
        others = len(scores) - len(worse)
        text = (
            f"{metric} of sample{plural} {named} is far worse than the median of the other {others} "
            f"({number(middle, 3)})."
        )
        return self.finding(int(event["step"]), text, subject=ordered[0][0])
