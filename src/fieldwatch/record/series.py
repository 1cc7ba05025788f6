"""Ordered values of one metric, and the losses of each sample."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Series:
    """The values of one metric in ascending order of step, each step once; a later record replaces an earlier one.

    The arrays are read-only and do not change while the run continues.

    Attributes:
        steps: ``[n]`` float64, 0-based index of the step that recorded each value.
        seconds: ``[n]`` float64, training time.
        positions: ``[n]`` float64, coordinate on the metric's axis (the step or the 1-based epoch).
        values: ``[n]`` float64; NaN and infinity are recorded values.
        beginning: the first recordings of the metric, if a history with a capacity has dropped them; else None.
        thinned: some of the recordings that it has dropped, evenly spread; None if there are none.
    """

    steps: NDArray[np.float64]
    seconds: NDArray[np.float64]
    positions: NDArray[np.float64]
    values: NDArray[np.float64]
    beginning: "Series | None" = None
    thinned: "Series | None" = None

    def __post_init__(self) -> None:
        # Series are cached and may be views of a table, so callers must not modify them.
        for array in (self.steps, self.seconds, self.positions, self.values):
            array.flags.writeable = False

    @property
    def start(self) -> "Series":
        """The series from its first recording on: its beginning if that was dropped, otherwise all of it."""
        return self if self.beginning is None else self.beginning

    def last(self, count: int) -> "Series":
        """Return the last ``count`` values, or all of them if there are fewer."""
        return self[max(0, len(self) - count) :]

    def __getitem__(self, part: slice) -> "Series":
        return Series(
            steps=self.steps[part], seconds=self.seconds[part], positions=self.positions[part], values=self.values[part]
        )

    def __len__(self) -> int:
        return len(self.steps)


def ascend(steps: NDArray[np.float64]) -> bool:
    """Whether the steps are strictly ascending."""
    return bool((steps[1:] > steps[:-1]).all())


def later_wins(
    arrival: NDArray[np.float64], steps: NDArray[np.float64], positions: NDArray[np.float64]
) -> NDArray[np.intp]:
    """Return row indices sorted by step and position; of rows with equal keys, keep only the one that arrived last."""
    order = np.argsort(arrival, kind="stable")
    if ascend(steps[order]):  # the common case, and several times faster
        return order
    # lexsort sorts by its last key first: by step, position and arrival. The last of equal rows arrived last.
    order = np.lexsort((arrival, positions, steps))
    steps = steps[order]
    positions = positions[order]
    superseded = (steps[1:] == steps[:-1]) & (positions[1:] == positions[:-1])
    return order[np.append(~superseded, True)]


class SampleLosses(Mapping[str, Series]):
    """The losses of each sample (view, frame or patch), by sample name.

    Args:
        names: sample names, indexed by code.
        codes: ``[n]`` sample code of each loss.
        rows: ``[5, n]`` arrival, step, seconds, position and loss.

    Attributes:
        names: sample names, indexed by code; some may have no loss.
        visits: losses of all samples, grouped by sample and ordered by step within each group.
        owners: ``[n]`` sample code of each visit.
    """

    def __init__(self, names: Sequence[str], codes: NDArray[np.intp], rows: NDArray[np.float64]) -> None:
        order = _by_sample(codes, rows)
        _, steps, seconds, positions, losses = rows[:, order]
        self.names = names
        self.owners = codes[order]
        self.visits = Series(steps=steps, seconds=seconds, positions=positions, values=losses)
        # Visits are grouped by sample, so the losses of each sample are one slice.
        # minlength covers samples without a loss at the end of the list.
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
    """Like `later_wins`, but sort by sample first: return indices by sample, step and position without duplicates."""
    arrival, steps, _, positions, _ = rows
    order = np.argsort(arrival, kind="stable")
    sorted_codes = codes[order]
    # A run rarely has more than 65,536 samples, so 16 bits usually suffice.
    narrow = sorted_codes.astype(np.uint16) if sorted_codes.max(initial=0) < 1 << 16 else sorted_codes
    order = order[np.argsort(narrow, kind="stable")]  # numpy's stable sort of 16-bit integers is a linear radix sort
    next_sample = np.diff(codes[order]) > 0
    later_step = np.diff(steps[order]) > 0
    if (next_sample | later_step).all():  # the common case, and several times faster
        return order
    order = np.lexsort((arrival, positions, steps, codes))
    superseded = (np.diff(np.stack((codes, steps, positions))[:, order]) == 0).all(axis=0)
    return order[np.append(~superseded, True)]
