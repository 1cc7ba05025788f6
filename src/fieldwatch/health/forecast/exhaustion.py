"""When memory runs out: the growth to come, put into the memory of a step."""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.forecast.fit import MemoryModel
from fieldwatch.health.forecast.growth import Growth, Shape
from fieldwatch.health.forecast.trace import GrowthTrace, MemoryTrace, capacity, declared_end, size_metric
from fieldwatch.record import History

Cause = Literal["view", "growth"]
# Without a declared end, look ahead three times as long as the growth has lasted.
_HORIZON = 3.0
# Points in time, and sizes, at which the risk is tabulated.
_STEPS = 128
_SIZES = 64
# Growth counts as over after so many usual intervals without a change of size.
_PAUSE = 6.0
# Probability left out at each end of the interval from `low` to `high`.
_SURE = 0.05


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """When memory runs out, and what would still fit.

    Attributes:
        made: the last step that was known.
        step: the step at which memory runs out, as likely before as after.
        low: memory lasts at least so long with 95 % confidence.
        high: it is gone by then with 95 % confidence; None where the growth may also end in time.
        probability: that it runs out before the growth ends.
        cause: ``"view"`` where an ordinary step is too much first, ``"growth"`` where a step that grows the
            model is.
        view: the sample whose work makes it first; empty where samples have no names or growth comes first.
        cap: the largest size that fits with that view and with the copies of growth.
        counted: whether sizes count primitives; else they are MiB of parameters.
        size: present size.
        end: the step at which growth or the run ends; None where nobody said.
        peak: the heaviest step's memory at the end of growth (at ``step`` where no end is declared), in MiB.
        capacity: what the process could have, in MiB.
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
        """Half of the 90 % interval, in steps; up to ``step`` only where it has no end."""
        return (self.high - self.low) // 2 if self.high is not None else self.step - self.low

    def text(self, *, memory: str = "memory", unit: str = "primitives") -> str:
        """Say it in one sentence.

        Args:
            memory: what runs out, such as VRAM.
            unit: what the model's size counts.
        """
        spread = _round(self.spread)
        about = f" (on view {self.view})" if self.view else ""
        about = " (in a step that grows the model, where old and new copies meet)" if self.cause == "growth" else about
        when = f"iteration {self.step:,} +- {spread:,.0f}"
        return f"at the current growth {memory} runs out at {when}{about}; cap at {self.cap_text(unit)}"

    def cap_text(self, unit: str = "primitives") -> str:
        """Return the cap as people say it: ``3.1 M primitives`` or ``820 MB of parameters``."""
        if not self.counted:
            return f"{self.cap:,.0f} MB of parameters"
        if self.cap >= 1e6:
            return f"{np.floor(self.cap / 1e5) / 10:.1f} M {unit}"
        return f"{np.floor(self.cap / 1e3):,.0f} k {unit}" if self.cap >= 1e4 else f"{self.cap:,.0f} {unit}"


def forecast(
    history: History, *, last: int | None = None, growth_until: int | None = None, end: int | None = None
) -> Forecast | None:
    """Say when memory runs out.

    Args:
        history: what was recorded: ``Memory/peak_MB``, ``Memory/capacity_MB``, and ``Model/size`` or
            ``Memory/parameters_MB``; with ``Model/work`` and named samples it says on which view.
        last: look at the record up to this step only; None for all of it.
        growth_until: the step at which growth ends; None to take it from a ``growth`` event, where one says it.
        end: the run's last step; None where it is not known.

    Returns:
        None where something was not recorded, where nothing grows (any more), or where it fits for ever. Without a
        declared end "for ever" is three times as long as the growth lasted so far.
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
    ended = last - changes.steps[-1] > _PAUSE * changes.spacing
    growth = None if ended or last >= limit else Growth.fit(changes)
    trace = None if growth is None else MemoryTrace.of(history, last)
    model = None if trace is None else MemoryModel.fit(trace)
    if growth is None or trace is None or model is None or model.per_size <= 0:
        return None
    return _RiskBySize.of(model, growth, changes, available).forecast(trace, last, limit)


