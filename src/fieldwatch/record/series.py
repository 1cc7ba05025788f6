"""A metric's recorded values in order, and the loss of each sample."""

from collections.abc import Iterator, Mapping, Sequence
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


def ascend(steps: NDArray[np.float64]) -> bool:
    """Tell whether every step is larger than the one before."""
    return bool((steps[1:] > steps[:-1]).all())


def later_wins(
    arrival: NDArray[np.float64], steps: NDArray[np.float64], positions: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Return the order by step and position in which only the last arrived of equal ones is left."""
    order = np.argsort(arrival, kind="stable")
    if ascend(steps[order]):  # the usual case, and several times faster
        return order
    # Sorted by step, then position, then arrival: of equal ones the last in order arrived last.
    order = np.lexsort((arrival, positions, steps))
    steps = steps[order]
    positions = positions[order]
    again = (steps[1:] == steps[:-1]) & (positions[1:] == positions[:-1])
    return order[np.append(~again, True)]


class SampleLosses(Mapping[str, Series]):
    """The loss of each sample (view, frame, patch), by its name.

    Args:
        names: the samples' names, by code.
        codes: ``[n]``, the sample of each loss.
        rows: ``[5, n]``: arrival, step, seconds, position, loss.

    Attributes:
        names: the samples' names, by code; a name may have no loss.
        visits: the losses of all samples, sample after sample, each sample's in order.
        owners: ``[n]``, the code of each visit's sample.
    """

    def __init__(self, names: Sequence[str], codes: NDArray[np.intp], rows: NDArray[np.float64]) -> None:
        order = _by_sample(codes, rows)
        _, steps, seconds, positions, losses = rows[:, order]
        self.names = names
        self.owners = codes[order]
        self.visits = Series(steps=steps, seconds=seconds, positions=positions, values=losses)
        # Visits are grouped by sample, so each sample's losses are one slice.
        counts = np.bincount(self.owners, minlength=len(names))
        ends = np.cumsum(counts)
        spans = zip(names, (ends - counts).tolist(), ends.tolist(), strict=True)
        self._spans = {name: slice(start, end) for name, start, end in spans if end > start}

    def __getitem__(self, name: str) -> Series:
        return self.visits[self._spans[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)


def _by_sample(codes: NDArray[np.intp], rows: NDArray[np.float64]) -> NDArray[np.intp]:
    """Return the order by sample, step and position in which only the last arrived of equal ones is left."""
    arrival, steps, _, positions, _ = rows
    order = np.argsort(arrival, kind="stable")
    sorted_codes = codes[order]
    narrow = sorted_codes.astype(np.uint16) if sorted_codes.max(initial=0) < 1 << 16 else sorted_codes
    order = order[np.argsort(narrow, kind="stable")]  # 16 bits are sorted in linear time
    other = np.diff(codes[order]) > 0
    later = np.diff(steps[order]) > 0
    if (other | later).all():  # the usual case, and several times faster
        return order
    order = np.lexsort((arrival, positions, steps, codes))
    again = (np.diff(np.stack((codes, steps, positions))[:, order]) == 0).all(axis=0)
    return order[np.append(~again, True)]
