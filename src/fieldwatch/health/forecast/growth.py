"""Growth of the model: curves fitted to the past changes of size, weighted by their leave-one-out errors."""

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.forecast.trace import GrowthTrace

Shape = Literal["linear", "power", "saturating", "settling"]
LEAST_CHANGES = 8
"""Minimum number of changes of size for an estimate of the shape of the growth."""
# Families of shapes: t**p; 1 - exp(-r t); t + a * (1 - exp(-r t)), a burst followed by linear growth, as pairs (a, r).
_POWERS = np.array([0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.15, 1.3, 1.5, 1.75, 2.0])
_RATES = np.array([0.3, 0.6, 0.9, 1.2, 1.6, 2.0, 2.5, 3.2, 4.0, 5.0])
_BURSTS = np.array([[0.5, 3.0], [1.5, 3.0], [0.4, 6.0], [1.2, 6.0], [0.3, 12.0], [0.9, 12.0]])
_COUNTS: dict[Shape, int] = {"linear": 1, "power": len(_POWERS), "saturating": len(_RATES), "settling": len(_BURSTS)}
_KINDS: tuple[Shape, ...] = tuple(kind for kind, count in _COUNTS.items() for _ in range(count))
# Prior probabilities of linear, power, saturating and settling growth.
_LIKELY = (0.15, 0.4, 0.25, 0.2)
# Prior of the exponent of powers: mean and standard deviation.
_USUAL = 0.7
_USUAL_SPREAD = 0.35
# Prior of the rate of saturating curves: mean of an exponential distribution.
_USUAL_RATE = 1.5
# Maximum number of points per fit.
_POINTS = 128
# Lower bound of the relative noise of changes.
_LEAST_NOISE = 0.02
# Maximum number of changes that count as independent evidence: more would make the weights overconfident.
_MOST_INDEPENDENT = 8.0
# Three-point Gauss-Hermite quadrature of a normal distribution: nodes in standard deviations, and weights.
_SPREAD = np.array([-np.sqrt(3.0), 0.0, np.sqrt(3.0)])
_MASS = np.array([1.0, 4.0, 1.0]) / 6.0


def _prior() -> NDArray[np.float64]:
    """Return ``[shapes]``: the prior probability of each shape.

    Powers somewhat below 1 are the most likely ones, because densification slows down. Among saturating curves, those
    that saturate late are the most likely.
    """
    linear, power, saturating, settling = _LIKELY
    powers = np.exp(-0.5 * ((_POWERS - _USUAL) / _USUAL_SPREAD) ** 2)
    rates = np.exp(-_RATES / _USUAL_RATE)
    bursts = np.full(len(_BURSTS), settling / len(_BURSTS))
    return np.concatenate(([linear], power * powers / powers.sum(), saturating * rates / rates.sum(), bursts))


_PRIOR = _prior()


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Weighted curves of the future size, all of which start from the current size.

    The shape of a curve is linear, a power of the time since growth began, saturating, or settling (a burst followed by
    linear growth). Curves are fitted to the changes of size and weighted by their leave-one-out errors. Each curve
    is included three times: with its fitted slope, and with the slope raised and lowered by its uncertainty. Negative
    changes (pruning) are not part of the curves; they are modeled as a constant loss rate.

    Attributes:
        kind: kind of shape with the largest weight.
        now: last step at which the size changed.
        size: size after that step.
        weights: ``[m]`` weights of the curves; their sum is 1.
        noise: standard deviation of the changes, relative to their mean.
        loss: fraction of the size lost to pruning per step, counting only changes that reduced the size.
        slopes: ``[m]`` size per unit of shape.
        shapes: ``[m]`` index of each curve's shape.
        start: step at which growth began.
        span: number of steps from ``start`` to ``now``.
    """

    kind: Shape
    now: float
    size: float
    weights: NDArray[np.float64]
    noise: float
    loss: float
    slopes: NDArray[np.float64]
    shapes: NDArray[np.intp]
    start: float
    span: float

    @classmethod
    def fit(cls, trace: GrowthTrace) -> Self | None:
        """Fit the curves to the changes of size; None if there are too few changes or the model does not grow."""
        if len(trace.steps) <= LEAST_CHANGES or trace.sizes[-1] <= trace.sizes[0]:
            return None
        # Growth is taken to begin one typical interval before its first change.
        start = float(trace.steps[1] - trace.spacing)
        steps = _thin(np.append(start, trace.steps[1:]))
        sizes = _thin(trace.sizes)
        span = float(steps[-1]) - start
        changes = np.diff(sizes)
        added = changes > 0
        shape_changes = np.diff(_shape_values((steps - start) / span), axis=1)[:, added]
        # Pruning does not count as a change of the curve.
        if np.count_nonzero(added) < LEAST_CHANGES:
            return None
        age = (steps[1:][added] - start) / span
        slopes, odds, noise, autocorrelation = _score_shapes(shape_changes, changes[added], age)
        # Unlikely shapes are dropped, because every curve costs time in the forecast.
        likely = np.flatnonzero(odds > 0.01 * odds.max())
        weights = odds[likely] / odds[likely].sum()
        # Standard error of the mean change, widened for the autocorrelation of changes (AR(1)).
        uncertainty = noise * np.sqrt(2 * (1 + autocorrelation) / (1 - autocorrelation) / len(shape_changes[0]))
        stretch = np.maximum(1 + _SPREAD[:, None] * uncertainty, 0.05)
        return cls(
            kind=_heaviest(weights, likely),
            now=float(steps[-1]),
            size=float(sizes[-1]),
            weights=(_MASS[:, None] * weights).ravel(),
            noise=noise,
            loss=_pruning_rate(steps[1:] - start, changes, sizes),
            slopes=(slopes[likely] * stretch).ravel(),
            shapes=np.tile(likely, len(_MASS)),
            start=start,
            span=span,
        )

    def sizes(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``[m, s]``: the size of each curve at ascending steps; the current size for steps before ``now``."""
        steps = np.maximum(np.append(self.now, steps), self.now)
        shapes = _shape_values((steps - self.start) / self.span)[self.shapes]
        surviving = np.exp(-self.loss * (steps - self.now))
        # Added primitives are pruned from then on: the geometric mean stands for the middle of each interval.
        added = np.cumsum(np.diff(shapes, axis=1) / np.sqrt(surviving[1:] * surviving[:-1]), axis=1)
        return surviving[1:] * (self.size + self.slopes[:, None] * added)


