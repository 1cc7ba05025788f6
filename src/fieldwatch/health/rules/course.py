"""Rules for what a run left out: steps that were planned, and parts of the targets that were never learned."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from fieldwatch.base import number
from fieldwatch.health.finding import Finding
from fieldwatch.health.outcomes import (
    ACCURACIES,
    FRACTIONS,
    NATURAL,
    direction_of,
    is_result,
    loss_ends,
    name_words,
    whole,
)
from fieldwatch.health.places import loaders
from fieldwatch.health.rule import HealthRule
from fieldwatch.health.thresholds import threshold
from fieldwatch.health.window import ENDED, finished, finite_median, is_signed, planned_steps
from fieldwatch.record import History, tags


@dataclass(frozen=True, kw_only=True)
class EndedEarly(HealthRule):
    """The loop ended in order after a small part of its planned steps, before the loss had fallen much.

    An early stop on purpose comes after a result has stopped improving; this one came before anything was learned.
    """

    part: float = threshold(
        0.25, unit="fraction of the planned steps", reason="an early stop that waits for a result takes longer"
    )
    left: float = threshold(
        0.7, unit="fraction of the first loss", reason="with more left, the loss has not been given time to fall"
    )
    least: int = threshold(5, unit="recorded losses", reason="a loop of fewer steps was only tried out")
    most: float = threshold(
        0.9, unit="fraction of the planned steps", reason="of a loop that ends with its data; the rest is not missed"
    )
    remedy: ClassVar[str] = (
        "Check what ends the loop early: count its patience in evaluations of held-out data or in epochs, not in "
        "batches, whose losses go up and down; compare in the right direction (a loss falls, a score rises); and "
        "train for more steps."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return a finding if the last segment of the run ended early."""
        planned = planned_steps(history)
        ended = history.events(ENDED)
        if planned is None or not ended or tags.TOTAL not in history:
            return ()
        done = history.step + 1
        is_over = int(ended[-1]["steps"]) >= done
        # zip() begins one more step before it asks the loader.
        passed = (done - history.first, done - history.first - 1)
        exhausted = [each for each in loaders(history) if each["batches"] and each["batches"] in passed]
        if is_over and exhausted and done < self.most * planned:
            return (self._of_data(history, planned, exhausted[0]),)
        loss = history[tags.TOTAL]
        if not is_over or done > self.part * planned or len(loss) < self.least or is_signed(loss.values):
            return ()
        began, last = loss_ends(loss)
        if not last > self.left * began:
            return ()
        text = (
            f"the loop ended after {done} of {planned} planned steps, when {tags.TOTAL} had gone from {number(began)} "
            f"to {number(last)}: it stopped before the model had learned much."
        )
        return (self.finding(history.step, text),)

    def _of_data(self, history: History, planned: int, loader: Mapping[str, Any]) -> Finding:
        text = (
            f"the loop ended after {history.step + 1} of {planned} planned steps, when the loader '{loader['name']}' "
            f"had no more of its {loader['batches']} batches: it stopped early, after one pass over the data."
        )
        remedy = (
            "Repeat the data: iterate over the loader again in each epoch, for epoch in range(epochs), or let "
            "run.batches(loader) start it anew; zip() ends with the shorter of the steps and the batches."
        )
        return replace(self.finding(history.step, text), remedy=remedy)


@dataclass(frozen=True, kw_only=True)
class PartNotLearned(HealthRule):
    """One of several results of the same kind (classes, heads, horizons) stays near 0 while another one is high.

    Results of one kind have the same group and the same words but for the last, such as ``IoU/road`` and ``IoU/sky``.
    Each has to be a fraction, or a metric that is 0 without information.
    """

    low: float = threshold(
        0.1, unit="of at most 1", reason="a part that is learned at all gets further, even a rare one"
    )
    high: float = threshold(
        0.7, unit="of at most 1", reason="what is learned this well shows that the training works in general"
    )
    rising: float = threshold(
        0.2, unit="of at most 1", reason="gain of another part at the last evaluation: parts are learned in turn"
    )
    parts: int = threshold(3, unit="results", reason="of two, one may be a task of another kind")
    evaluations: int = threshold(3, unit="evaluations", reason="with fewer, there is no course to judge")
    remedy: ClassVar[str] = (
        "Look at the targets of that part: which label, class index or mask it has in training and in the evaluation "
        "(an index off by one, unlabeled data that count as a class, ignored values: ignore_index), how often it "
        "occurs (class weights, sampling), and whether its head and its term of the loss are trained."
    )

    def __call__(self, history: History) -> tuple[Finding, ...]:
        """Return, at the end of the run, the lowest part of each kind of result."""
        if not finished(history):
            return ()
        return tuple(self._judged(history))

    def _judged(self, history: History) -> Iterator[Finding]:
        kinds: dict[str, list[str]] = {}
        for name in history.names():
            if is_result(name, history) and self._is_bounded(name, history):
                kinds.setdefault(name.rpartition("/")[0], []).append(name)
        for group, names in kinds.items():
            if not group or len(names) < self.parts or len({_stem(name) for name in names}) > 1:
                continue
            # The median of the last two: single evaluations vary.
            ends = {name: finite_median(history[name].values[-2:]) / whole(history[name].values) for name in names}
            worst = min(ends, key=lambda name: ends[name])
            best = max(ends, key=lambda name: ends[name])
            gained = max(float(np.diff(history[name].values[-2:])[0]) / whole(history[name].values) for name in names)
            if ends[worst] < self.low and ends[best] > self.high and gained < self.rising:
                text = (
                    f"{worst} ended at {number(ends[worst])}, although {best} reached {number(ends[best])}: this part "
                    "of the targets was not learned."
                )
                yield self.finding(int(history[worst].steps[-1]), text, subject=worst)

    def _is_bounded(self, name: str, history: History) -> bool:
        """Return whether a result is at most 1 (or 100 %) and 0 without information."""
        values = history[name].values
        known = name_words(name) & (FRACTIONS | ACCURACIES | {word for word in NATURAL if NATURAL[word] == 0})
        if not known or direction_of(name, history) != "higher" or len(values) < self.evaluations:
            return False
        return bool(np.isfinite(values).all())


def _stem(name: str) -> frozenset[str]:
    """Return the words by which a metric is a result of some kind, without those of the part that it is for."""
    return frozenset(name_words(name) & (FRACTIONS | ACCURACIES | frozenset(NATURAL)))