@dataclass(frozen=True, kw_only=True)
class _RiskBySize:
    """Sizes from the present one to the one that certainly does not fit, and how risky a step is there.

    Attributes:
        sizes: ``[s]``.
        views: ``[s]`` chance per step that an ordinary step does not fit.
        copies: ``[s]`` the same of the steps that grow the model, spread over the steps between them.
        cap: the largest size that fits.
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
        # 10 % beyond the size that fills memory by the fit alone, so that the crossing lies inside the grid.
        largest = max((capacity - model.base) / model.per_size, growth.size) * 1.1
        sizes = np.linspace(growth.size, largest, _SIZES)
        uncertainty = model.uncertainty(sizes)
        ordinary = model.ordinary(sizes)
        copying = model.while_growing(sizes - changes.change, sizes)
        # A step sees one view: the chances of the tabulated views add up, weighted by how often each is seen.
        views = np.minimum(model.loads.share * _exceedance(ordinary, capacity, uncertainty).sum(axis=0), 1.0)
        # Spread over the steps between two changes, so that both risks are chances per step.
        copies = _exceedance(copying, capacity, np.hypot(uncertainty, model.growing_noise)) / changes.spacing
        # The cap keeps two standard deviations below the limit.
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
        """Let the size grow, add up the risk, and say when it has become even."""
        horizon = min(limit, last + _HORIZON * self.growth.span)
        steps = np.linspace(last, horizon, _STEPS)
        probability = self._exhaustion_probability(steps)
        # Where no end is declared, "it may run out some day" would be said of every growing model.
        if probability[-1] < _SURE or (limit == np.inf and probability[-1] < 0.5):
            return None
        low, middle, high = (_step_at_probability(steps, probability, share) for share in (_SURE, 0.5, 1 - _SURE))
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
        # Between two changes the size is constant: ordinary steps see, in the mean, that of half an interval ago.
        sizes = self.growth.sizes(steps - self.spacing / 2)
        views = np.interp(sizes, self.sizes, self.views)
        copies = np.interp(self.growth.sizes(steps), self.sizes, self.copies)
        risk = np.cumsum(views + copies, axis=1) * (steps[1] - steps[0])
        # Survival is the exponential of the integrated risk, averaged over the weighted growth curves.
        return 1 - self.growth.weights @ np.exp(-risk)

    def _sizes_at(self, *steps: float) -> list[float]:
        """Return the size at each of some ascending steps, by the middle one of the curves."""
        sizes = self.growth.sizes(np.array(steps))
        # The weighted median of the curves, by their last size.
        order = np.argsort(sizes[:, -1])
        at = np.searchsorted(np.cumsum(self.growth.weights[order]), 0.5)
        return sizes[order[min(int(at), len(order) - 1)]].tolist()

    def _heaviest(self, size: float) -> str:
        """Return the view that is too much first."""
        return self.model.loads.names[int(np.argmax(self.model.ordinary(np.array([size]))[:, 0]))]


def _exceedance(peak: NDArray[np.float64], available: float, uncertainty: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the probability that a peak is above the room (logistic, within 0.01 of the normal one)."""
    return 0.5 * (1 + np.tanh(0.8 * (peak - available) / uncertainty))


def _crossing(sizes: NDArray[np.float64], heaviest: NDArray[np.float64], available: float, at: int) -> float:
    """Return the size at which the memory meets the room, between one size of the grid and the next."""
    if at + 1 == len(sizes):
        return float(sizes[at])
    fraction = (available - heaviest[at]) / (heaviest[at + 1] - heaviest[at])
    return float(sizes[at] + fraction * (sizes[at + 1] - sizes[at]))


def _step_at_probability(steps: NDArray[np.float64], probability: NDArray[np.float64], share: float) -> float | None:
    """Return the step by which memory is gone with a probability; None if that is beyond the last one."""
    if probability[-1] < share:
        return None
    return float(np.interp(share, probability, steps))


def _round(number: float) -> float:
    """Round to two digits, as an uncertainty deserves."""
    digits = 10.0 ** max(math.floor(math.log10(max(number, 1.0))) - 1, 0)
    return round(number / digits) * digits
