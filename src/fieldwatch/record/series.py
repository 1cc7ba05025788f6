"""A metric's recorded values in order, and the loss of each sample."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Series:
    """The values of one metric in ascending order of step; each step once, the later record wins.

    The arrays are read-only and stay as they are while the run goes on.

    Attributes:
        steps: ``[n]`` float64, 0-based index of the step during which each value was recorded.
        seconds: ``[n]`` float64, training time.
        positions: ``[n]`` float64, place on the metric's axis (the step, or the 1-based epoch).
        values: ``[n]`` float64; NaN and infinity mean just that.
    """

    steps: NDArray[np.float64]
    seconds: NDArray[np.float64]
    positions: NDArray[np.float64]
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        for array in (self.steps, self.seconds, self.positions, self.values):
            array.flags.writeable = False

    def last(self, count: int) -> "Series":
        """Return the last ``count`` values (all of them if there are fewer)."""
        return self[max(0, len(self) - count) :]

    def __getitem__(self, part: slice) -> "Series":
        return Series(
            steps=self.steps[part], seconds=self.seconds[part], positions=self.positions[part], values=self.values[part]
        )

    def __len__(self) -> int:
        return len(self.steps)


def later_wins(
    arrival: NDArray[np.float64], steps: NDArray[np.float64], positions: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Return the order by step and position in which only the last arrived of equal ones is left."""
    order = np.lexsort((arrival, positions, steps))
    steps, positions = steps[order], positions[order]
    again = (steps[1:] == steps[:-1]) & (positions[1:] == positions[:-1])
    return order[np.append(~again, True)]


class SampleLosses(Mapping[str, Series]):
    """The loss of each sample (view, frame, patch), by its name; a sample's series is made when it is asked for.

    Args:
        names: the samples' names, by code.
        codes: ``[n]``, the sample of each loss.
        rows: ``[5, n]``: arrival, step, seconds, position, loss.
    """

    def __init__(self, names: list[str], codes: NDArray[np.intp], rows: NDArray[np.float64]) -> None:
        order = np.argsort(codes, kind="stable")
        counts = np.bincount(codes, minlength=len(names))
        ends = np.cumsum(counts)
        self._rows = rows[:, order]
        self._spans = {name: slice(int(ends[i] - counts[i]), int(ends[i])) for i, name in enumerate(names) if counts[i]}

    def __getitem__(self, name: str) -> Series:
        arrival, steps, seconds, positions, losses = self._rows[:, self._spans[name]]
        order = later_wins(arrival, steps, positions)
        return Series(steps=steps[order], seconds=seconds[order], positions=positions[order], values=losses[order])

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)
