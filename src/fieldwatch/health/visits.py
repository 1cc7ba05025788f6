"""Per-sample losses (views, frames, patches), compared with earlier losses of the same sample."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import SampleLosses

# Number of earlier visits whose median is the baseline. `against_own_past` spells out the median of three.
_PAST = 3


@dataclass(frozen=True, kw_only=True)
class Visits:
    """All visits to all samples, grouped by sample and ordered by step within each sample.

    Attributes:
        names: names of the samples.
        steps: ``[n]`` step of each visit.
        values: ``[n]`` loss of each visit.
        owners: ``[n]`` index into ``names`` of each visit's sample.
    """

    names: Sequence[str]
    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    owners: NDArray[np.intp]

    @classmethod
    def of(cls, losses: SampleLosses) -> "Visits | None":
        """Collect the visits to all samples; None if there are none."""
        visits = losses.visits
        if not len(visits):
            return None
        return cls(names=losses.names, steps=visits.steps, values=visits.values, owners=losses.owners)

    def within(self, first: int, last: int) -> "Visits":
        """Return the visits from step ``first`` to step ``last``, both inclusive."""
        inside = (self.steps >= first) & (self.steps <= last)
        # Usually one phase covers all visits: avoid the copy.
        if inside.all():
            return self
        return Visits(
            names=self.names, steps=self.steps[inside], values=self.values[inside], owners=self.owners[inside]
        )

    def name(self, at: int) -> str:
        """Return the name of the sample of the visit at index ``at``."""
        return self.names[int(self.owners[at])]

    def against_own_past(self) -> NDArray[np.float64]:
        """Return each loss divided by the median of the sample's three previous losses; NaN if there are fewer."""
        values = self.values
        owners = self.owners
        ratios = np.full(len(values), np.nan)
        if len(values) <= _PAST:
            return ratios
        last = values[2:-1]
        second_last = values[1:-2]
        third_last = values[:-3]
        # The median of three by minima and maxima is faster than a sort.
        middle = np.maximum(np.minimum(last, second_last), np.minimum(np.maximum(last, second_last), third_last))
        # Visits are grouped by sample: if the visit three rows earlier has the same owner, so do those in between.
        usable = owners[_PAST:] == owners[:-_PAST]
        usable &= np.isfinite(values[_PAST:]) & np.isfinite(middle) & (middle > 0)
        np.divide(values[_PAST:], middle, out=ratios[_PAST:], where=usable)
        return ratios
