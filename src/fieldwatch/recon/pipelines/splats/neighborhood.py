"""Nearest neighbors of the Gaussians in the coarse stage: searched in the background, reproducible after a resume."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from fieldwatch.recon.geometry import NeighborRefresher, NeighborTable

USED_AFTER = 8
"""Number of steps from the start of a search until its table is used; constant, so that runs are reproducible."""


class Neighborhood:
    """Neighbor table of the density terms; checkpoints contain the table and a search in progress.

    Args:
        count: number of neighbors of each Gaussian, itself included.
        device: device of the Gaussians.

    Attributes:
        state_device: device to which a checkpoint is restored, because a new object has no table to derive it from.
    """

    def __init__(self, count: int, device: torch.device | str = "cpu") -> None:
        self.state_device = torch.device(device)
        self._neighbors = NeighborRefresher(count=count)
        self._points: Tensor | None = None
        self._used_from = -1

    @property
    def nbytes(self) -> int:
        """Size of the table, bytes."""
        table = self._neighbors.table
        return 0 if table is None else table.indices.nbytes + table.squared.nbytes

    @property
    def tables(self) -> Mapping[str, Tensor]:
        """Tensors of the table, for `run.track(data=...)`."""
        table = self._neighbors.table
        return {} if table is None else {"indices": table.indices, "squared": table.squared}

    def at(self, step: int, means: Float[Tensor, "n 3"]) -> Int32[Tensor, "n k"]:
        """Return the neighbors to use at a step; search them now if there is no table for this number of Gaussians."""
        # At a fixed step, even if the search finished earlier: a run must not depend on the speed of a thread.
        if self._points is not None and step >= self._used_from:
            self._neighbors.take()
            self._points = None
        table = self._neighbors.table
        # Blocks the training loop: at the first density term and after each change of the rows.
        if table is None or len(table.indices) != len(means):
            # Cached on disk, because other runs from the same checkpoint start with the same points.
            self._neighbors.start(means, cached=True)
            table = self._neighbors.take()
            self._points = None
        return table.indices

    def start_search(self, step: int, means: Float[Tensor, "n 3"]) -> None:
        """Start a background search after a step; its table is used `USED_AFTER` steps later."""
        # A copy: a checkpoint saved during the search must contain the points from its start.
        self._start(means.detach().to("cpu", copy=True), step + USED_AFTER, means.device)

    def clear(self) -> None:
        """Discard the table and a search in progress, because the row numbers have changed."""
        self._neighbors.drop()
        self._neighbors.table = None
        self._points = None

    def __enter__(self) -> Self:
        """Return self; the search thread ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the search thread."""
        self._neighbors.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the table and the points of a search in progress."""
        return {"due": self._used_from, "points": self._points, **self.tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore a stored table; a search that was in progress restarts with the same points."""
        self.clear()
        if "indices" in state:
            self._neighbors.table = NeighborTable(indices=state["indices"], squared=state["squared"])
        # A thread cannot be stored, so its search is repeated from its input.
        if state["points"] is not None:
            points: Tensor = state["points"]
            self._start(points, int(state["due"]), self.state_device)

    def _start(self, points: Tensor, used_from: int, device: torch.device) -> None:
        self._points = points
        self._used_from = used_from
        self._neighbors.start(points.to(device))
