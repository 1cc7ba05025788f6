"""The losses of single samples (views, frames, patches), each against that sample's own past."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fieldwatch.record import SampleLosses

_PAST = 3


@dataclass(frozen=True, kw_only=True)
class Visits:
    """All visits to all samples, sample after sample, each sample's in order of time.

    Attributes:
        names: the samples.
        steps: ``[n]``.
        values: ``[n]`` losses.
        owners: ``[n]`` which sample each visit belongs to.
    """

    names: Sequence[str]
    steps: NDArray[np.float64]
    values: NDArray[np.float64]
    owners: NDArray[np.intp]

    @classmethod
    def of(cls, losses: SampleLosses) -> "Visits | None":
        """Take the visits to all samples; None if there are none."""
        visits = losses.visits
        if not len(visits):
            return None
        return cls(names=losses.names, steps=visits.steps, values=visits.values, owners=losses.owners)

    def within(self, first: int, last: int) -> "Visits":
        """Return the visits from one step to another, both included."""
        inside = (self.steps >= first) & (self.steps <= last)
        if inside.all():
            return self
        return Visits(
            names=self.names, steps=self.steps[inside], values=self.values[inside], owners=self.owners[inside]
        )

    def name(self, at: int) -> str:
        """Return the sample of one visit."""
        return self.names[int(self.owners[at])]

    def against_own_past(self) -> NDArray[np.float64]:
        """Return each loss divided by the median of the same sample's last three; NaN where it has no three."""
        values = self.values
        owners = self.owners
        ratios = np.full(len(values), np.nan)
        if len(values) <= _PAST:
            return ratios
        last = values[2:-1]
        second_last = values[1:-2]
        third_last = values[:-3]
        # The median of three, without sorting.
        middle = np.maximum(np.minimum(last, second_last), np.minimum(np.maximum(last, second_last), third_last))
        # Visits are ordered by sample: the one three before has to be of the same sample.
        usable = owners[_PAST:] == owners[:-_PAST]
        usable &= np.isfinite(values[_PAST:]) & np.isfinite(middle) & (middle > 0)
        np.divide(values[_PAST:], middle, out=ratios[_PAST:], where=usable)
        return ratios
