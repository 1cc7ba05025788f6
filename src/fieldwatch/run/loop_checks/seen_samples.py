"""`SeenSamples`: whether the samples of an evaluation are among those of the training, whole or shifted."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.run.loop_checks.seen_windows import SeenWindows

_LEAST_COLUMNS = 4
"""Number of columns below which equal samples say nothing: coordinates and times come again."""
_MOST_COLUMNS = 4096
"""About the number of entries of a sample that make its mark: few of them are the same in many short sequences."""
_ROWS = 32
"""About the number of samples of a batch that are marked."""
_MOST = 2048
"""Number of samples that are remembered."""
_SAME = 1e-9
"""Relative difference of the marks of equal samples."""
_ALONE = 0.5
"""Share of the samples of an evaluation that have to differ from all its others."""
_LEAST = 64
"""Number of different samples of the training from which on an evaluation is compared."""


class SeenSamples:
    """Remembers a mark of each sample of the measured training batches, and compares those of evaluations.

    A mark is the product of a row with fixed weights, so that rows with equal entries have equal marks, and others have
    others. Everything stays on the device.
    """

    def __init__(self) -> None:
        self._marks: Float[Tensor, " samples"] | None = None
        self._columns = 0
        self._windows = SeenWindows()

    def state_dict(self) -> dict[str, Any]:
        """Return the marks."""
        windows = {"windows": self._windows.state_dict()} if self._windows.filled else {}
        return {"marks": self._marks, "columns": self._columns, **windows}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore them; they move to the device of the next batch."""
        self._marks = state["marks"]
        self._columns = int(state["columns"])
        if "windows" in state:
            self._windows.load_state_dict(state["windows"])

    def note(self, batch: Tensor) -> None:
        """Remember samples of a batch of the training, which `rows_of` can read."""
        self._windows.note(batch)
        # Marks need the precision of float64, which MPS has not.
        if batch.device.type == "mps" or (self._marks is not None and len(self._marks) >= _MOST):
            return
        rows = _nearly_whole(batch)
        columns = rows.shape[1]
        if columns < _LEAST_COLUMNS or (self._marks is not None and columns != self._columns):
            return
        marks = _marks(rows)
        self._columns = columns
        self._marks = marks if self._marks is None else torch.cat((self._marks.to(marks.device), marks))

    def share(self, batch: Tensor) -> Float[Tensor, ""] | None:
        """Return the share of samples of an evaluation's batch that are known; None if there is nothing to compare."""
        shares = [share for share in (self._share(batch), self._windows.share(batch)) if share is not None]
        return torch.stack(shares).max() if shares else None

    def _share(self, batch: Tensor) -> Float[Tensor, ""] | None:
        if self._marks is None or len(self._marks) < _LEAST:
            return None
        rows = _nearly_whole(batch)
        if rows.shape[1] != self._columns:
            return None
        marks = _marks(rows).sort().values
        known = self._marks.to(marks.device, non_blocking=True).sort().values
        above = torch.searchsorted(known, marks).clamp(max=len(known) - 1)
        below = (above - 1).clamp(min=0)
        apart = torch.minimum((known[above] - marks).abs(), (known[below] - marks).abs())
        same = apart <= _SAME * marks.abs()
        # Rows that come again and again in one evaluation, such as padding and single tokens, say nothing.
        again = marks[1:] - marks[:-1] <= _SAME * marks[1:].abs()
        edge = again.new_zeros(1)
        alone = ~(torch.cat((edge, again)) | torch.cat((again, edge)))
        return torch.where(alone.float().mean() > _ALONE, (same & alone).float().mean(), 0.0)


def _nearly_whole(batch: Tensor) -> Float[Tensor, "rows columns"]:
    """Return about 32 rows of a batch with all of their columns, or 4,096 of them."""
    rows = batch.detach()[:: max(len(batch) // _ROWS, 1)]
    flat = rows.reshape(len(rows), -1)
    return flat[:, :: max(flat.shape[1] // _MOST_COLUMNS, 1)]


def _marks(rows: Float[Tensor, "rows columns"]) -> Float[Tensor, " rows"]:
    """Return a number for each row that is the same for equal rows only."""
    weights = torch.arange(1, rows.shape[1] + 1, device=rows.device, dtype=torch.float64).square().sin()
    return rows.double() @ weights
