"""Whether a finished run calls for a cause: facts that may be meant are faults only then."""

import numpy as np

from fieldwatch.health.outcomes import (
    ACCURACIES,
    FRACTIONS,
    NATURAL,
    core_words,
    has_rewards,
    held_out_metrics,
    implied_accuracy_gap,
    loss_ends,
    loss_reduction,
    name_words,
    shows_learning,
)
from fieldwatch.health.rules.earlier import WorseSinceChange, WorseThanEarlier
from fieldwatch.health.rules.progress import NoProgress, RewardNotRising
from fieldwatch.health.rules.results import HeldOutGap, WorseThanNothing
from fieldwatch.health.window import finished, finite_median, is_signed
from fieldwatch.record import History, tags

_LOW = 0.5
"""Held-out fractions below it, or losses above this part of the first one, are far from done."""
_VERY_LOW = 0.2
"""Held-out fractions below it are near 0."""
_POOR = 0.3
"""Relative fall of the loss below which a run has learned little."""
_HALF = 0.5
"""The same for a run whose loss has stalled."""
_GAINED = 0.5
"""Gain of a held-out result, as a fraction of its first value, that shows learning whatever the loss does."""
_STALLED = 0.9
"""Ratio of the loss in the last and in the second quarter of a run above which it has stalled."""
_LEAST_QUARTER = 16
"""Least number of losses in a quarter."""
_FAR = 3.0
"""Ratio of held-out and training loss from which the training data were learned by heart."""
_IMPLIED = 0.25
"""Difference between the accuracy that the training loss implies and the held-out one."""


def ends_poorly(history: History) -> bool:
    """Return whether a run has ended with a result that calls for a cause.

    Rules for facts that are no fault by themselves (one batch that is all of the data, batch norms of one sample) are
    warnings only then: the loss has hardly fallen, or held-out data show far less than the training data. A policy is
    judged by its returns and evaluations, since its loss need not fall.
    """
    if not finished(history):
        return False
    if has_rewards(history):
        return has_poor_result(history) or bool(RewardNotRising()(history))
    fallen = loss_reduction(history)
    # The losses of two networks that play against each other need not fall either.
    hardly = fallen is not None and fallen < _POOR and not shows_learning(history, gain=_GAINED)
    if hardly or (fallen is not None and fallen < _HALF and has_stalled(history) and not is_good(history)):
        return True
    return has_poor_result(history) or _learned_by_heart(history) or _is_low(history)


def _is_low(history: History) -> bool:
    """Return whether a held-out fraction (accuracy, overlap) is near 0 at the end, and no other one is high."""
    fractions = [
        float(history[name].values[-1])
        for name, better in held_out_metrics(history).items()
        if better == "higher" and name_words(name) & FRACTIONS and float(np.nanmin(history[name].values)) >= 0
    ]
    return bool(fractions) and min(fractions) < _VERY_LOW and max(fractions) < _LOW


def is_good(history: History, least: float = 0.8) -> bool:
    """Return whether a held-out fraction or correlation is near its best value.

    Args:
        history: record of the run.
        least: value from which it is, of 1 or of 100 %.
    """
    for name, better in held_out_metrics(history).items():
        bounded = name_words(name) & (FRACTIONS | ACCURACIES | set(NATURAL))
        last = float(history[name].values[-1])
        if better == "higher" and bounded and (least <= last <= 1 or 100 * least <= last <= 100):
            return True
    return False


def has_stalled(history: History) -> bool:
    """Return whether the loss of a finished run has hardly fallen after its first quarter, and was not low by then."""
    if not finished(history) or tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
        return False
    loss = history[tags.TOTAL]
    values = loss.values
    quarter = len(values) // 4
    if quarter < _LEAST_QUARTER:
        return False
    first, second, last = (
        finite_median(part) for part in (loss.start.values[:5], values[quarter : 2 * quarter], values[-quarter:])
    )
    return last > _STALLED * second and last > _LOW * first


def has_poor_result(history: History) -> bool:
    """Return whether held-out results are poor, whatever the loss says: in a game, losses need not fall."""
    # A note is about another experiment.
    worse = [each for rule in (WorseThanEarlier(), WorseSinceChange()) for each in rule(history)]
    if any(each.severity != "note" for each in worse):
        return True
    return bool(NoProgress()(history)) or _falls_behind(history) or bool(WorseThanNothing()(history))


def learned_by_heart(history: History) -> bool:
    """Return whether the training loss has fallen and held-out data show nothing of it."""
    fallen = loss_reduction(history)
    if not finished(history) or fallen is None or fallen < _POOR:
        return False
    return bool(NoProgress()(history)) or _falls_behind(history) or _learned_by_heart(history)


def _falls_behind(history: History) -> bool:
    """Return whether held-out data show far less than those of the training; a note says that it was not lost."""
    return any(gap.severity != "note" for gap in HeldOutGap()(history))


def _learned_by_heart(history: History) -> bool:
    """Return whether the final loss is far below that of held-out data, or implies a far higher accuracy."""
    if tags.TOTAL not in history or is_signed(history[tags.TOTAL].values):
        return False
    began, ended = loss_ends(history[tags.TOTAL])
    for name, better in held_out_metrics(history).items():
        last = float(history[name].values[-1])
        if better == "lower" and "loss" in core_words(name) and last > _FAR * ended and last - ended > 0.05 * began:
            return True
        if ended < began and implied_accuracy_gap(history, name, ended) > _IMPLIED:
            return True
    return False
