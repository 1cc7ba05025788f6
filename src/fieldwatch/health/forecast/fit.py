"""The memory of a step as a function of the model's size and the step's work.

``peak = a + b * size + c * work`` for an ordinary step, and ``a + b * old size + t * new size`` for one that grows the
model: there old and new copies of parameters and moments stand side by side.
"""

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.forecast.trace import STATES, MemoryTrace, upper_median

LAYOUT_UNCERTAINTY = 0.3
"""Standard deviation of ``b`` about the layout's value, as a share of it, before anything was measured."""
COPIES = 3.0 / STATES
"""Share of the layout that growth copies: parameters and both moments, but not gradients. A first guess for ``t``."""
# Rows of one fit: more cost time at every examination and hardly change the result.
ROWS = 512
# Residuals beyond so many standard deviations lose weight (Huber's k).
_HUBER = 1.5
# Rounds of reweighted least squares; the weights settle within these.
_ROUNDS = 4
_ROBUST = 1.4826
"""A normal distribution's standard deviation over its median distance from the middle."""
# MiB; below it the allocator's rounding decides.
_LEAST_NOISE = 0.25
_TINY = 1e-9
_SLOPE_UNCERTAINTY = 0.3
# Heaviest views that are tabulated: lighter ones never run out of memory first.
_WORST = 64
# Latest changes of size that `t` is estimated from: the optimizer's state may come late.
_LATEST = 16


@dataclass(frozen=True, kw_only=True)
class Loads:
    """What views add to a step's memory: view ``v`` adds ``loads[v] * size ** exponent`` MiB.

    Attributes:
        loads: ``[v]``, the heaviest first, at most 64.
        share: how often a step sees one of them: 1 / number of all views.
        names: the views' names; empty names where the record has none.
        exponent: how work grows with size.
    """

    loads: NDArray[np.float64]
    share: float
    names: tuple[str, ...]
    exponent: float


