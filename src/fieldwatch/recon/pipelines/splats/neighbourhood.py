"""The neighbours of the Gaussians in the coarse stage: searched beside the training, and the same after a resume."""

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
        state_device: where a checkpoint's tensors belong that it has none of yet: the table is made on this device.
    """

    def __init__(self, count: int, device: torch.device | str = "cpu") -> None:
        self.state_device = torch.device(device)
        self._neighbours = NeighbourRefresher(count=count)
        self._points: Tensor | None = None
        self._due = -1

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
        if self._points is not None and step >= self._due:
            self._neighbours.take()
            self._points = None
        table = self._neighbours.table
        if table is None or len(table.indices) != len(means):
            self._neighbours.start(means, cached=True)
            table = self._neighbours.take()
            self._points = None
        return table.indices

    def renew(self, step: int, means: Float[Tensor, "n 3"]) -> None:
        """Begin a search after a step; its table is used from `USED_AFTER` steps on."""
        self._begin(means.detach().to("cpu", copy=True), step + USED_AFTER, means.device)

    def forget(self) -> None:
        """Let go of everything: Gaussians came or went."""
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
        """Return the table, and the places of a search under way."""
        return {"due": self._due, "points": self._points, **self.tables}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with a stored table; a search that was under way begins again, of the same places."""
        self.forget()
        if "indices" in state:
            self._neighbours.table = NeighbourTable(indices=state["indices"], squared=state["squared"])
        if state["points"] is not None:
            points: Tensor = state["points"]
            self._begin(points, int(state["due"]), self.state_device)

    def _begin(self, points: Tensor, due: int, device: torch.device) -> None:
        self._points = points
        self._due = due
        self._neighbours.start(points.to(device))
