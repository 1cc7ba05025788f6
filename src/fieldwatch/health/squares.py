"""What is known of targets if a loss, or a term of it, is the mean of a module's squared errors."""

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.outcomes import single_loss
from fieldwatch.health.window import finite_median, is_signed
from fieldwatch.record import History, Series, tags

_SAME_FACTOR = 0.02
"""Relative deviation of the factor between squared errors and the loss from step to step: rounding of subsampling."""
_VARIED = 0.1
"""Relative range of a loss from which on a constant factor is no chance."""
_LEAST_VARIED = 4
"""Losses that have to vary before their factor says anything."""


def target_variance(history: History, item: str) -> float | None:
    """Return the variance of a module's targets at the last steps, if the loss is a mean of squares; otherwise None.

    Args:
        history: record of the run.
        item: name of a tracked module.
    """
    found = _squares(history, item)
    return None if found is None else found[1]


def explained_variance(history: History, item: str) -> float | None:
    """Return the share of the targets' variance that a module explained at the last steps.

    Args:
        history: record of the run.
        item: name of a tracked module.

    Returns:
        1 for a perfect prediction, 0 for the mean of the targets; None if the loss is no mean of squares.
    """
    found = _squares(history, item)
    return None if found is None else 1 - found[0] / found[1]


def variance_explained_by_loss(history: History, item: str) -> float | None:
    """Return the share of the targets' variance that a module explained, from the losses of the last tenth of the run.

    The loss is recorded at every step, the targets are measured at some only: those of the second half count.

    Args:
        history: record of the run.
        item: name of a tracked module.

    Returns:
        1 for a perfect prediction, 0 for the mean of the targets; None if the loss is no mean of squares.
    """
    found = squares_term(history, item)
    variances = None if found is None else _target_variances(history, item, found[1])
    if found is None or variances is None:
        return None
    loss = found[0].values
    late = loss[-max(len(loss) // 10, 5) :]
    variance = finite_median(variances[len(variances) // 2 :])
    return 1 - float(np.nanmean(late)) / variance if variance > 0 and np.isfinite(late).any() else None


def squares_factor(history: History, item: str) -> float | None:
    """Return the factor between the mean of a module's squared errors and the loss; None if it is no loss of squares.

    Half of the squares and sums over pieces have a factor, too. It is the same at all steps.
    """
    found = squares_term(history, item)
    return None if found is None else found[1]


def squares_term(history: History, item: str) -> tuple[Series, float] | None:
    """Return the loss, or the term of it, that is a mean of a module's squared errors, and the factor between both.

    The errors are those of the gradient that the module's output receives, so no other term may depend on that output.
    Of several terms, that of the only module counts: players of a game have targets that are not meant to be met.

    Args:
        history: record of the run.
        item: name of a tracked module.
    """
    name = tags.ERROR_SQUARE.tag(item)
    if name not in history:
        return None
    total = single_loss(history)
    losses = [] if total is None else [total]
    if total is None and len(tags.INPUT_MARK.parts(history.names())) == 1:
        terms = [history[term] for term in tags.COMPONENT.parts(history.names()).values()]
        losses = [term for term in terms if not is_signed(term.values)]
    for loss in losses:
        factor = _factor_of_squares(loss, history[name])
        if factor is not None:
            return loss, factor
    return None


def _factor_of_squares(loss: Series, square: Series) -> float | None:
    """Return the factor between a loss and squared errors, None if it is not the same at all steps."""
    places = np.minimum(np.searchsorted(loss.steps, square.steps), len(loss) - 1)
    factor = loss.values[places] / np.maximum(square.values, 1e-30)
    scale = finite_median(factor)
    if scale > 0 and float(np.nanmax(np.abs(factor[:32] / scale - 1))) <= _SAME_FACTOR:
        return scale
    # A Huber loss is one of squares once its errors are small.
    return _late_factor(factor, loss.values[places])


def _squares(history: History, item: str) -> tuple[float, float] | None:
    """Return the mean squared error and the variance of the targets at the last steps."""
    scale = squares_factor(history, item)
    variances = None if scale is None else _target_variances(history, item, scale)
    if scale is None or variances is None:
        return None
    spread = finite_median(variances[-4:])
    error, variance = (
        finite_median(history[family.tag(item)].values[-4:]) for family in (tags.ERROR_VARIANCE, tags.OUTPUT_VARIANCE)
    )
    # Targets without any spread are another fault, or rounding.
    if spread <= 1e-9 * max(variance, scale * error, 1e-30):
        return None
    return finite_median(scale * history[tags.ERROR_SQUARE.tag(item)].values[-4:]), spread


def _target_variances(history: History, item: str, scale: float) -> NDArray[np.float64] | None:
    """Return the variance of a module's targets at each measured step; None if something was not measured.

    The targets are outputs minus errors.

    Args:
        history: record of the run.
        item: name of a tracked module.
        scale: factor between the mean of the squared errors and the loss.
    """
    families = (tags.ERROR_VARIANCE, tags.ERROR_COVARIANCE, tags.OUTPUT_VARIANCE)
    names = [family.tag(item) for family in families]
    if any(name not in history for name in names):
        return None
    error, covariance, variance = (history[name].values for name in names)
    return variance - 2 * np.sqrt(scale) * covariance + scale * error


def _late_factor(factor: NDArray[np.float64], loss: NDArray[np.float64]) -> float | None:
    """Return the factor between squared errors and the loss in the last third; None if it is not the same there."""
    begin = 2 * len(factor) // 3
    factors = factor[begin:]
    losses = loss[begin:]
    scale = finite_median(factors)
    # Losses that hardly differ have the same factor to anything.
    varied = len(losses) >= _LEAST_VARIED and float(np.ptp(losses)) > _VARIED * float(np.max(np.abs(losses)))
    if not (scale > 0 and varied) or float(np.nanmax(np.abs(factors / scale - 1))) > _SAME_FACTOR:
        return None
    return scale
