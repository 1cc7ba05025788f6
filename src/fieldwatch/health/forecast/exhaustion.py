"""Forecast of when memory runs out: the predicted growth, inserted into the model of a step's memory."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import mebibytes
from fieldwatch.health.forecast.fit import MemoryModel
from fieldwatch.health.forecast.growth import Growth, Shape
from fieldwatch.health.forecast.trace import GrowthTrace, MemoryTrace, capacity, declared_end, size_metric
from fieldwatch.record import History

Cause = Literal["view", "growth"]
# Without a declared end, the forecast looks ahead three times as long as the growth has lasted.
_HORIZON = 3.0
# Number of steps, and of sizes, at which the risk is tabulated.
_STEPS = 128
_SIZES = 64
# Growth counts as over after this many typical intervals without a change of size.
_PAUSE = 6.0
# Tail probability at each end of the interval from `low` to `high`.
_SURE = 0.05


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """When memory runs out, and which size would still fit.

    Attributes:
        made: last step that the forecast is based on.
        step: median of the step at which memory runs out.
        low: lower end of the 90 % interval of that step.
        high: upper end of the 90 % interval; None if growth may end before memory runs out.
        probability: probability that memory runs out before the growth ends.
        cause: ``"view"`` if an ordinary step exceeds memory first, ``"growth"`` if a step that grows the model does.
        view: sample whose step exceeds memory first; empty if samples have no names or the cause is ``"growth"``.
        cap: largest size that fits, including the heaviest view and the copies made by growth.
        counted: whether sizes are numbers of primitives; otherwise they are MiB of parameters.
        size: current size.
        end: step at which growth or the run ends; None if not declared.
        peak: memory of the heaviest step at the end of growth (at ``step`` if no end is declared), in MiB.
        capacity: memory that the process could have, in MiB.
        growth: shape of the growth.
    """

    made: int
    step: int
    low: int
    high: int | None
    probability: float
    cause: Cause
    view: str
    cap: float
    counted: bool
    size: float
    end: int | None
    peak: float
    capacity: float
    growth: Shape

    @property
    def spread(self) -> int:
        """Half of the 90 % interval in steps; the lower half of it if ``high`` is None."""
        return (self.high - self.low) // 2 if self.high is not None else self.step - self.low

    def text(self, *, memory: str = "memory", unit: str = "primitives") -> str:
        """Return the forecast as one sentence.

        Args:
            memory: name of the memory that runs out, such as VRAM.
            unit: unit of the model's size.
        """
        spread = _round(self.spread)
        where = f" (on view {self.view})" if self.view else ""
        where = " (in a step that grows the model and holds old and new copies)" if self.cause == "growth" else where
        when = f"iteration {self.step:,} +- {spread:,.0f}"
        return f"at the current growth {memory} runs out at {when}{where}; cap at {self.cap_text(unit)}"

    def cap_text(self, unit: str = "primitives") -> str:
        """Format the cap for people: ``3.1 M primitives`` or ``820 MiB of parameters``."""
        # In MiB, because the cap in GiB would be rounded by too much to be set.
        if not self.counted:
            return f"{mebibytes(self.cap, 0, unit='MiB')} of parameters"
        # Rounded down, so that the printed cap also fits.
        if self.cap >= 1e6:
            return f"{np.floor(self.cap / 1e5) / 10:.1f} M {unit}"
        return f"{np.floor(self.cap / 1e3):,.0f} k {unit}" if self.cap >= 1e4 else f"{self.cap:,.0f} {unit}"


def forecast(
    history: History, *, last: int | None = None, growth_until: int | None = None, end: int | None = None
) -> Forecast | None:
    """Predict when memory runs out.

    Args:
        history: history with ``Memory/peak_MB``, ``Memory/capacity_MB``, and ``Model/size`` or
            ``Memory/parameters_MB``. With ``Model/work`` and named samples, the forecast also names the view.
        last: last step to use; None for all steps.
        growth_until: step at which growth ends; None to use the one declared by a ``growth`` event, if any.
        end: last step of the run; None if unknown.

    Returns:
        The forecast; None if a metric is missing, the model does not grow (any more), or memory is sufficient. Without
        a declared end, the forecast covers three times as many steps as growth has lasted so far.
    """
    last = history.step if last is None else last
    available = capacity(history, last)
    name = size_metric(history)
    changes = None if available is None or name is None else GrowthTrace.of(history, name, last)
    if available is None or changes is None:
        return None
    limit = min(
        float(growth_until) if growth_until is not None else declared_end(history, last),
        float(end) if end is not None else np.inf,
    )
    # Densification may stop earlier than declared.
    ended = last - changes.steps[-1] > _PAUSE * changes.spacing
    growth = None if ended or last >= limit else Growth.fit(changes)
    trace = None if growth is None else MemoryTrace.of(history, last)
    model = None if trace is None else MemoryModel.fit(trace)
    if growth is None or trace is None or model is None or model.per_size <= 0:
        return None
    return _RiskBySize.of(model, growth, changes, available).forecast(trace, last, limit)


@dataclass(frozen=True, kw_only=True)
class _RiskBySize:
    """Risk of a step as a function of size, from the current size to one that certainly does not fit.

    Attributes:
        model: model of a step's memory.
        growth: predicted growth.
        spacing: number of steps between two changes of size.
        capacity: memory that the process could have, in MiB.
        sizes: ``[s]`` tabulated sizes.
        views: ``[s]`` probability per step that an ordinary step does not fit.
        copies: ``[s]`` probability per step that a step that grows the model does not fit.
        cap: largest size that fits.
    """

    model: MemoryModel
    growth: Growth
    spacing: float
    capacity: float
    sizes: NDArray[np.float64]
    views: NDArray[np.float64]
    copies: NDArray[np.float64]
    cap: float

    @classmethod
    def of(cls, model: MemoryModel, growth: Growth, changes: GrowthTrace, capacity: float) -> "_RiskBySize":
        # 10 % beyond the size at which the fit fills memory, so that the crossing lies inside the grid.
        largest = max((capacity - model.base) / model.per_size, growth.size) * 1.1
        sizes = np.linspace(growth.size, largest, _SIZES)
        uncertainty = model.uncertainty(sizes)
        ordinary = model.ordinary(sizes)
        copying = model.while_growing(sizes - changes.change, sizes)
        # A step renders one view: the probabilities of the tabulated views add up, weighted by how often each is used.
        views = np.minimum(model.loads.share * _exceedance(ordinary, capacity, uncertainty).sum(axis=0), 1.0)
        # Divided by the steps between two changes, so that both risks are probabilities per step.
        copies = _exceedance(copying, capacity, np.hypot(uncertainty, model.growing_noise)) / changes.spacing
        # The cap leaves a margin of two standard deviations.
        heaviest = np.maximum(ordinary.max(axis=0), copying) + 2 * uncertainty
        fits = np.flatnonzero(heaviest <= capacity)
        cap = _crossing(sizes, heaviest, capacity, int(fits[-1])) if len(fits) else float(growth.size)
        return cls(
            model=model,
            growth=growth,
            spacing=changes.spacing,
            capacity=capacity,
            sizes=sizes,
            views=views,
            copies=copies,
            cap=cap,
        )

    def forecast(self, trace: MemoryTrace, last: int, limit: float) -> Forecast | None:
        """Integrate the risk along the predicted growth, and return the forecast; None if the risk is low."""
        horizon = min(limit, last + _HORIZON * self.growth.span)
        steps = np.linspace(last, horizon, _STEPS)
        probability = self._exhaustion_probability(steps)
        # Without a declared end, every growing model may run out of memory some day: require even odds.
        if probability[-1] < _SURE or (limit == np.inf and probability[-1] < 0.5):
            return None
        low, middle, high = (_step_at_probability(steps, probability, share) for share in (_SURE, 0.5, 1 - _SURE))
        # Without even odds within the horizon, the forecast names its end.
        step = horizon if middle is None else middle
        size, final = self._sizes_at(step, limit if limit < np.inf else step)
        size = min(size, float(self.sizes[-1]))
        ordinary = float(np.interp(size, self.sizes, self.views))
        cause: Cause = "growth" if float(np.interp(size, self.sizes, self.copies)) > ordinary else "view"
        at_end = np.array([final])
        return Forecast(
            made=last,
            step=round(step),
            low=round(step if low is None else low),
            high=None if high is None else round(high),
            probability=float(probability[-1]),
            cause=cause,
            view=self._heaviest(size) if cause == "view" else "",
            cap=self.cap,
            counted=trace.counted,
            size=float(trace.size[-1]),
            end=None if limit == np.inf else int(limit),
            peak=float(max(self.model.ordinary(at_end).max(), self.model.while_growing(at_end, at_end)[0])),
            capacity=self.capacity,
            growth=self.growth.kind,
        )

    def _exhaustion_probability(self, steps: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return ``[s]``: the probability that memory has run out by each step."""
        # The size is constant between two changes: on average, ordinary steps have the size of half an interval ago.
        sizes = self.growth.sizes(steps - self.spacing / 2)
        views = np.interp(sizes, self.sizes, self.views)
        copies = np.interp(self.growth.sizes(steps), self.sizes, self.copies)
        # Rectangle rule: the steps are evenly spaced.
        risk = np.cumsum(views + copies, axis=1) * (steps[1] - steps[0])
        # The survival probability is exp(-integrated risk), averaged over the weighted growth curves.
        return 1 - self.growth.weights @ np.exp(-risk)

    def _sizes_at(self, *steps: float) -> list[float]:
        """Return the size at ascending steps according to the median curve."""
        sizes = self.growth.sizes(np.array(steps))
        # Weighted median of the curves, ordered by their last size.
        order = np.argsort(sizes[:, -1])
        at = np.searchsorted(np.cumsum(self.growth.weights[order]), 0.5)
        return sizes[order[min(int(at), len(order) - 1)]].tolist()

    def _heaviest(self, size: float) -> str:
        """Return the name of the view with the largest memory at a size."""
        return self.model.loads.names[int(np.argmax(self.model.ordinary(np.array([size]))[:, 0]))]


def _exceedance(peak: NDArray[np.float64], available: float, uncertainty: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability that a peak exceeds the available memory."""
    # Logistic approximation of the normal distribution, within 0.01 of it.
    return 0.5 * (1 + np.tanh(0.8 * (peak - available) / uncertainty))


def _crossing(sizes: NDArray[np.float64], heaviest: NDArray[np.float64], available: float, at: int) -> float:
    """Return the size at which the memory reaches the available memory, interpolated between two sizes of the grid."""
    if at + 1 == len(sizes):
        return float(sizes[at])
    fraction = (available - heaviest[at]) / (heaviest[at + 1] - heaviest[at])
    return float(sizes[at] + fraction * (sizes[at + 1] - sizes[at]))


def _step_at_probability(steps: NDArray[np.float64], probability: NDArray[np.float64], share: float) -> float | None:
    """Return the step by which memory has run out with probability ``share``; None if it is beyond the last step."""
    if probability[-1] < share:
        return None
    return float(np.interp(share, probability, steps))


def _round(number: float) -> float:
    """Round to two significant digits."""
    digits = 10.0 ** max(math.floor(math.log10(max(number, 1.0))) - 1, 0)
    return round(number / digits) * digits
