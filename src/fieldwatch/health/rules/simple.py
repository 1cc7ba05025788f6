"""Rules that compare a module with simple models of the same data, which fieldwatch fits itself."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fieldwatch.base import number, percent
from fieldwatch.health.finding import Finding
from fieldwatch.health.outcomes import (
    CLASS_SUM_BOUND,
    CLASS_SUM_REASON,
    NATURAL,
    classifiers,
    has_rewards,
    held_out_accuracy,
    held_out_metrics,
    late,
    loss_ends,
    name_words,
    single_loss,
)
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.squares import explained_variance, squares_factor, variance_explained_by_loss
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import finished
from fieldwatch.record import History, tags


@dataclass(frozen=True, kw_only=True)
class LosesToSimpleModel(HealthRule):
    """A module predicts its targets worse than a linear model or nearest neighbors of its own inputs.

    Both are fitted to half of the samples of the first measured steps, and tested on the other half, so they have seen
    far less than the module. Its best result counts, on training or on held-out data.
    """

    margin: float = threshold(
        0.1, unit="share of right answers, or of the variance", reason="a few hundred samples give it to within 0.05"
    )
    apart: float = threshold(
        0.25, unit="share of the variance", reason="of held-out data, which may be harder than those of the training"
    )
    factor: float = threshold(
        0.02, unit="difference of the factor from 1", reason="targets are known if the loss is a mean of squares"
    )
    about: float = threshold(
        3.0, unit="times the mean of squares", reason="of half of the squares, targets are known roughly"
    )
    samples: int = threshold(96, unit="samples", reason="with fewer that differ, the test is too uncertain")
    class_sum: float = threshold(CLASS_SUM_BOUND, unit="fraction of the gradient", reason=CLASS_SUM_REASON)
    remedy: ClassVar[str] = (
        "The inputs tell more of the targets than the module has learned, so the data are fine. Look at the training: "
        "the learning rate and its schedule, the number of steps, the initialization, the weight decay, dropout and "
        "normalization, weights of the terms, layers that are frozen or that lose the input (pooling, saturated "
        "activations, a bottleneck)."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, one finding per module."""
        if not finished(history) or has_rewards(history):
            return ()
        return (*self._of_classes(history), *self._of_numbers(history)) or tuple(self._of_held_out(history))

    def _of_classes(self, history: History) -> Iterator[Finding]:
        for item in classifiers(history, self.class_sum):
            best = self._best(history, item, tags.LINEAR_HITS, tags.NEAREST_HITS)
            if best is None:
                continue
            value, what = best
            own = max([late(history[tags.HITS.tag(item)]), *(last for _, last in held_out_accuracy(history))])
            if value - own > self.margin:
                text = (
                    f"{what} fitted to some hundred samples of the training finds {percent(value, 0)} of the targets "
                    f"of '{item}' from its inputs, more than the {percent(own, 0)} that it finds itself: it is worse "
                    "than a simple model of the same data, so it has learned too little."
                )
                yield self.finding(history.step, text, subject=item)

    def _of_numbers(self, history: History) -> Iterator[Finding]:
        for item in tags.ERROR_SQUARE.parts(history.names()):
            best = self._best(history, item, tags.LINEAR_EXPLAINED, tags.NEAREST_EXPLAINED)
            factor = squares_factor(history, item)
            explained = explained_variance(history, item)
            if best is None or factor is None or explained is None or abs(factor - 1) > self.factor:
                continue
            value, what = best
            held_out = [
                float(history[name].values[-1])
                for name in held_out_metrics(history)
                if {word for word in name_words(name) if NATURAL.get(word) == 0}
            ]
            # Four measured batches give less than hundreds of losses.
            of_losses = variance_explained_by_loss(history, item)
            own = max(explained, explained if of_losses is None else of_losses, *held_out)
            if value - own > self.margin:
                text = (
                    f"{what} fitted to some hundred samples of the training explains {percent(value, 0)} of the "
                    f"targets of '{item}' from its inputs, more than the {percent(own, 0)} that it explains itself: it "
                    "is worse than a simple model of the same data, so it has learned too little."
                )
                yield self.finding(history.step, text, subject=item)

    def _of_held_out(self, history: History) -> Iterator[Finding]:
        """Yield a finding if held-out data gain less from the module than training data do from a simple model."""
        for item in tags.SIMPLE_COUNT.parts(history.names()):
            best = self._best(history, item, tags.LINEAR_EXPLAINED, tags.NEAREST_EXPLAINED)
            if best is None or not self._answers(history, item):
                continue
            value, what = best
            for name, better in held_out_metrics(history).items():
                values = history[name].values
                if better != "higher" or not name_words(name) & _EXPLAINED or len(values) < 2:
                    continue
                # The better of the last two: a single evaluation may be unusual.
                if value - float(np.max(values[-2:])) > self.apart:
                    text = (
                        f"{what} fitted to some hundred samples of the training explains {percent(value, 0)} of the "
                        f"targets of '{item}' from its inputs, but {name} ended at {number(values[-1])}: held-out data "
                        "gain far less from the module than the training data do from a simple model."
                    )
                    yield replace(self.finding(history.step, text, subject=name), remedy=_DIFFER)
                    return

    def _answers(self, history: History, item: str) -> bool:
        """Return whether the outputs of a module are compared with targets, as far as its gradients tell.

        Features that another module gets have gradients of any size. A Huber loss is nearly one of squares.
        """
        total = single_loss(history)
        name = tags.ERROR_SQUARE.tag(item)
        if item in classifiers(history, self.class_sum):
            return False
        if total is None or name not in history or len(tags.INPUT_MARK.parts(history.names())) > 1:
            return False
        ratio = loss_ends(total)[1] / max(late(history[name]), 1e-30)
        return 1 / self.about < ratio < self.about

    def _best(self, history: History, item: str, linear: tags.Family, nearest: tags.Family) -> tuple[float, str] | None:
        """Return the score of the better model and its name; None if there was no test."""
        names = [family.tag(item) for family in (tags.SIMPLE_COUNT, linear, nearest)]
        if any(name not in history for name in names):
            return None
        number, of_linear, of_nearest = (float(history[name].values[-1]) for name in names)
        if number < self.samples:
            return None
        return max((of_linear, "a linear model"), (of_nearest, "a model of nearest neighbors"))


_EXPLAINED = frozenset(("r2", "explained", "skill", "nse"))
"""Words in the names of metrics that are shares of the variance."""
_DIFFER = (
    "Look for what differs between training and held-out data: the same preprocessing (normalization, resampling, "
    "filling of gaps), the same targets (unit, transform, shift) and the same distribution of the inputs. Then look at "
    "the training: the learning rate, the number of steps, and overfitting."
)
