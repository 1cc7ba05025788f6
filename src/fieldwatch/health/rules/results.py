"""Rules that judge the result of a run: against no training, against its start, and held-out against training data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

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
    has_improved,
    held_out_metrics,
    implied_accuracy_gap,
    is_result,
    is_training,
    loss_ends,
    loss_reduction,
    mean_until,
    name_words,
    target_variance,
    whole,
    yes_no,
)
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median, is_signed
from fieldwatch.record import TOOLKIT, History, tags

_RESULTS = frozenset(
    {
        *("accuracy", "acc", "iou", "miou", "dice", "f1", "auc", "auroc", "psnr", "ssim", "right", "correct"),
        *("explained", "r2", "correlation", "spearman", "pearson", "mse", "rmse", "mae", "error"),
    }
)
"""Words in the names of metrics that say how good a result is as a whole, not which kind of mistakes it has."""
_RETURNS = frozenset(("reward", "rewards", "return", "returns"))
_OTHER_RETURNS = frozenset(
    {
        *("std", "var", "variance", "min", "max", "intrinsic", "predicted", "target", "scale", "bonus", "penalty"),
        *("error", "loss", "mse", "mae", "baseline", "random", "data", "dataset", "offline", "expert"),
    }
)
"""Words of metrics of rewards that are no mean of them."""
_REWARDS = frozenset(("reward", "return", "score"))
"""Words in the names of metrics that the loss of a policy does not show."""


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
    remedy: ClassVar[str] = (
        "Do not use this result. Check that inputs and targets (labels, images, poses, axes) belong together and are "
        "read in the right order and convention (`fieldwatch doctor --data` checks the data of the pipelines), that "
        "the loss depends on the input, and that the learning rate is neither far too high nor far too low."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, the metrics that are no better than their baselines."""
        if not finished(history):
            return ()
        findings: list[Finding] = []
        for name, (value, better, source) in self._known(history).items():
            last = float(history[name].values[-1])
            # Metrics whose baseline is 0 have a scale of 1.
            if gain_over(value, last, better) > self.margin * (abs(value) or 1.0):
                continue
            worse = "no better" if gain_over(value, last, better) >= 0 else "worse"
            text = f"{name} ended at {number(last)}, {worse} than the trivial baseline of {number(value)} ({source})."
            findings.append(self.finding(int(history[name].steps[-1]), text, subject=name))
        return tuple(findings)

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
        elif share is not None and _is_plain_accuracy(name) and float(np.nanmin(values)) >= 0:
            yield name, (share * whole(values), "higher", "of always predicting the most frequent class")


def _is_plain_accuracy(name: str) -> bool:
    words = name_words(name)
    return bool(words & {"accuracy", "acc"}) and not words & _OTHER_ACCURACY


_ROUNDING = 0.01
"""Sum of a cross-entropy's gradient over the classes, as a fraction of its size, up to rounding of half types."""
_NEAR = 3.0
_OTHER_ACCURACY = frozenset(
    ("balanced", "macro", "mean", "worst", "sequence", "exact", "word", "words", "whole", "min")
)
"""Words of accuracies that are not compared with the share of a class."""
_NATURAL_RANGE = 1e12
"""Metrics beyond it have overflown."""