def _heaviest(weights: NDArray[np.float64], shapes: NDArray[np.intp]) -> Shape:
    """Return the kind of shape with the largest weight."""
    mass: dict[Shape, float] = dict.fromkeys(_KINDS, 0.0)
    for weight, shape in zip(weights.tolist(), shapes.tolist(), strict=True):
        mass[_KINDS[shape]] += weight
    return max(mass, key=lambda kind: mass[kind])


def _shape_values(ages: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``[shapes, n]``: the value of each shape at times in units of ``span``."""
    powers = np.exp(_POWERS[:, None] * np.log(np.maximum(ages, 1e-9)))
    bursts = ages - _BURSTS[:, :1] * np.expm1(-ages * _BURSTS[:, 1:])
    return np.concatenate((ages[None], powers, -np.expm1(-ages * _RATES[:, None]), bursts))


def _score_shapes(
    shape_changes: NDArray[np.float64], changes: NDArray[np.float64], importance: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64], float, float]:
    """Score every shape by how well it predicts each change from all other changes.

    Args:
        shape_changes: ``[shapes, k]`` increase of each shape over each change.
        changes: ``[k]`` changes of size, all positive.
        importance: ``[k]`` weight of each change; recent changes predict the future better.

    Returns:
        Slopes ``[shapes]``, odds ``[shapes]``, the relative noise of the changes, and their lag-1 autocorrelation.
    """
    local_mean = _moving_mean(changes)
    shape_changes = shape_changes / local_mean
    relative = changes / local_mean
    weighted = shape_changes * importance
    squares = (weighted * shape_changes).sum(axis=1, keepdims=True)
    # Weighted least squares through the origin, one slope per shape.
    slopes = weighted @ relative / squares[:, 0]
    # Leave-one-out residuals: the residuals of the fit divided by 1 - leverage.
    residuals = (relative - slopes[:, None] * shape_changes) / (1 - np.minimum(weighted * shape_changes / squares, 0.9))
    square = np.square(residuals) @ importance / importance.sum() + _LEAST_NOISE**2
    best = residuals[int(np.argmin(square))]
    autocorrelation = float(np.clip(best[1:] @ best[:-1] / max(float(best @ best), 1e-12), 0.0, 0.8))
    # Effective number of independent changes (AR(1)).
    independent = min(len(changes) * (1 - autocorrelation) / (1 + autocorrelation), _MOST_INDEPENDENT)
    # Likelihood of Gaussian residuals with the variance estimated by their mean square.
    odds = _PRIOR * (square.min() / square) ** (independent / 2)
    return slopes, odds, float(np.sqrt(square.min())), autocorrelation


def _pruning_rate(since: NDArray[np.float64], changes: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    """Return the fraction of the size that is lost to pruning per step, averaged over the steps up to the last loss.

    A net loss also cancels the growth of that step, so the typical growth is added to it.
    """
    falls = np.flatnonzero(changes < 0)
    if not len(falls):
        return 0.0
    usual = float(changes[changes > 0].mean())
    return float(((usual - changes[falls]) / sizes[falls]).sum() / since[falls[-1]])


def _moving_mean(changes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the moving mean of the changes around each one, at least a fifth of the overall mean."""
    width = max(len(changes) // 6, 2)
    counts = np.arange(len(changes))
    sums = np.concatenate(([0.0], np.cumsum(changes)))
    first = np.maximum(counts - width, 0)
    last = np.minimum(counts + width + 1, len(changes))
    return np.maximum((sums[last] - sums[first]) / (last - first), 0.2 * float(changes.mean()))


def _thin(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return at most 128 evenly spaced values, including the last one."""
    if len(values) <= _POINTS:
        return values
    return values[np.linspace(0, len(values) - 1, _POINTS).astype(np.intp)]