@dataclass(frozen=True, kw_only=True)
class MemoryModel:
    """The fitted memory of a step, in MiB.

    Attributes:
        base: ``a``, what does not depend on the model's size.
        per_size: ``b``, per unit of size.
        per_work: ``c``, per unit of work; 0 where no work is recorded.
        growing: ``t``, per unit of new size in a step that grows the model.
        errors: ``[3]`` standard errors of a, b and c.
        covariance: ``[2, 2]`` of a and b.
        noise: standard deviation of an ordinary step about the fit.
        growing_noise: the same for a step that grows the model.
        loads: what the views add.
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
        """Fit to the ordinary steps of a trace; None where there are fewer than 32."""
        ordinary = np.flatnonzero(~trace.atypical)
        if len(ordinary) < 32:
            return None
        rows = _subsample(ordinary)
        values, covariance, noise = _fit_line(trace, rows)
        base, per_size, per_work = (float(value) for value in values)
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
        """Return ``[v, s]``: the peak of a step on each of the heaviest views at each size."""
        common = self.base + self.per_size * sizes
        return common + self.loads.loads[:, None] * sizes**self.loads.exponent

    def while_growing(self, old: NDArray[np.float64], new: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``[s]``: the peak of a step that grows the model."""
        return self.base + self.per_size * old + self.growing * new

    def uncertainty(self, sizes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``[s]``: standard deviation of one step's peak about the prediction."""
        variance_base = self.covariance[0, 0]
        covariance = self.covariance[0, 1]
        variance_slope = self.covariance[1, 1]
        return np.sqrt(
            np.maximum(variance_base + 2 * covariance * sizes + variance_slope * sizes**2, 0.0) + self.noise**2
        )


def _subsample(rows: NDArray[np.intp]) -> NDArray[np.intp]:
    """Return at most 512 of the rows: the last 256, and as many from all before."""
    if len(rows) <= ROWS:
        return rows
    half = ROWS // 2
    older = np.linspace(0, len(rows) - half - 1, half).astype(np.intp)
    return np.concatenate((rows[older], rows[-half:]))


def _fit_line(trace: MemoryTrace, rows: NDArray[np.intp]) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Return (a, b, c), their covariance and the noise; c is not negative."""
    size = trace.size[rows]
    work = trace.work[rows]
    peak = trace.peak[rows]
    if np.isfinite(work).all():
        values, covariance, noise = _huber(np.stack((np.ones(len(rows)), size, work)), peak, trace.layout)
        # A negative factor of work is a fit to noise: it is then left out.
        if values[2] >= 0:
            return values, covariance, noise
    values, covariance, noise = _huber(np.stack((np.ones(len(rows)), size)), peak, trace.layout)
    return np.append(values, 0.0), np.pad(covariance, (0, 1)), noise


def _huber(
    columns: NDArray[np.float64], peak: NDArray[np.float64], layout: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
    """Fit with Huber's weights, so that spikes count little, and with the layout as the prior of the size's factor."""
    # Scaled to 1: sizes reach 1e7, and the normal equations would lose half of their digits.
    scale = np.abs(columns).max(axis=1)
    columns = columns / scale[:, None]
    weights = np.ones(len(peak))
    noise = max(1.0, float(np.std(peak)))
    # Nearly flat, except for the factor of size, of which the layout of the parameters is a good guess.
    precision = np.full(len(columns), _TINY)
    prior_mean = np.zeros(len(columns))
    if np.isfinite(layout) and layout > 0:
        prior_mean[1] = layout * scale[1]
        precision[1] = (LAYOUT_UNCERTAINTY * prior_mean[1]) ** -2
    values = prior_mean
    covariance = np.diag(1 / precision)
    for _ in range(_ROUNDS):
        weighted = columns * (weights / noise**2)
        # Posterior of a linear fit with Gaussian noise and prior.
        covariance = np.linalg.inv(weighted @ columns.T + np.diag(precision)).astype(np.float64)
        values = covariance @ (weighted @ peak + precision * prior_mean)
        residuals = np.abs(peak - values @ columns)
        noise = max(_ROBUST * upper_median(residuals), _LEAST_NOISE)
        # Huber's weights: 1 within the limit, falling with the residual beyond it.
        weights = np.minimum(1.0, _HUBER * noise / np.maximum(residuals, _TINY))
    return values / scale, covariance / np.outer(scale, scale), noise


def _loads(
    trace: MemoryTrace, rows: NDArray[np.intp], excess: NDArray[np.float64], per_work: float, noise: float
) -> tuple[Loads, float]:
    """Return what each view adds, and the noise that is left.

    With recorded work a view's load follows from its own visits' work; without it, from what the visits' peaks have
    above the fit. A view's mean is drawn to that of all by what its few visits do not say.
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
    # One spike must not decide a view's mean.
    clipped = np.clip(load, center - 6 * spread, center + 6 * spread)
    sums = np.bincount(views, weights=clipped, minlength=len(trace.names))
    visited = np.flatnonzero(count)
    means = sums[visited] / count[visited]
    residuals = clipped - (sums / np.maximum(count, 1))[views]
    freedom = max(len(clipped) - len(visited), 1)
    # One-way analysis of variance: between the visits to one view, and between views.
    variance_within = float(np.square(residuals).sum()) / freedom
    variance_between = max(float(np.var(means)) - variance_within * float(np.mean(1 / count[visited])), 0.0)
    # Shrink each mean towards that of all views by the share of its variance that is noise.
    shrunk = center + (means - center) * variance_between / np.maximum(
        variance_between + variance_within / count[visited], 1e-300
    )
    worst = np.argsort(shrunk)[::-1][:_WORST]
    names = tuple(trace.names[int(visited[view])] for view in worst)
    loads = Loads(loads=shrunk[worst], share=1 / len(visited), names=names, exponent=exponent)
    scatter = np.sqrt(variance_within) * size[-1] ** exponent
    return loads, float(np.hypot(noise, scatter) if per_work > 0 else max(scatter, _LEAST_NOISE))


def _unnamed_loads(load: NDArray[np.float64], exponent: float, noise: float, *, worked: bool) -> tuple[Loads, float]:
    """Return the loads of steps whose views have no names: the recorded ones stand for those to come."""
    if worked:
        heaviest = np.sort(load[-ROWS:])[::-1]
        share = 1 / len(heaviest)
        loads = heaviest[:_WORST]
    else:
        share = 1.0
        loads = np.zeros(1)
    return Loads(loads=loads, share=share, names=("",) * len(loads), exponent=exponent), noise


def _exponent(trace: MemoryTrace, rows: NDArray[np.intp]) -> float:
    """Return how the work of one and the same view grows with size: the slope between their logarithms.

    Before anything is measured it is 1, give or take 0.3.
    """
    rows = rows[np.isfinite(trace.work[rows])]
    size = np.log(trace.size[rows])
    work = np.log(trace.work[rows])
    views = trace.views[rows] + 1
    count = np.maximum(np.bincount(views), 1)
    # Relative to each view's mean: what remains is the slope within a view, not between views.
    size = size - (np.bincount(views, weights=size) / count)[views]
    work = work - (np.bincount(views, weights=work) / count)[views]
    noise = float(np.var(work - size)) + 1e-6
    spread = float(np.square(size).sum()) / noise
    # Posterior mean of the slope under the prior 1 +- 0.3.
    prior = _SLOPE_UNCERTAINTY**-2
    return (float(size @ work) / noise + prior) / (spread + prior)


def _growing(trace: MemoryTrace, base: float, per_size: float, noise: float) -> tuple[float, float]:
    """Return ``t`` and the noise of steps that grow the model; the layout counts as one more of them."""
    grown = 1 + np.flatnonzero(np.diff(trace.size) > 0)
    # The copy may show in the recording before: a size is read before or after the update, by pipeline.
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
    """Return median and robust standard deviation."""
    center = upper_median(values)
    return center, _ROBUST * upper_median(np.abs(values - center)) + 1e-300
