"""Rules that compare the outputs with a guess: at the start, at the end, and on held-out data."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding, Severity
from fieldwatch.health.outcomes import (
    ACCURACIES,
    CLASS_SUM_BOUND,
    CLASS_SUM_REASON,
    NATURAL,
    YES_NO,
    agrees,
    classifiers,
    has_improved,
    has_rewards,
    head_median,
    held_out_accuracy,
    held_out_metrics,
    late,
    loss_ends,
    loss_reduction,
    name_words,
    shows_learning,
    single_loss,
    whole,
    yes_no,
)
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.rules.finite import NonFinite
from fieldwatch.health.rules.poor_results import ends_poorly, has_poor_result
from fieldwatch.health.rules.rates import RateTooHigh
from fieldwatch.health.squares import explained_variance, squares_term, target_variance
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished, finite_median
from fieldwatch.record import History, Series, tags

_YES_OR_NO = 2
_OVERLAPS = frozenset(("iou", "jaccard"))
_F1 = frozenset(("f1", "dice"))


def falls_short(history: History) -> bool:
    """Return whether a finished run is at chance level, or far better in training than on held-out data."""
    return bool(ChanceLevel()(history) or TrainingGap()(history))


@dataclass(frozen=True, kw_only=True)
class ChanceLevel(HealthRule):
    """At the end, the training loss is no lower than that of a constant prediction.

    For classes the constant prediction is the distribution of the targets, for squared errors their mean. Both are
    measured from the gradients of the outputs, and only trusted if they agree with the recorded loss. A cross-entropy
    has a limit of its own, whatever its targets are: the logarithm of the number of classes, or of the samples that a
    contrastive loss compares. A run whose evaluations show that it has learned is not judged.

    Attributes:
        kind: kind of the events with the limits of cross-entropies.
    """

    kind: str = "chance_level"

    share: float = threshold(0.95, unit="times the loss of a constant", reason="5 % is the noise of a few batches")
    limit: float = threshold(
        0.97, unit="times the limit", reason="the median of a tenth of the run is hardly noisy; most targets need less"
    )
    agree: float = threshold(
        0.15, unit="fraction of the loss", reason="a loss that the outputs do not explain has another form"
    )
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    count: int = threshold(34, unit="recordings", reason="the first 32 steps, and two later ones")
    remedy: ClassVar[str] = (
        "The model has learned nothing from its input. Check that inputs and targets (labels, pairs) belong together "
        "and are indexed by the same batch, that the input carries information (normalization, positions, encoding) "
        "and reaches the output, and that the loss compares matching shapes over the right axis; then the learning "
        "rate."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding at the end of the run."""
        if not finished(history) or has_rewards(history) or shows_learning(history):
            return ()
        return self._of_targets(history) or self._of_operations(history)

    def _of_operations(self, history: History) -> tuple[Finding, ...]:
        """Return a finding if no cross-entropy of the run is below that of a prediction that prefers nothing."""
        events = {str(event["term"]): event for event in history.events(self.kind)}
        if len(tags.COMPONENT.parts(history.names())) > 1:
            # The players of a game end at log 2 if none of them wins.
            events = {term: event for term, event in events.items() if event["outcomes"] != _YES_OR_NO}
        found: list[Finding] = []
        for term, event in events.items():
            name = tags.COMPONENT.tag(term)
            limit = float(event["chance"])
            if name not in history or len(history[name]) < self.count:
                continue
            ended = loss_ends(history[name])[1]
            if not ended > self.limit * limit:
                # One that is learned shows that the others may be meant, such as that of an adversary.
                return ()
            text = (
                f"term '{term}' ended at {number(ended)}, no better than a {event['operation']} of equal chances for "
                f"all {event['outcomes']} outcomes ({number(limit)}): it is at chance level."
            )
            found.append(self.finding(history.step, text, subject=term))
        return tuple(found[:1])

    def _of_targets(self, history: History) -> tuple[Finding, ...]:
        """Return a finding if a loss is no lower than that of a constant, which the targets give."""
        if has_improved(history):
            return ()
        for item, loss, constant, what in self._measured(history):
            if constant > 0 and loss >= self.share * constant:
                text = (
                    f"the loss ended at {number(loss)}, no better than a constant prediction ({number(constant)}, "
                    f"{what}): '{item}' is at chance level."
                )
                return (self.finding(history.step, text, subject=item),)
        return ()

    def _measured(self, history: History) -> Iterator[tuple[str, float, float, str]]:
        """Yield module, final loss, loss of a constant prediction, and what that is."""
        total = single_loss(history)
        if total is not None:
            yield from self._of_entropies(history, total)
        for item, name in tags.ERROR_SQUARE.parts(history.names()).items():
            explained = explained_variance(history, item)
            squares = squares_term(history, item)
            if len(history[name]) >= self.count and explained is not None and squares is not None:
                last = late(squares[0])
                yield item, last, last / max(1 - explained, 1e-12), "the variance of the targets"

    def _of_entropies(self, history: History, total: Series) -> Iterator[tuple[str, float, float, str]]:
        """Yield the same for losses that are entropies of classes or of yes and no."""
        for item in classifiers(history, self.class_sum):
            implied = history[tags.IMPLIED_LOSS.tag(item)]
            if len(implied) >= self.count and agrees(total, implied, self.agree):
                entropy = float(history[tags.TARGET_ENTROPY.tag(item)].values[-1])
                yield item, late(implied), entropy, "the entropy of the targets"
        for item, name in tags.BINARY_SPREAD.parts(history.names()).items():
            # The form of the gradient alone shows such a loss, whatever its weights.
            if len(history[name]) >= self.count and finite_median(history[name].values) < YES_NO:
                # Of the same samples: the answers that a policy gets become others as it learns.
                guess = late(history[tags.BINARY_GUESS.tag(item)])
                yield item, late(history[tags.BINARY_LOSS.tag(item)]), guess, "the entropy of the targets"


