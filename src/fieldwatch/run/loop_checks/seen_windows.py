"""`SeenWindows`: whether the windows of an evaluation overlap with those of the training."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.run.loop_checks.input_samples import some_rows
from fieldwatch.run.loop_checks.marks import are_known, marks_of

_VALUES = 6
"""Number of values in a row that identify a place of a series."""
_MOST = 1024
"""Number of windows of the training that are remembered."""
_LEAST = 256
"""Number of windows of the training from which on an evaluation is compared.

A quarter of the most, so that the share rises to four times of its first value at most while marks are added."""
_SHIFTS = (1, 2, 4, 5, 8, 10, 16, 20, 25, 32, 50, 64, 100, 128)
"""Distances, in steps of time, between windows that overlap; a quarter and a half of a window besides."""
_USABLE = 0.5
"""Share of the windows of an evaluation that have to have different values in their middle."""


class SeenWindows:
    """Remembers marks of places in the windows of the training, and looks for the middles of others among them.

    A mark stands for six consecutive values. Of a window of the training, the places around its middle are marked,
    without the middle itself: values that stand at the same place in many samples, such as the features of one person,
    are no sign of overlapping windows. Everything stays on the device.
    """

    def __init__(self) -> None:
        self._marks: Float[Tensor, " places"] | None = None
        self._shape: tuple[int, ...] = ()
        self._windows = 0

    @property
    def filled(self) -> bool:
        """Whether anything is remembered."""
        return self._marks is not None

    def state_dict(self) -> dict[str, Any]:
        """Return the marks."""
        return {"marks": self._marks, "shape": list(self._shape), "windows": self._windows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them; they move to the device of the next batch."""
        self._marks = state["marks"]
        self._shape = tuple(state["shape"])
        self._windows = int(state["windows"])

    def note(self, batch: Tensor) -> None:
        """Remember the places of a batch of the training.

        Args:
            batch: ``[n, steps]``, ``[n, steps, channels]`` or ``[n, channels, steps]``; others are ignored.
        """
        shape = tuple(batch.shape[1:])
        if self._windows >= _MOST or (self._marks is not None and shape != self._shape):
            return
        series = _series(batch)
        if series is None:
            return
        rows, unit = series
        middle = _middle(rows.shape[1], unit)
        steps = rows.shape[1] // unit
        shifts = {unit * shift for shift in (*_SHIFTS, steps // 4, steps // 2) if shift}
        starts = sorted({middle + way * shift for shift in shifts for way in (-1, 1)})
        starts = [start for start in starts if 0 <= start <= rows.shape[1] - _VALUES]
        if not starts:
            return
        marks = marks_of(torch.stack([rows[:, start : start + _VALUES] for start in starts], dim=1)).reshape(-1)
        self._shape = shape
        self._windows += len(rows)
        self._marks = marks if self._marks is None else torch.cat((self._marks.to(marks.device), marks))

    def share(self, batch: Tensor) -> Float[Tensor, ""] | None:
        """Return the share of windows that overlap with remembered ones; None if there is nothing to compare.

        Args:
            batch: windows of an evaluation, of the same shape as those of the training.
        """
        if self._marks is None or self._windows < _LEAST or tuple(batch.shape[1:]) != self._shape:
            return None
        series = _series(batch)
        if series is None:
            return None
        rows, unit = series
        start = _middle(rows.shape[1], unit)
        values = rows[:, start : start + _VALUES]
        # Constant stretches, padding and codes of zeros and ones are alike everywhere.
        usable = (values.sort(dim=1).values.diff(dim=1) > 0).all(dim=1) & (values != values.round()).any(dim=1)
        seen = are_known(marks_of(values), self._marks) & usable
        return torch.where(usable.float().mean() > _USABLE, seen.float().mean(), 0.0)


def _series(batch: Tensor) -> tuple[Float[Tensor, "rows values"], int] | None:
    """Return about 32 windows, their values in the order of time, and the number of values of a step of time."""
    # Marks need the precision of float64, which MPS has not.
    if batch.dim() not in (2, 3) or not batch.is_floating_point() or batch.device.type == "mps":
        return None
    rows = some_rows(batch)
    unit = 1
    if rows.dim() == 3 and rows.shape[1] < rows.shape[2]:
        # Channels come first: one of them is enough.
        rows = rows[:, 0]
    elif rows.dim() == 3:
        unit = rows.shape[2]
        rows = rows.reshape(len(rows), -1)
    return (rows, unit) if rows.shape[1] > _VALUES else None


def _middle(values: int, unit: int) -> int:
    """Return the position of the middle of a window of this number of values, at the beginning of a step of time."""
    return min(values // 2, values - _VALUES) // unit * unit
