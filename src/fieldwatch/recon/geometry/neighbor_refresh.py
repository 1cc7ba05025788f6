"""Asynchronous neighbor search that does not block training."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.geometry.neighbor_cache import cached_neighbors
from fieldwatch.recon.geometry.neighbors import NeighborTable, nearest_neighbors


@dataclass(kw_only=True, eq=False)
class _PendingSearch:
    """A running search: its points, their device, and a mask of the points not pruned since its start."""

    future: Future[NeighborTable]
    points: Float[Tensor, "n 3"]
    device: torch.device
    keep: Bool[Tensor, " n"]


class NeighborRefresher:
    """Holds the current neighbor table and refreshes it in a background thread (scipy's search releases the GIL).

        neighbors = NeighborRefresher(count=16)
        neighbors.start(means)           # at step 500
        ...                              # training continues with the old table
        table = neighbors.take()         # at a fixed step, such as 510, so that runs are reproducible

    Args:
        count: number of neighbors per point, including the point itself.
    """

    def __init__(self, *, count: int = 16) -> None:
        self.count = count
        self.table: NeighborTable | None = None
        # One worker: searches run in order and never compete for the CPU.
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="neighbors")
        self._search: _PendingSearch | None = None

    @property
    def searching(self) -> bool:
        """Whether a search was started and its table has not been taken."""
        return self._search is not None

    @property
    def ready(self) -> bool:
        """Whether `take` would return without waiting."""
        return self._search is not None and self._search.future.done()

    def start(self, points: Float[Tensor, "n 3"], *, cached: bool = False, folder: Path | None = None) -> None:
        """Start searching the neighbors of the current points; a previous search that was not taken is dropped.

        Args:
            points: points in world units; they are copied and may change immediately.
            cached: whether to use the cache on disk, for points from a checkpoint.
            folder: cache folder; None uses the user's cache folder.
        """
        self.drop()
        # Without copy=True, the optimizer would move CPU points while the thread searches.
        positions = points.detach().to("cpu", copy=True)
        if cached:
            future = self._worker.submit(cached_neighbors, positions, self.count, folder=folder)
        else:
            future = self._worker.submit(nearest_neighbors, positions, self.count)
        keep = torch.ones(len(positions), dtype=torch.bool)
        self._search = _PendingSearch(future=future, points=positions, device=points.device, keep=keep)

    def take(self) -> NeighborTable:
        """Wait for the running search, make its table the current one and return it.

        Raises:
            RuntimeError: if no search was started.
            ValueError: if the search failed, see `nearest_neighbors`.
        """
        search = self._search
        self._search = None
        if search is None:
            raise RuntimeError("no neighbor search is running: call start(points) first, then take() once")
        table = search.future.result()
        if not bool(search.keep.all()):
            # Points were pruned while the search ran: renumber the rows and search incomplete ones again.
            table = table.pruned(search.keep, search.points[search.keep])
        self.table = table.to(search.device)
        return self.table

    def prune(self, keep: Bool[Tensor, " n"], points: Float[Tensor, "survivors 3"]) -> None:
        """Remove points from the current table and from the running search.

        Args:
            keep: mask over the points before pruning; True for those to keep.
            points: points after pruning, in world units.

        Raises:
            ValueError: if `keep` does not have the length of the points being searched; also see
                `NeighborTable.pruned`.
        """
        search = self._search
        if search is not None:
            searched = int(search.keep.sum())
            if len(keep) != searched:
                msg = (
                    f"expected a mask over the {searched} points being searched, got {len(keep)}: call start(points) "
                    f"again after adding points"
                )
                raise ValueError(msg)
            # `search.keep` refers to the points at the start, `keep` only to those that are left since then.
            search.keep[search.keep.nonzero()[:, 0]] = keep.to("cpu")
        if self.table is not None:
            self.table = self.table.pruned(keep, points)

    def drop(self) -> None:
        """Drop the running search, if any; the current table is kept."""
        if self._search is not None:
            self._search.future.cancel()
        self._search = None

    def close(self) -> None:
        """End the thread after its current search."""
        self.drop()
        self._worker.shutdown()
