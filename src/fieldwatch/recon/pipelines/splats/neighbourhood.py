"""The neighbours of the Gaussians in the coarse stage: searched in the background, and the same after a resume."""

from collections.abc import Mapping
from typing import Any, Self

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from fieldwatch.recon.geometry import NeighbourRefresher, NeighbourTable

USED_AFTER = 8
"""Steps from the start of a search until its table is used: always the same, so that a run repeats."""


class Neighbourhood:
    """The table of neighbours that the density terms use; a checkpoint holds it, and a search under way.

    Args:
        count: neighbours of each Gaussian, itself included.
        device: of the Gaussians.

    Attributes:
        state_device: device of the table: a checkpoint is restored there before there is a table to take it from.
    """

    def __init__(self, count: int, device: torch.device | str = "cpu") -> None:
        self.state_device = torch.device(device)
        self._neighbours = NeighbourRefresher(count=count)
        self._points: Tensor | None = None
        self._used_from = -1

    @property
    def nbytes(self) -> int:
        """Bytes of the table."""
        table = self._neighbours.table
        return 0 if table is None else table.indices.nbytes + table.squared.nbytes

    @property
    def tables(self) -> Mapping[str, Tensor]:
        """The tensors it holds, for `run.track(data=...)`."""
        table = self._neighbours.table
        return {} if table is None else {"indices": table.indices, "squared": table.squared}

    def at(self, step: int, means: Float[Tensor, "n 3"]) -> Int32[Tensor, "n k"]:
        """Return the neighbours to use at a step; searched now if there are none for this number of Gaussians."""
        # At a fixed step, whether or not the search was done long ago: a run must not depend on the speed of a thread.
        if self._points is not None and step >= self._used_from:
            self._neighbours.take()
            self._points = None
        table = self._neighbours.table
        # The loop waits here. It happens at the first density term and after each change of the rows.
        if table is None or len(table.indices) != len(means):
            # Kept on the disk: another run from the same checkpoint begins with the same points.
            self._neighbours.start(means, cached=True)
            table = self._neighbours.take()
            self._points = None
        return table.indices

    def start_search(self, step: int, means: Float[Tensor, "n 3"]) -> None:
        """Begin a search after a step; its table is used from `USED_AFTER` steps on."""
        # A copy: a checkpoint that is saved during the search must hold the points as they were when it began.
        self._start(means.detach().to("cpu", copy=True), step + USED_AFTER, means.device)

    def clear(self) -> None:
        """Drop the table and the search under way, as row numbers have changed."""
        self._neighbours.drop()
        self._neighbours.table = None
        self._points = None

    def __enter__(self) -> Self:
        """Return itself: the thread of the searches ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the thread of the searches."""
        self._neighbours.close()

    def state_dict(self) -> dict[str, Any]:
        """Return the table, and the points of a search under way."""
        return {"due": self._used_from, "points": self._points, **self.tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a stored table; a search that was under way begins again, of the same points."""
        self.clear()
        if "indices" in state:
            self._neighbours.table = NeighbourTable(indices=state["indices"], squared=state["squared"])
        if state["points"] is not None:
            points: Tensor = state["points"]
            self._start(points, int(state["due"]), self.state_device)

    def _start(self, points: Tensor, used_from: int, device: torch.device) -> None:
        self._points = points
        self._used_from = used_from
        self._neighbours.start(points.to(device))
