"""Model of a step's memory as a function of the model's size and the step's work.

The peak is ``a + b * size + c * work`` in an ordinary step, and ``a + b * old size + t * new size`` in a step that
grows the model, which holds the old and the new copies of parameters and moments at the same time.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.forecast.trace import STATES, MemoryTrace, upper_median

LAYOUT_UNCERTAINTY = 0.3
"""Prior standard deviation of ``b``, relative to the value expected from the layout."""
COPIES = 3.0 / STATES
"""Fraction of the layout that growth copies: parameters and both moments, but no gradients. Initial guess of ``t``."""
# Number of rows in a fit: more would cost time at every examination and hardly change the result.
ROWS = 512
# Residuals beyond this many standard deviations lose weight (Huber's k).
_HUBER = 1.5
# Iterations of reweighted least squares; the weights converge within these.
_ROUNDS = 4
_ROBUST = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""
# MiB; below it the rounding of the allocator dominates.
_LEAST_NOISE = 0.25
_TINY = 1e-9
# Prior standard deviation of the exponent of work over size.
_SLOPE_UNCERTAINTY = 0.3
# Number of heaviest views to tabulate: lighter ones never run out of memory first.
_WORST = 64
# Number of latest changes of size for the estimate of `t`: the optimizer's state may be allocated late.
_LATEST = 16


@dataclass(frozen=True, kw_only=True)
class Loads:
    """Memory that views add to a step: view ``v`` adds ``loads[v] * size ** exponent`` MiB.

    Attributes:
        loads: ``[v]`` loads of the heaviest views, at most 64, in descending order.
        share: probability that a step uses a given view: 1 / number of all views.
        names: names of the views; empty strings if the record has none.
        exponent: exponent with which work grows with size.
    """

    loads: NDArray[np.float64]
    share: float
    names: tuple[str, ...]
    exponent: float


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """Fitted memory of a step, in MiB.

    Attributes:
        base: ``a``, memory that does not depend on the model's size.
        per_size: ``b``, memory per unit of size.
        per_work: ``c``, memory per unit of work; 0 if no work is recorded.
        growing: ``t``, memory per unit of new size in a step that grows the model.
        errors: ``[3]`` standard errors of a, b and c.
        covariance: ``[2, 2]`` covariance of a and b.
        noise: standard deviation of an ordinary step around the fit.
        growing_noise: standard deviation of a step that grows the model.
        loads: memory that the views add.
    """

    base: float
    per_size: float
    per_work: float
    growing: float
    errors: NDArray[np.float64]
    covariance: NDArray[np.float64]
    noise: float
    growing_noise: float
    loads: Loads

    @classmethod
    def fit(cls, trace: MemoryTrace) -> Self | None:
        """Fit the model to the ordinary steps of a trace; None if there are fewer than 32."""
        ordinary = np.flatnonzero(~trace.atypical)
        # Fewer rows do not determine three coefficients and the noise.
        if len(ordinary) < 32:
            return None
        rows = _subsample(ordinary)
        values, covariance, noise = _fit_line(trace, rows)
        base, per_size, per_work = (float(value) for value in values)
        # What the views add to the fit.
        excess = trace.peak - base - per_size * trace.size
        loads, noise = _loads(trace, ordinary, excess, per_work, noise)
        growing, growing_noise = _growing(trace, base, per_size, noise)
        return cls(
            base=base,
            per_size=per_size,
            per_work=per_work,
            growing=growing,
            errors=np.sqrt(np.diag(covariance)),
            covariance=covariance[:2, :2],
            noise=noise,
            growing_noise=growing_noise,
            loads=loads,
        )

    def ordinary(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``[v, s]``: the peak in MiB of a step with each of the heaviest views at each size."""
        common = self.base + self.per_size * sizes
        return common + self.loads.loads[:, None] * sizes**self.loads.exponent

    def while_growing(self, old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``[s]``: the peak in MiB of a step that grows the model."""
        return self.base + self.per_size * old + self.growing * new

    def uncertainty(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``[s]``: the standard deviation in MiB of a step's peak around the prediction."""
        variance_base = self.covariance[0, 0]
        covariance = self.covariance[0, 1]
        variance_slope = self.covariance[1, 1]
        return np.sqrt(
            np.maximum(variance_base + 2 * covariance * sizes + variance_slope * sizes**2, 0.0) + self.noise**2
        )


def _subsample(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return at most 512 rows: the last 256, and as many evenly spaced ones from before."""
    if len(rows) <= ROWS:
        return rows
    half = ROWS // 2
    older = np.linspace(0, len(rows) - half - 1, half).astype(np.intp)
    return np.concatenate((rows[older], rows[-half:]))


def _fit_line(trace: MemoryTrace, rows: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return (a, b, c), their covariance and the noise; c is never negative."""
    size = trace.size[rows]
    work = trace.work[rows]
    peak = trace.peak[rows]
    if np.isfinite(work).all():
        values, covariance, noise = _huber(np.stack((np.ones(len(rows)), size, work)), peak, trace.layout)
        # A negative coefficient of work is a fit to noise: fit again without it.
        if values[2] >= 0:
            return values, covariance, noise
    values, covariance, noise = _huber(np.stack((np.ones(len(rows)), size)), peak, trace.layout)
    return np.append(values, 0.0), np.pad(covariance, (0, 1)), noise


def _huber(
    columns: NDArray[np.float64], peak: NDArray[np.float64], layout: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Fit by iteratively reweighted least squares with Huber weights and the layout as the prior of ``b``.

    Args:
        columns: ``[c, n]`` regressors.
        peak: ``[n]`` peak memory, in MiB.
        layout: expected value of ``b``; NaN if unknown.

    Returns:
        The coefficients ``[c]``, their covariance ``[c, c]`` and the standard deviation of the noise.
    """
    # Scaled to 1, because sizes reach 1e7 and the normal equations would lose half of their digits.
    scale = np.abs(columns).max(axis=1)
    columns = columns / scale[:, None]
    weights = np.ones(len(peak))
    noise = max(1.0, float(np.std(peak)))
    # The prior is nearly flat except for `b`, for which the layout of the parameters is a good guess.
    precision = np.full(len(columns), _TINY)
    prior_mean = np.zeros(len(columns))
    if np.isfinite(layout) and layout > 0:
        prior_mean[1] = layout * scale[1]
        precision[1] = (LAYOUT_UNCERTAINTY * prior_mean[1]) ** -2
    values = prior_mean
    covariance = np.diag(1 / precision)
    for _ in range(_ROUNDS):
        weighted = columns * (weights / noise**2)
        # Posterior of a linear model with Gaussian noise and prior.
        covariance = np.linalg.inv(weighted @ columns.T + np.diag(precision)).astype(np.float64)
        values = covariance @ (weighted @ peak + precision * prior_mean)
        residuals = np.abs(peak - values @ columns)
        noise = max(_ROBUST * upper_median(residuals), _LEAST_NOISE)
        # Huber weights: 1 within the limit, inversely proportional to the residual beyond it.
        weights = np.minimum(1.0, _HUBER * noise / np.maximum(residuals, _TINY))
    return values / scale, covariance / np.outer(scale, scale), noise


def _loads(
    trace: MemoryTrace, rows: NDArray[np.intp], excess: NDArray[np.float64], per_work: float, noise: float
) -> tuple[Loads, float]:
    """Return the loads of the views, and the remaining noise.

    With recorded work, the load of a view is the mean work of its visits; without it, the mean excess of their peaks
    over the fit. The mean of a view with few visits is shrunk toward the mean of all views.
    """
    views = trace.views[rows]
    size = trace.size[rows]
    exponent = _exponent(trace, rows) if per_work > 0 else 1.0
    load = (per_work * trace.work[rows] if per_work > 0 else excess[rows]) / size**exponent
    usable = (views >= 0) & np.isfinite(load)
    count = np.bincount(views[usable], minlength=len(trace.names)) if usable.any() else np.zeros(0, np.intp)
    if not count.any():
        return _unnamed_loads(load, exponent, noise, worked=per_work > 0)
    views = views[usable]
    load = load[usable]
    center, spread = _clipped(load[-ROWS:])
    # A single spike must not determine the mean of a view.
    clipped = np.clip(load, center - 6 * spread, center + 6 * spread)
    sums = np.bincount(views, weights=clipped, minlength=len(trace.names))
    visited = np.flatnonzero(count)
    means = sums[visited] / count[visited]
    residuals = clipped - (sums / np.maximum(count, 1))[views]
    freedom = max(len(clipped) - len(visited), 1)
    # One-way analysis of variance: within the visits to one view, and between views.
    variance_within = float(np.square(residuals).sum()) / freedom
    variance_between = max(float(np.var(means)) - variance_within * float(np.mean(1 / count[visited])), 0.0)
    # Shrink each mean toward that of all views by the fraction of its variance that is noise.
    shrunk = center + (means - center) * variance_between / np.maximum(
        variance_between + variance_within / count[visited], 1e-300
    )
    # In descending order.
    worst = np.argsort(shrunk)[::-1][:_WORST]
    names = tuple(trace.names[int(visited[view])] for view in worst)
    loads = Loads(loads=shrunk[worst], share=1 / len(visited), names=names, exponent=exponent)
    scatter = np.sqrt(variance_within) * size[-1] ** exponent
    return loads, float(np.hypot(noise, scatter) if per_work > 0 else max(scatter, _LEAST_NOISE))


def _unnamed_loads(load: NDArray[np.float64], exponent: float, noise: float, *, worked: bool) -> tuple[Loads, float]:
    """Return the loads if views have no names: recent steps represent the future ones."""
    if worked:
        heaviest = np.sort(load[-ROWS:])[::-1]
        share = 1 / len(heaviest)
        loads = heaviest[:_WORST]
    else:
        share = 1.0
        loads = np.zeros(1)
    return Loads(loads=loads, share=share, names=("",) * len(loads), exponent=exponent), noise


def _exponent(trace: MemoryTrace, rows: NDArray[np.intp]) -> float:
    """Return the exponent with which the work of a view grows with size: the slope in log-log space.

    The prior is 1 +- 0.3.
    """
    rows = rows[np.isfinite(trace.work[rows])]
    size = np.log(trace.size[rows])
    work = np.log(trace.work[rows])
    views = trace.views[rows] + 1
    count = np.maximum(np.bincount(views), 1)
    # Center per view, so that the slope is measured within views and not between them.
    size = size - (np.bincount(views, weights=size) / count)[views]
    work = work - (np.bincount(views, weights=work) / count)[views]
    noise = float(np.var(work - size)) + 1e-6
    spread = float(np.square(size).sum()) / noise
    # Posterior mean of the slope under the prior 1 +- 0.3.
    prior = _SLOPE_UNCERTAINTY**-2
    return (float(size @ work) / noise + prior) / (spread + prior)


def _growing(trace: MemoryTrace, base: float, per_size: float, noise: float) -> tuple[float, float]:
    """Return ``t`` and the noise of steps that grow the model; the guess from the layout counts as one more step."""
    grown = 1 + np.flatnonzero(np.diff(trace.size) > 0)
    # The copies may show one recording earlier: depending on the pipeline, the size is read before or after the update.
    peak = np.maximum(trace.peak[grown], trace.peak[grown - 1])[-_LATEST:]
    old = trace.before[grown][-_LATEST:]
    new = trace.size[grown][-_LATEST:]
    guess = COPIES * (trace.layout if np.isfinite(trace.layout) else per_size)
    estimates = np.append((peak - base - per_size * old) / new, guess)
    growing = max(upper_median(estimates), 0.0)
    if not len(peak):
        return growing, noise
    residuals = peak - base - per_size * old - growing * new
    return growing, max(_ROBUST * upper_median(np.abs(residuals)), noise)


def _clipped(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the median and a robust estimate of the standard deviation."""
    center = upper_median(values)
    return center, _ROBUST * upper_median(np.abs(values - center)) + 1e-300
