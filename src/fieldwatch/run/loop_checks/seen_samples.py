"""`SeenSamples`: whether the samples of an evaluation are among those of the training, whole or shifted."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.run.loop_checks.input_samples import some_rows
from fieldwatch.run.loop_checks.marks import are_equal, are_known, marks_of
from fieldwatch.run.loop_checks.seen_windows import SeenWindows

_LEAST_COLUMNS = 4
"""Number of columns below which equal samples say nothing: coordinates and times come again."""
_MOST_COLUMNS = 4096
"""About the number of entries of a sample that make its mark: few of them are the same in many short sequences."""
_MOST = 2048
"""Number of samples that are remembered."""
_ALONE = 0.5
"""Share of the samples of an evaluation that have to differ from all its others."""
_LEAST = 64
"""Number of different samples of the training from which on an evaluation is compared."""


class SeenSamples:
    """Remembers a mark of each sample of the measured training batches, and compares those of evaluations.

    Everything stays on the device.
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
        marks = marks_of(rows)
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
        marks = marks_of(rows).sort().values
        same = are_known(marks, self._marks)
        # Rows that come again and again in one evaluation, such as padding and single tokens, say nothing.
        again = are_equal(marks[:-1], marks[1:])
        edge = again.new_zeros(1)
        alone = ~(torch.cat((edge, again)) | torch.cat((again, edge)))
        return torch.where(alone.float().mean() > _ALONE, (same & alone).float().mean(), 0.0)


def _nearly_whole(batch: Tensor) -> Float[Tensor, "rows columns"]:
    """Return about 32 rows of a batch with all of their columns, or 4,096 of them."""
    rows = some_rows(batch)
    flat = rows.reshape(len(rows), -1)
    return flat[:, :: max(flat.shape[1] // _MOST_COLUMNS, 1)]
