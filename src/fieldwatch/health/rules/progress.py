"""Rules for results that are no better than at the start: held-out metrics, and the rewards of a policy."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import (
    ACCURACIES,
    FRACTIONS,
    Direction,
    core_words,
    direction_of,
    fall_from_guess,
    follows_training,
    gain_over,
    gains_over_first,
    has_improved,
    held_out_metrics,
    is_result,
    keeps_weights,
    late,
    loss_ends,
    loss_reduction,
    mean_until,
    name_words,
    whole,
)
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median, is_signed, noise
from fieldwatch.record import TOOLKIT, History, tags

_LOW = 0.5
"""A fraction above it may have been good from the first evaluation on."""
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
    forgotten: float = threshold(
        0.15,
        unit="fraction of the first value",
        reason="what was learned before the first evaluation is overfitted later, as is usual with few samples",
        source="measured by benchmarks/verdicts.py",
    )
    lost: float = threshold(
        0.05, unit="fraction of the first value", reason="the same while the loss falls, which should have improved it"
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
    crawl: float = threshold(
        0.05,
        unit="fraction of the first error",
        reason="an error that falls by less while the loss falls by far more measures something else",
    )
    error: float = threshold(
        0.35, unit="fraction of the loss at the first evaluation", reason="an error falls with a loss that measures it"
    )
    each: float = threshold(
        0.03, unit="fraction of the first value", reason="every later evaluation is worse by more than noise"
    )
    usual: float = threshold(
        0.05, unit="fraction of the first value", reason="and most are so much worse that training does harm"
    )
    certain: float = threshold(
        2.0, unit="standard deviations of an evaluation", reason="a decline below it may be that of a lucky first one"
    )
    count: int = threshold(4, unit="evaluations", reason="with fewer, the run may be too short to judge")
    noisy: float = threshold(
        0.25, unit="fraction of the first value", reason="with noise this large, progress may be there unseen"
    )
    same: int = threshold(5, unit="evaluations", reason="as many equal values are those of outputs that do not change")
    most: float = threshold(0.8, unit="fraction", reason="what is better may be all that few held-out samples can show")
    decibels: float = threshold(15.0, unit="dB", reason="a PSNR below it is that of an image of another place")
    chance: float = threshold(
        0.97, unit="times the limit of a cross-entropy", reason="of a prediction that prefers nothing"
    )
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
        elif (
            not judged
            or max(fallen or 0.0, fall_from_guess(history) or 0.0) > self.fall
            or self._learned(history)
            or all(follows_training(name, history) for name in judged)
        ):
            return ()
        for name, better in judged.items():
            values = history[name].values
            good = self._is_good(name, better, history) or self._comes_back(values, better)
            if good or self._was_learned_before(history, name):
                return ()
            gains, usual = self._gains(values, better)
            # A single good evaluation shows that a run has learned something, even if it was lost later.
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
            fitted = self._is_fitted_early(history, name, better)
            declined = self._became_worse(values, better, self.forgotten if fitted else self.worse)
            why = "training makes it worse than no training (a wrong sign, or wrong targets)"
            if self._learned_at_first(history, name):
                why = "what was trained since then makes it worse (overfitting, or wrong targets)"
            if declined or (not fitted and self._is_always_worse(values, better)):
                text = (
                    f"{name} went from {number(values[0])} to {number(values[-1])} and was never better than at the "
                    f"first evaluation: {why}."
                )
                return self.finding(int(history[name].steps[-1]), text, subject=name)
        return None

    def _learned_at_first(self, history: History, name: str) -> bool:
        """Return whether the loss had fallen to less than half by the first evaluation."""
        if tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
            return False
        loss = history[tags.TOTAL]
        return mean_until(loss, float(history[name].steps[0]), width=8) < self.once * loss_ends(loss)[0]

    def _is_fitted_early(self, history: History, name: str, better: Direction) -> bool:
        """Return whether a metric is a fraction, and training had learned what it measures by the first evaluation."""
        return better == "higher" and self._is_share(history[name].values) and self._learned_at_first(history, name)

    def _lost(self, history: History, judged: Mapping[str, Direction]) -> Finding | None:
        """Return a finding if one of several results became worse from the first evaluation on while the loss fell."""
        if tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
            return None
        loss = history[tags.TOTAL]
        for name, better in judged.items():
            series = history[name]
            values = series.values
            if not name_words(name) & _RESULTS:
                continue
            at = mean_until(loss, float(series.steps[0]), width=8)
            ended = loss_ends(loss)[1]
            fallen = at - ended > self.still * at
            fitted = self._is_fitted_early(history, name, better)
            if fallen and self._became_worse(values, better, self.forgotten if fitted else self.lost):
                text = (
                    f"{name} went from {number(values[0])} to {number(values[-1])} and was never better than at the "
                    f"first evaluation, while {tags.TOTAL} fell from {number(at)} to {number(ended)}: what is trained "
                    "is not what is evaluated (another format or scale of targets or inputs, a sign), or it is "
                    "overfitting."
                )
                return self.finding(int(series.steps[-1]), text, subject=name)
        return None

    def _gains(self, values: NDArray[np.float64], better: Direction) -> tuple[NDArray[np.float64], float]:
        """Return the gain of each later evaluation over the first one, and the usual gain in the second half."""
        gains = gains_over_first(values, better)[1:]
        return gains, float(np.median(gains[len(gains) // 2 :]))

    def _became_worse(self, values: NDArray[np.float64], better: Direction, worse: float) -> bool:
        """Return whether no evaluation was better than the first one, and the later ones are clearly worse."""
        if not np.isfinite(values).all():
            return False
        gains, usual = self._gains(values, better)
        first = abs(float(values[0]))
        certain = usual < -self.certain * noise(values)
        return float(gains.max()) <= self.gain * first and usual < -worse * first and certain

    def _is_always_worse(self, values: NDArray[np.float64], better: Direction) -> bool:
        """Return whether each evaluation is worse than the first one."""
        if not np.isfinite(values).all():
            return False
        gains, usual = self._gains(values, better)
        first = abs(float(values[0]))
        certain = usual < -self.certain * noise(values)
        return float(gains.max()) < -self.each * first and usual < -self.usual * first and certain

    def _unmoved(self, history: History) -> Finding | None:
        """Return a finding if no held-out result is better than at the first evaluation, whatever the loss does."""
        if tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
            return None
        names = [name for name in history.names() if is_result(name, history) and not self._is_setting(name, history)]
        if not names or any(len(history[name]) < self.count for name in names):
            return None
        if any(self._may_be_good(name, history) or not self._stands_still(name, history) for name in names):
            return None
        if all(follows_training(name, history) for name in names):
            return None
        name = names[0]
        values = history[name].values
        loss = history[tags.TOTAL]
        at = mean_until(loss, float(history[name].steps[0]), width=8)
        began, ended = loss_ends(loss)
        fallen = loss_reduction(history)
        text = f"{name} is {number(values[-1])} after {len(values)} evaluations and has not improved on the "
        text += f"{number(values[0])} of the first"
        remedy = self.remedy
        if all(self._shows(each, history, at, began, ended) for each in names):
            text += (
                f", while {tags.TOTAL} fell from {number(at)} to {number(ended)} meanwhile: training learns something "
                "that held-out data do not show, so its targets do not teach what is evaluated."
            )
        elif self._is_at_chance(history) and abs(at - ended) <= self.moved * at:
            text += (
                f", and {tags.TOTAL} has stood still at {number(ended)} since then, with a term at its chance level: "
                "training learned nothing that held-out data show."
            )
            remedy = (
                "Look for terms that cancel each other. Two networks that play against each other need an optimizer "
                "each: give the critic's loss detached samples (fake.detach()), update the critic with it, and update "
                "the generator alone with its own loss."
            )
        elif fallen is not None and fallen <= self.fall:
            text += (
                f", and {tags.TOTAL} fell by only {percent(max(fallen, 0.0), 0)}: training learned nothing that "
                "held-out data show."
            )
        else:
            return None
        return replace(self.finding(int(history[name].steps[-1]), text, subject=name), remedy=remedy)

    def _shows(self, name: str, history: History, at: float, began: float, ended: float) -> bool:
        """Return whether the fall of the loss since the first evaluation would have moved a result."""
        values = history[name].values
        better = direction_of(name, history)
        spent = at - ended > self.part * began
        if better == "lower" and at - ended >= self.error * at:
            # An error that hardly moves stands still even if the loss was near 0 at the first evaluation already.
            return True
        if (
            better == "higher"
            and at - ended > self.part * at
            and (not values.any() or self._is_another_place(name, values))
        ):
            return True
        if at - ended < self.since * at:
            return False
        if better == "higher":
            return spent or (self._is_equal(values) and at - ended > self.most * at)
        return at - ended > self.still * began if not values.any() else self._late_or_poor(values, at, began, ended)

    def _is_another_place(self, name: str, values: NDArray[np.float64]) -> bool:
        """Return whether a PSNR is so low that the images have little in common."""
        return "psnr" in name_words(name) and float(values.max()) < self.decibels

    def _is_equal(self, values: NDArray[np.float64]) -> bool:
        """Return whether all evaluations have the same value, and it is not a good one."""
        equal = len(values) >= self.same and bool((values == values[0]).all())
        return equal and float(values[0]) / whole(values) < self.most

    def _is_at_chance(self, history: History) -> bool:
        """Return whether a term of the loss ends no lower than a prediction that prefers nothing."""
        names = [
            (tags.COMPONENT.tag(event["term"]), float(event["chance"])) for event in history.events("chance_level")
        ]
        return any(name in history and late(history[name]) >= self.chance * limit for name, limit in names)

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
        # Errors that differ by so much from one evaluation to the next cannot show that nothing has moved.
        if better == "lower" and noise(values) > self.noisy * abs(first):
            return False
        if better is None:
            moved = float(np.ptp(values))
        else:
            moved = max(gain_over(first, float(each), better) for each in values)
        if better == "lower":
            return moved <= self.crawl * abs(first)
        if self._is_share(values):
            return moved <= self.apart
        return moved <= self.moved * float(np.abs(values).max())

    def _is_setting(self, name: str, history: History) -> bool:
        """Return whether a metric of unknown direction has the same value each time, so that it measures nothing."""
        values = history[name].values
        return direction_of(name, history) is None and bool(values[0]) and bool((values == values[0]).all())

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
            return float(values[-1]) / whole(values) > _LOW and not self._is_equal(values)
        return self._is_share(values) and float(values[-1]) > 1 - self.best

    def _is_good(self, name: str, better: Direction, history: History) -> bool:
        """Return whether a fraction was near 1 from the first evaluation on, so that it could not improve."""
        values = history[name].values
        known = bool(name_words(name) & (FRACTIONS | ACCURACIES)) or self._is_share(values)
        return better == "higher" and known and float(values.min()) / whole(values) > 1 - self.both

    def _comes_back(self, values: NDArray[np.float64], better: Direction) -> bool:
        """Return whether the last result is the best one, and those between differ from it by more than its size.

        So do those of a game of two networks: a single one says nothing about what was learned.
        """
        gains = gains_over_first(values, better)
        return float(gains[-1]) >= float(gains.max()) and float(gains.min()) < -abs(float(values[0]))

    def _never_better(self, rewards: NDArray[np.float64]) -> bool:
        """Return whether no evaluation was better than the first one by more than noise."""
        best = float(np.max(rewards[1:]))
        return float(rewards[0]) < 0 and best - float(rewards[0]) <= self.gain * abs(float(rewards[0]))

    def _was_learned_before(self, history: History, name: str) -> bool:
        """Return whether the returns of the training had risen by the first evaluation, which shows as good ones."""
        evaluated = history[name]
        if not core_words(name) & _REWARDS:
            return False
        for training in history.names():
            words = name_words(training)
            rows = history[training]
            if not words & _RETURNS or words & _OTHER_RETURNS or len(rows) < 4 * len(evaluated):
                continue
            first = finite_median(rows.start.values[:5])
            risen = mean_until(rows, float(evaluated.steps[0]), width=8) - first
            ended = finite_median(rows.values[-max(len(rows) // 10, 5) :])
            if risen > self.once * abs(first) and float(evaluated.values[-1]) >= ended - self.change * risen:
                return True
        return False

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
class ProgressLost(HealthRule):
    """Held-out results had improved, and at the end they are no better than at the first evaluation.

    All metrics of known direction that had improved must have lost it. A wrong state may have been restored, or the run
    has diverged or overfitted late.
    """

    gain: float = threshold(
        0.05, unit="fraction of the first value", reason="less is within the noise of an evaluation"
    )
    certain: float = threshold(
        2.0,
        unit="standard deviations of an evaluation",
        reason="a smaller fall may be chance, and so may a gain of less than one",
    )
    left: float = threshold(
        0.15, unit="fraction of the gain", reason="with more left, a result is better than at first"
    )
    destroyed: float = threshold(
        0.3,
        unit="fraction of the gain",
        reason="below the first result by more, the end is worse than what had been learned by then, too",
    )
    half: float = threshold(
        0.5, unit="fraction of the gain", reason="reached by two evaluations, it is no noise of one"
    )
    count: int = threshold(4, unit="evaluations", reason="with fewer, there is no course to judge")
    learned: float = threshold(
        0.8, unit="fraction of the fall of the loss", reason="by the first evaluation; the rest may go up and down"
    )
    many: int = threshold(24, unit="recordings", reason="so many are results of single episodes, not evaluations")
    remedy: ClassVar[str] = (
        "Keep and evaluate the best checkpoint. If the loop restores one itself, check which: the sign or mode of its "
        "comparison ('max' for a score, 'min' for a loss), and that the state is copied (copy.deepcopy) when it is "
        "kept. Otherwise look at the step where the result fell: a rate that rises, a loss that diverges, overfitting."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding at the end of the run if what had been gained is lost."""
        if not finished(history):
            return ()
        found: list[Finding] = []
        for name, better in held_out_metrics(history).items():
            steps = history[name].steps
            values = history[name].values
            if len(values) < self.count or not np.isfinite(values).all():
                continue
            if len(values) > self.many:
                # Results of single episodes are noise: compare parts of the run.
                parts = np.array_split(np.arange(len(values)), self.many // 2)
                steps = np.array([steps[part[-1]] for part in parts])
                values = np.array([np.median(values[part]) for part in parts])
            gains = gains_over_first(values, better)
            best = float(gains.max())
            usual = noise(values)
            if best <= max(self.gain * abs(float(values[0])), usual) or best - gains[-1] <= self.certain * usual:
                continue
            lasting = np.count_nonzero(gains > self.half * best) > 1
            destroyed = float(gains[-1]) < -self.destroyed * best
            came_late = not destroyed and self._came_late(history, float(steps[0]))
            if not lasting or gains[-1] > self.left * best or came_late:
                return ()
            at = int(gains.argmax())
            text = (
                f"{name} went from {number(values[0])} to {number(values[at])} at step "
                f"{steps[at]:.0f}, and ended at {number(values[-1])}, no better than at the first "
                "evaluation: the best state is lost (it was not restored, or a worse one was)."
            )
            severity: Severity = "note" if keeps_weights(history) else "warning"
            found.append(self.finding(int(history[name].steps[-1]), text, subject=name, severity=severity))
        return tuple(found[:1])

    def _came_late(self, history: History, step: float) -> bool:
        """Return whether most was learned before the first evaluation, so that it is no start to fall back to."""
        if tags.TOTAL not in history:
            return False
        loss = history[tags.TOTAL]
        began, ended = loss_ends(loss)
        return began - mean_until(loss, step, width=8) > self.learned * (began - ended) > 0


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
        "episodes, and a replay memory that stores copies of the states (an environment may change its arrays in "
        "place); then the weight of the entropy and the learning rate."
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