@dataclass(frozen=True, kw_only=True)
class BarelyLearned(HealthRule):
    """The final held-out result is only a little better than that of a prediction without information.

    Judged are accuracies, against the share of the most frequent class among the targets of the training, and metrics
    that are defined by such a prediction (explained variance, correlation, AUC). The next token of a sequence is not
    determined by those before it: nobody knows how much of it can be learned, and it is not judged.
    """

    share: float = threshold(
        0.25,
        unit="of the way from a guess to a perfect result",
        reason="0.48 in the healthy run with the most wrong labels",
        source="measured by benchmarks/verdicts.py",
    )
    natural: float = threshold(
        0.1, unit="of the same way", reason="of numbers, more may be noise that nothing can predict"
    )
    frequent: float = threshold(
        0.6, unit="share of a class", reason="of rarer classes, an accuracy says little, and other metrics are recorded"
    )
    next: float = threshold(0.9, unit="fraction of the targets", reason="as many are the next token of the input")
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    count: int = threshold(3, unit="evaluations", reason="with fewer, the run may be too short to judge")
    remedy: ClassVar[str] = (
        "The run learns, but hardly anything that holds for other data. Check in this order: that inputs and targets "
        "(labels) of the training belong together and are those of the evaluation (order, shift, preprocessing, "
        "normalization, scale); that all gradients of a step reach the update (zero_grad before the first backward "
        "pass, not between those that are accumulated); then the learning rate and its schedule, and the number of "
        "steps."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, the best of such results if it is poor."""
        if not finished(history) or has_rewards(history):
            return ()
        shares = [
            float(history[tags.TARGET_SHARE.tag(item)].values[-1])
            for item in classifiers(history, self.class_sum)
            if not self._continues_sequences(history, item)
        ]
        found: list[tuple[float, float, str, float]] = []
        for name, better in held_out_metrics(history).items():
            values = history[name].values
            if better != "higher" or len(values) < self.count or not np.isfinite(values).all():
                continue
            # The better of the last two: a single evaluation may be unusual.
            last = float(values[-2:].max()) / whole(values)
            natural = [NATURAL[word] for word in name_words(name) if word in NATURAL]
            if natural:
                found.append(((last - natural[0]) / (1 - natural[0]), self.natural, name, natural[0]))
            elif name_words(name) & _PLAIN and len(shares) == 1 and shares[0] < self.frequent and values.min() >= 0:
                guess = self._balanced_guess(history) if name_words(name) & _BALANCED else shares[0]
                found.append(((last - guess) / (1 - guess), self.share, name, guess))
        if not found:
            return ()
        skill, least, name, guess = max(found)
        if not 0 <= skill < least:
            return ()
        text = (
            f"{name} ended at {number(history[name].values[-1])}, hardly better than the {number(guess)} of a guess: "
            f"{percent(skill, 0)} of the way to a perfect result. The training has learned little that held-out data "
            "show."
        )
        return (self.finding(int(history[name].steps[-1]), text, subject=name),)

    def _continues_sequences(self, history: History, item: str) -> bool:
        """Return whether the targets of a module are the next tokens of its input.

        Those before them do not determine the next one, so that the best accuracy may be anything.
        """
        name = tags.NEXT_SHARE.tag(item)
        return name in history and finite_median(history[name].values) > self.next

    def _balanced_guess(self, history: History) -> float:
        """Return the mean accuracy over the classes of any constant answer, from their effective number."""
        item = next(classifiers(history, self.class_sum))
        return float(np.exp(-history[tags.TARGET_ENTROPY.tag(item)].values[-1]))


_PLAIN = frozenset(("accuracy", "acc", "top1", "correct", "right"))
"""Words in the names of metrics that are shares of right answers among all classes."""
_BALANCED = frozenset(("balanced", "macro"))
"""Words of accuracies that are means over the classes: the most frequent one counts no more than any other."""


@dataclass(frozen=True, kw_only=True)
class PairsConfused(HealthRule):
    """Nearly all wrong answers confuse two classes with each other, as often in one direction as in the other."""

    wrong: float = threshold(0.25, unit="fraction of the answers", reason="fewer are left where classes are much alike")
    pairs: float = threshold(
        0.7, unit="fraction of the wrong answers", reason="those of natural classes are spread over more of them"
    )
    count: int = threshold(34, unit="recordings", reason="the first 32 steps, and two later ones")
    remedy: ClassVar[str] = (
        "Look for what makes pairs of classes the same: an augmentation that turns one into the other (a mirror for "
        "left and right, rotations for 6 and 9) has to exchange their labels too, or be left out; then for labels "
        "that were exchanged, and for features that are missing from the input."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per classifier."""
        # The actions of a policy have no labels.
        if not finished(history) or has_rewards(history):
            return ()
        found: list[Finding] = []
        for item, name in tags.WRONG_PAIRS.parts(history.names()).items():
            shares = history[tags.WRONG_SHARE.tag(item)].values
            pairs = float(history[name].values[-1])
            wrong = float(shares[-1])
            if len(shares) < self.count or wrong < self.wrong or pairs < self.pairs:
                continue
            text = (
                f"{percent(wrong, 0)} of the training answers of '{item}' are wrong, and {percent(pairs, 0)} of these "
                "confuse two classes with each other, in both directions: these pairs of classes have conflicting "
                "labels for the same inputs."
            )
            found.append(self.finding(history.step, text, subject=item))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class TrainingGap(HealthRule):
    """The training accuracy, measured from the outputs' gradients, is far above the held-out one.

    A gap that is not much wider is that of few samples if the held-out result has the larger part of what the training
    has above chance, and rises with it up to the end.
    """

    share: float = threshold(
        0.3, unit="difference of accuracies", reason="three of ten samples are right only because they were seen"
    )
    rare: float = threshold(
        0.3, unit="share of yes among the targets", reason="samplers that balance classes draw about half of each"
    )
    kept: float = threshold(
        0.4,
        unit="difference of accuracies",
        reason="few samples are learned by heart while others gain by them, too",
        source="measured by benchmarks/verdicts.py",
    )
    half: float = threshold(
        0.5, unit="fraction of the training result above chance", reason="the larger part of it holds for others"
    )
    near: float = threshold(0.05, unit="difference of accuracies", reason="from the best: it was not lost again")
    even: float = threshold(
        0.5, unit="difference of F1 or IoU", reason="at other shares than in training, the same answers score less"
    )
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    fallen: float = threshold(
        0.9, unit="times the first held-out error", reason="an error that falls shows that something was learned"
    )
    count: int = threshold(34, unit="recordings", reason="the first 32 steps, and two later ones")
    remedy: ClassVar[str] = (
        "Check that training and evaluation agree: the same targets (labels, shift, order), the same preprocessing of "
        "inputs, the same mode. If they do, the training data were learned by heart: use more data, shuffle, "
        "regularize (weight decay, dropout) or take a smaller model, and keep the best checkpoint."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history):
            return ()
        for item in classifiers(history, self.class_sum):
            series = history[tags.HITS.tag(item)]
            if len(series) < self.count:
                continue
            seen = late(series)
            chance = late(history[tags.TARGET_SHARE.tag(item)]) if tags.TARGET_SHARE.tag(item) in history else 0.0
            for name, unseen in held_out_accuracy(history):
                if seen - unseen > self.share and not self._rises_with(history[name].values, seen, chance):
                    text = (
                        f"{percent(seen, 0)} of the training targets of '{item}' are right, but {name} ended at "
                        f"{number(unseen)}: held-out data gain far less (targets or inputs differ, or overfitting)."
                    )
                    return (self.finding(history.step, text, subject=name),)
        found = self._of_yes_no(history) or self._of_squares(history)
        return () if found is None else (found,)

    def _rises_with(self, values: NDArray[np.float64], seen: float, chance: float = 0.0) -> bool:
        """Return whether held-out results have most of the training's above chance, and rise up to the end."""
        fractions = values / whole(values)
        last = float(fractions[-1])
        rises = last > float(fractions[0]) + self.near and last > float(np.nanmax(fractions)) - self.near
        return rises and seen - last <= self.kept and last - chance > self.half * (seen - chance)

    def _of_yes_no(self, history: History) -> Finding | None:
        """Return a finding if yes-or-no targets are found far better in training than on held-out data."""
        for item in yes_no(history):
            names = (tags.BINARY_HITS.tag(item), tags.BINARY_OVERLAP.tag(item))
            if len(history[names[0]]) < self.count:
                continue
            hits, overlap = (late(history[name]) for name in names)
            # Harmonic mean of precision and recall (F1, Dice).
            both = 2 * overlap / (1 + overlap)
            # Training batches with as many yes as no may be drawn so, and overlaps depend on that share.
            share = finite_median(history[tags.BINARY_SHARE.tag(item)].values)
            overlaps = self.share if share < self.rare else self.even
            for name, better in held_out_metrics(history).items():
                words = name_words(name)
                known = [
                    seen
                    for measures, seen in ((_OVERLAPS, overlap), (_F1, both), (ACCURACIES, hits))
                    if words & measures
                ]
                values = history[name].values
                if better != "higher" or not known or float(np.nanmin(values)) < 0:
                    continue
                unseen = float(values[-1]) / whole(values)
                apart = known[0] - unseen > (self.share if words & ACCURACIES else overlaps)
                if apart and not (words & ACCURACIES and self._rises_with(values, known[0], max(share, 1 - share))):
                    text = (
                        f"'{item}' reaches {number(known[0], 2)} on its training targets, but {name} ended at "
                        f"{number(unseen)}: held-out data gain far less (targets or inputs differ, or overfitting)."
                    )
                    return self.finding(history.step, text, subject=name)
        return None

    def _of_squares(self, history: History) -> Finding | None:
        """Return a finding if a loss of squares is far lower in training than the same error on held-out data."""
        for item in tags.ERROR_SQUARE.parts(history.names()):
            variance = target_variance(history, item)
            explained = explained_variance(history, item)
            if variance is None or explained is None:
                continue
            for name, better in held_out_metrics(history).items():
                words = set(re.findall(r"[a-z0-9]+", name.lower()))
                values = history[name].values
                last = float(values[-1])
                unseen = None
                if better == "lower" and words & {"mse", "rmse"}:
                    unseen = 1 - (last if "mse" in words else last**2) / variance
                elif words & {"r2", "explained", "skill", "nse"}:
                    unseen = last
                elif "unexplained" in words:
                    unseen = 1 - last
                first = float(values[0])
                # An error in other units than the loss falls with it.
                learned = better == "lower" and "unexplained" not in words and last < self.fallen * first
                apart = unseen is not None and not learned and explained - unseen > self.share
                if unseen is not None and apart and not (better == "higher" and self._rises_with(values, explained)):
                    text = (
                        f"'{item}' explains {percent(explained, 0)} of the training targets' variance, but {name} "
                        f"ended at {number(last)}, {percent(unseen, 0)} of it: held-out data gain far less (targets or "
                        "inputs differ, or overfitting)."
                    )
                    return self.finding(history.step, text, subject=name)
        return None


@dataclass(frozen=True, kw_only=True)
class InitialLoss(HealthRule):
    """The loss of a classifier starts far above that of a guess: its outputs are far too large before any training.

    A warning if the run diverges or its result is poor, otherwise a note.
    """

    severity: ClassVar[Severity] = "note"
    ratio: float = threshold(
        10.0, unit="times the loss of a guess", reason="usual initializations start within twice that of a guess"
    )
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    remedy: ClassVar[str] = (
        "Normalize the inputs of the layers (features, an adjacency matrix, sums over many neighbors), and use a "
        "smaller scale for the initial weights, so that the first outputs are of order 1; clip gradients and lower "
        "the learning rate until then."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return one finding per module."""
        if history.first > 0:
            return ()
        found: list[Finding] = []
        for item in classifiers(history, self.class_sum):
            first = float(history[tags.IMPLIED_LOSS.tag(item)].values[0])
            guess = float(history[tags.TARGET_ENTROPY.tag(item)].values[0])
            if not guess > 0 or not first > self.ratio * guess:
                continue
            bad = NonFinite()(history) or RateTooHigh()(history) or ends_poorly(history)
            severity: Severity = "warning" if bad else "note"
            text = (
                f"the first outputs of '{item}' have a loss of {number(first)}, {number(first / guess, 2)} times that "
                "of a guess: their scale is far too large at the start, and gradients explode."
            )
            step = int(history[tags.CLASS_SUM.tag(item)].steps[0])
            found.append(self.finding(step, text, subject=item, severity=severity))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class OutputsGrow(HealthRule):
    """The outputs of a module grow to many times their first size and still grow at the end, and the result is poor."""

    ratio: float = threshold(
        20.0, unit="times the first standard deviation", reason="logits grow tenfold while they are learned"
    )
    rise: float = threshold(1.2, unit="times that of the middle of the run", reason="outputs that settle do not grow")
    right: float = threshold(
        0.95, unit="training accuracy", reason="logits of targets that are learned grow as long as they are trained"
    )
    fallen: float = threshold(
        0.5, unit="fraction of the first loss", reason="outputs that diverge do not lower their loss"
    )
    count: int = threshold(34, unit="recordings", reason="the first 32 steps, and two later ones")
    remedy: ClassVar[str] = (
        "Look for targets that are made of the model's own outputs: with bootstrapped values use a discount below 1, "
        "no value behind the end of an episode (terminal states), and a target network; detach the targets. "
        "Otherwise bound or normalize the outputs, and lower the learning rate."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history) or not (has_poor_result(history) or falls_short(history)):
            return ()
        # Outputs that grow while the loss falls are learned, if by heart.
        fallen = loss_reduction(history)
        if fallen is not None and fallen > self.fallen:
            return ()
        found: list[Finding] = []
        for item, name in tags.OUTPUT_STD.parts(history.names()).items():
            series = history[name]
            if len(series) < self.count or "." in item or self._is_learned(history, item):
                continue
            first = head_median(series, 8)
            middle = finite_median(series.values[series.steps <= history.step / 2][-2:])
            last = late(series)
            if first > 0 and last > self.ratio * first and last > self.rise * middle:
                text = (
                    f"the outputs of '{item}' grow without bound: their standard deviation went from {number(first)} "
                    f"over {number(middle)} to {number(last)} (they diverge)."
                )
                found.append(self.finding(history.step, text, subject=item))
        return tuple(found)

    def _is_learned(self, history: History, item: str) -> bool:
        """Return whether nearly all training targets of a classifier are right: its logits grow without any fault."""
        if item in classifiers(history, CLASS_SUM_BOUND) and late(history[tags.HITS.tag(item)]) > self.right:
            return True
        return item in yes_no(history) and late(history[tags.BINARY_HITS.tag(item)]) > self.right