@dataclass(frozen=True, kw_only=True)
class NoProgress(HealthRule):
    """The result on held-out data is no better than at the first evaluation.

    Either the loss has hardly fallen, or it has fallen by so much since then that a result should have moved. A result
    of which nobody knows whether it is better high or low must not have moved at all. It is judged only if it cannot
    have been reached by the first evaluation: a third of the loss was left then, or it is far from 0 and 1.
    """

    gain: float = threshold(
        0.02, unit="fraction of the first value", reason="less is within the noise of an evaluation"
    )
    once: float = threshold(
        0.5, unit="fraction of the first value", reason="a single evaluation varies by less if nothing was learned"
    )
    fall: float = threshold(
        0.3,
        unit="fraction of the initial loss",
        reason="a loss that has fallen further had learned something before the first evaluation already",
    )
    worse: float = threshold(
        0.1, unit="fraction of the first value", reason="the metric of an untrained model, which is easy to reach"
    )
    still: float = threshold(
        0.1, unit="fraction of the initial loss", reason="fall since the first evaluation: much was learned since then"
    )
    since: float = threshold(
        0.4,
        unit="fraction of the loss at the first evaluation",
        reason="what halves the loss moves a result that measures the same",
    )
    part: float = threshold(
        0.05, unit="fraction of the initial loss", reason="a loss near 0 may halve without any effect on a result"
    )
    apart: float = threshold(
        0.05, unit="difference of fractions", reason="a few hundred held-out samples vary by this much"
    )
    moved: float = threshold(
        0.03, unit="fraction of the largest value", reason="difference of evaluations without any progress"
    )
    change: float = threshold(
        0.25,
        unit="fraction of the first value",
        reason="a change of a fraction beyond it is one, in any direction",
        source="measured by benchmarks/verdicts.py",
    )
    late: float = threshold(
        0.33,
        unit="fraction of the initial loss",
        reason="with less left at the first evaluation, a result of unknown direction may have been reached by then",
        source="measured by benchmarks/verdicts.py",
    )
    best: float = threshold(
        0.1, unit="fraction", reason="fractions of unknown direction this close to 0 or 1 may be perfect"
    )
    both: float = threshold(
        0.2, unit="fraction", reason="so far from 0 and 1, a fraction is poor in any direction once the loss is near 0"
    )
    exact: float = threshold(
        0.01, unit="fraction of the largest value", reason="an error this constant depends on nothing that is trained"
    )
    count: int = threshold(4, unit="evaluations", reason="with fewer, the run may be too short to judge")
    remedy: ClassVar[str] = (
        "The model learned nothing that holds for other data: check that inputs and targets (labels, rewards, what the "
        "loss compares) belong together (an order that was shuffled, a shift, a sign of the loss), that the evaluation "
        "uses the same data format, scale and model as the training, and the learning rate."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of the run if no held-out metric has improved."""
        if not finished(history):
            return ()
        held_out = held_out_metrics(history)
        judged: dict[str, Direction] = {name: held_out[name] for name in held_out if len(history[name]) >= self.count}
        declined = self._declined(history, judged) or self._lost(history, judged) or self._unmoved(history)
        if declined is not None:
            return (declined,)
        fallen = loss_reduction(history)
        rewards: dict[str, Direction] = {name: judged[name] for name in judged if core_words(name) & _REWARDS}
        if rewards and all(self._never_better(history[name].values) for name in rewards):
            judged = rewards
        elif not judged or (fallen is not None and fallen > self.fall) or self._learned(history):
            return ()
        for name, better in judged.items():
            values = history[name].values
            gains = np.array([gain_over(float(values[0]), float(value), better) for value in values[1:]])
            # A single good evaluation shows that a run has learned something, even if it was lost later.
            usual = float(np.median(gains[len(gains) // 2 :]))
            bound = abs(float(values[0]))
            if not np.isfinite(gains).all() or usual > self.gain * bound or gains.max() > self.once * bound:
                return ()
        name = next(iter(judged))
        values = history[name].values
        loss = "" if fallen is None else f", and {tags.TOTAL} fell by only {percent(max(fallen, 0.0), 0)}"
        text = (
            f"{name} is {number(values[-1])} after {len(values)} evaluations, no better than the "
            f"{number(values[0])} of the "
            f"first{loss}: training learned nothing that held-out data show, so its targets do not teach what is "
            "evaluated."
        )
        return (self.finding(int(history[name].steps[-1]), text, subject=name),)

    def _declined(self, history: History, judged: Mapping[str, Direction]) -> Finding | None:
        """Return a finding if a metric was never better than at first and ended clearly worse, whatever the loss."""
        if has_improved(history):
            return None
        for name, better in judged.items():
            values = history[name].values
            if not np.isfinite(values).all():
                continue
            first = float(values[0])
            gains = [gain_over(first, float(value), better) for value in values[1:]]
            usual = float(np.median(gains[len(gains) // 2 :]))
            if max(gains) <= self.gain * abs(first) and usual < -self.worse * abs(first):
                text = (
                    f"{name} went from {number(first)} to {number(values[-1])} and was never better than at the first "
                    "evaluation: training makes it worse than no training (a wrong sign, or wrong targets)."
                )
                return self.finding(int(history[name].steps[-1]), text, subject=name)
        return None

    def _lost(self, history: History, judged: Mapping[str, Direction]) -> Finding | None:
        """Return a finding if one of several results became worse from the first evaluation on while the loss fell."""
        if tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
            return None
        loss = history[tags.TOTAL]
        for name, better in judged.items():
            series = history[name]
            values = series.values
            if not name_words(name) & _RESULTS or not np.isfinite(values).all():
                continue
            first = float(values[0])
            gains = [gain_over(first, float(value), better) for value in values[1:]]
            usual = float(np.median(gains[len(gains) // 2 :]))
            at = mean_until(loss.values, loss.steps, float(series.steps[0]), width=8)
            ended = loss_ends(loss.values)[1]
            fallen = at - ended > self.still * at
            if fallen and max(gains) <= self.gain * abs(first) and usual < -self.worse * abs(first):
                text = (
                    f"{name} went from {number(first)} to {number(values[-1])} and was never better than at the first "
                    f"evaluation, while {tags.TOTAL} fell from {number(at)} to {number(ended)}: what is trained is not "
                    "what is evaluated (another format or scale of targets or inputs, a sign), or it is overfitting."
                )
                return self.finding(int(series.steps[-1]), text, subject=name)
        return None

    def _unmoved(self, history: History) -> Finding | None:
        """Return a finding if no held-out result is better than at the first evaluation, whatever the loss does."""
        if tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
            return None
        names = [name for name in history.names() if is_result(name, history)]
        if not names or any(len(history[name]) < self.count for name in names):
            return None
        if any(self._may_be_good(name, history) or not self._stands_still(name, history) for name in names):
            return None
        name = names[0]
        values = history[name].values
        loss = history[tags.TOTAL]
        at = mean_until(loss.values, loss.steps, float(history[name].steps[0]), width=8)
        began, ended = loss_ends(loss.values)
        fallen = loss_reduction(history)
        text = f"{name} is {number(values[-1])} after {len(values)} evaluations and has not improved on the "
        text += f"{number(values[0])} of the first"
        if all(self._shows(each, history, at, began, ended) for each in names):
            text += (
                f", while {tags.TOTAL} fell from {number(at)} to {number(ended)} meanwhile: training learns something "
                "that held-out data do not show, so its targets do not teach what is evaluated."
            )
        elif fallen is not None and fallen <= self.fall:
            text += (
                f", and {tags.TOTAL} fell by only {percent(max(fallen, 0.0), 0)}: training learned nothing that "
                "held-out data show."
            )
        else:
            return None
        return self.finding(int(history[name].steps[-1]), text, subject=name)

    def _shows(self, name: str, history: History, at: float, began: float, ended: float) -> bool:
        """Return whether the fall of the loss since the first evaluation would have moved a result."""
        values = history[name].values
        better = direction_of(name, history)
        spent = at - ended > self.part * began
        if at - ended < self.since * at:
            return False
        if better == "lower":
            # An error this constant shows a standstill even if the loss was near 0 at the first evaluation already.
            return spent or float(np.ptp(values)) < self.exact * float(np.abs(values).max())
        if better == "higher":
            return spent
        return at - ended > self.still * began if not values.any() else self._late_or_poor(values, at, began, ended)

    def _late_or_poor(self, values: NDArray[np.float64], at: float, began: float, ended: float) -> bool:
        """Return whether a result of unknown direction cannot have been reached by the first evaluation."""
        last = float(values[-1])
        if not self._is_share(values):
            return at > self.late * began
        # In the middle, a fraction is poor in any direction once the loss is near 0.
        poor = self.both < last < 1 - self.both and ended < self.part * at
        same = abs(last - float(values[0])) <= self.change * float(values[0])
        return poor or (same and self.best < last < 1 - self.best and at > self.late * began)

    def _stands_still(self, name: str, history: History) -> bool:
        """Return whether no evaluation is better than the first one by more than noise; in any direction if unknown."""
        values = history[name].values
        if not np.isfinite(values).all():
            return False
        better = direction_of(name, history)
        first = float(values[0])
        if better is None:
            moved = float(np.ptp(values))
        else:
            moved = max(gain_over(first, float(each), better) for each in values)
        if self._is_share(values) and better != "lower":
            return moved <= self.apart
        return moved <= self.moved * float(np.abs(values).max())

    def _is_share(self, values: NDArray[np.float64]) -> bool:
        """Return whether values may be fractions."""
        return float(values.min()) >= 0 and float(values.max()) <= 1

    def _may_be_good(self, name: str, history: History) -> bool:
        """Return whether a fraction may have been good from the first evaluation on."""
        values = history[name].values
        better = direction_of(name, history)
        if better == "lower" or float(values.min()) < 0:
            return False
        if better == "higher":
            return float(values[-1]) / whole(values) > _LOW
        return self._is_share(values) and float(values[-1]) > 1 - self.best

    def _never_better(self, rewards: NDArray[np.float64]) -> bool:
        """Return whether no evaluation was better than the first one by more than noise."""
        best = float(np.max(rewards[1:]))
        return float(rewards[0]) < 0 and best - float(rewards[0]) <= self.gain * abs(float(rewards[0]))

    def _learned(self, history: History) -> bool:
        """Return whether the first recordings of a loss of both signs are well above the last ones."""
        if tags.TOTAL not in history or not is_signed(history[tags.TOTAL].values):
            return False
        values = history[tags.TOTAL].values
        values = values[np.isfinite(values)]
        part = max(len(values) // 10, 1)
        spread = float(np.std(values[-part:]))
        return float(np.median(values[:part]) - np.median(values[-part:])) > 5 * spread


@dataclass(frozen=True, kw_only=True)
class RewardNotRising(HealthRule):
    """The returns or rewards that a policy gets while it is trained are no higher at the end than at the start.

    They are compared over all steps, so noise of single episodes does not matter. A run whose evaluations have improved
    is not judged: exploration lowers the returns of the training.
    """

    start: float = threshold(
        0.15, unit="fraction of the run", reason="long enough for a mean, too short to have learned much"
    )
    end: float = threshold(0.3, unit="fraction of the run", reason="length of the final mean")
    certain: float = threshold(
        3.0, unit="standard errors", reason="a rise that is certain is one, however small the returns are"
    )
    gain: float = threshold(
        0.1, unit="fraction of the first mean", reason="a smaller rise is not what a policy is trained for"
    )
    move: float = threshold(
        1.0, unit="fraction of the first value", reason="a result of unknown direction that doubles shows learning"
    )
    count: int = threshold(60, unit="recordings", reason="the first mean needs several episodes")
    remedy: ClassVar[str] = (
        "Check what the policy's loss maximizes: the sign of the loss (it minimizes minus the return), returns and "
        "advantages that belong to the executed actions and start at their step (rewards to come, not those of the "
        "past), log-probabilities of the actions that were executed, a critic that sees the rewards and the ends of "
        "episodes; then the weight of the entropy and the learning rate."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, the reward that did not rise, if none did."""
        # A trained policy that goes on may have reached its best.
        if not finished(history) or history.first > 0:
            return ()
        names = [name for name in history.names() if self._is_reward(name, history)]
        found = [self._judge(name, history) for name in names]
        first = next((each for each in found if each is not None), None)
        # What an evaluation shows counts more: rewards of recorded episodes, and of bold exploration, need not rise.
        if first is None or any(each is None for each in found) or has_improved(history, move=self.move):
            return ()
        return (first,)

    def _is_reward(self, name: str, history: History) -> bool:
        words = name_words(name)
        plain = bool(words & _RETURNS) and not words & _OTHER_RETURNS
        return plain and TOOLKIT.find(name) is None and len(history[name]) >= self.count

    def _judge(self, name: str, history: History) -> Finding | None:
        series = history[name]
        values = series.values
        if not np.isfinite(values).all() or series.steps[0] > self.start * history.step:
            return None
        head = values[: max(int(self.start * len(values)), 8)]
        tail = values[-int(self.end * len(values)) :]
        gain = float(tail.mean() - head.mean())
        error = float(np.sqrt(head.var() / len(head) + tail.var() / len(tail)))
        # Returns that never differ are rewards that do not depend on the actions, or a game that is solved.
        if not values.std() > 0 or gain > self.certain * error or gain > self.gain * abs(float(head.mean())):
            return None
        text = (
            f"{name} averages {number(tail.mean())} at the end, no better than the {number(head.mean())} at the start "
            "of the run: the policy has learned nothing that raises its reward."
        )
        return self.finding(history.step, text, subject=name)


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
    share: float = threshold(
        0.2, unit="difference of metrics in [0, 1]", reason="a fifth of all samples is right only because it was seen"
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
    remedy: ClassVar[str] = (
        "Use more data (samples, views, frames), check that every step draws another batch, regularize (weight decay, "
        "dropout) or take a smaller model, and keep the checkpoint with the best held-out score. Check that training "
        "and held-out data agree in targets (labels, order, shift) and preprocessing; for views, the poses."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return findings at the end of the run."""
        if not finished(history):
            return ()
        found = (*self._gaps(history), *self._risen(history)) or tuple(self._by_heart(history))
        return found or tuple(self._of_likelihoods(history))

    def _gaps(self, history: History) -> Iterator[Finding]:
        held_out = held_out_metrics(history)
        by_words = {core_words(name): name for name in held_out}
        pairs = {
            name: by_words[words]
            for name in history.names()
            if is_training(name) and (words := core_words(name)) in by_words and self._is_pair(name, by_words[words])
        }
        for train, name in (pairs | dict(self.pairs)).items():
            if train not in history or name not in history:
                continue
            better = direction_of(name, history)
            seen = float(history[train].values[-1])
            unseen = float(history[name].values[-1])
            if better and self._is_far(name, seen, unseen, better):
                text = f"{name} ended at {number(unseen)}, {train} at {number(seen)}: held-out data gain far less."
                yield self.finding(int(history[name].steps[-1]), text, subject=name)

    def _is_pair(self, train: str, name: str) -> bool:
        """Return whether two metrics measure the same on other data.

        A PSNR of single batches (Train/psnr) is none of evaluations: the names have to be the same apart from "train".
        """
        words = frozenset(WORDS.findall(train.lower())) - TRAINING
        return "psnr" not in words or words == frozenset(WORDS.findall(name.lower()))

    def _by_heart(self, history: History) -> Iterator[Finding]:
        """Yield held-out results that are poor although the training loss has fallen to nearly nothing."""
        if tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
            return
        began, ended = loss_ends(history[tags.TOTAL].values)
        if not ended < self.least * began:
            return
        for name, better in held_out_metrics(history).items():
            last = float(history[name].values[-1])
            is_loss = better == "lower" and "loss" in core_words(name)
            missed = implied_accuracy_gap(history, name, ended)
            if missed > self.share or (is_loss and last > self.high * began):
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
        values = history[tags.TOTAL].values
        began, ended = loss_ends(values)
        if not is_signed(values) or began - ended < self.fall:
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

    def _is_far(self, name: str, seen: float, unseen: float, better: Direction) -> bool:
        gap = gain_over(unseen, seen, better)
        if "psnr" in name.lower():
            return gap > self.decibels
        if better == "higher":
            # Only fractions have a scale that needs no unit.
            most = 100.0 if max(seen, unseen) > 1 and core_words(name) & FRACTIONS else 1.0
            bounded = min(seen, unseen) >= 0 or (seen > 0 and bool(name_words(name) & set(NATURAL)))
            return bounded and max(seen, unseen) <= most and gap > self.share * most
        return seen > 0 and unseen > self.ratio * seen and unseen - seen > self.share * abs(seen)

    def _risen(self, history: History) -> Iterator[Finding]:
        """Yield held-out losses that rose from their best while the training loss fell."""
        if tags.TOTAL not in history:
            return
        loss = history[tags.TOTAL]
        for name, better in held_out_metrics(history).items():
            series = history[name]
            if better != "lower" or len(series) < 3 or is_signed(series.values):
                continue
            # A loss has the scale of the training loss; other errors have their own.
            began = loss_ends(loss.values)[0] if "loss" in core_words(name) else float(series.values[0])
            at = int(np.nanargmin(series.values)) if np.isfinite(series.values).any() else len(series) - 1
            best = float(series.values[at])
            last = float(np.median(series.values[-2:]))
            if at >= len(series) - 2 or last < self.rise * best or last - best < self.least * began:
                continue
            before = mean_until(loss.values, loss.steps, float(series.steps[at]))
            if mean_until(loss.values, loss.steps, float(series.steps[-1])) < before:
                text = (
                    f"{name} rose from its best, {number(best)} at step {series.steps[at]:.0f}, to {number(last)}, "
                    "while the "
                    "training loss kept falling: the run is overfitting."
                )
                yield self.finding(int(series.steps[-1]), text, subject=name)


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


_LOW = 0.5
"""A fraction above it may have been good from the first evaluation on."""
