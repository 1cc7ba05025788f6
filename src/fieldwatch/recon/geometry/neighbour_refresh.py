"""Neighbours that are searched beside the training, not in its way."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.geometry.neighbour_cache import cached_neighbours
from fieldwatch.recon.geometry.neighbours import NeighbourTable, nearest_neighbours


@dataclass(kw_only=True, eq=False)
class _PendingSearch:
    """One search under way: for which points, on which device, and which of them are still wanted."""

    future: Future[NeighbourTable]
    points: Float[Tensor, "n 3"]
    device: torch.device
    keep: Bool[Tensor, " n"]


class NeighbourRefresher:
    """The current table of neighbours, and its refresh on a thread of its own (scipy searches without Python's lock).

        neighbours = NeighbourRefresher(count=16)
        neighbours.start(means)          # at step 500
        ...                              # the old table serves
        table = neighbours.take()        # at step 510, say: always at the same step, so that a run repeats

    Args:
        count: neighbours of each point, itself included.
    """

    def __init__(self, *, count: int = 16) -> None:
        self.count = count
        self.table: NeighbourTable | None = None
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="neighbours")
        self._search: _PendingSearch | None = None

    @property
    def searching(self) -> bool:
        """Whether a search was started whose table has not been taken."""
        return self._search is not None

    @property
    def ready(self) -> bool:
        """Whether `take` would not have to wait."""
        return self._search is not None and self._search.future.done()

    def start(self, points: Float[Tensor, "n 3"], *, cached: bool = False, folder: Path | None = None) -> None:
        """Begin to search the neighbours of the points as they are now; a table not yet taken is given up.

        Args:
            points: in world units; copied, so they may change at once.
            cached: look on disk first and keep the table there: for points from a checkpoint.
            folder: of the tables on disk; None is the user's cache folder.
        """
        self.drop()
        # copy=True also on a CPU: the optimizer moves the points while the thread searches.
        positions = points.detach().to("cpu", copy=True)
        if cached:
            future = self._worker.submit(cached_neighbours, positions, self.count, folder=folder)
        else:
            future = self._worker.submit(nearest_neighbours, positions, self.count)
        keep = torch.ones(len(positions), dtype=torch.bool)
        self._search = _PendingSearch(future=future, points=positions, device=points.device, keep=keep)

    def take(self) -> NeighbourTable:
        """Wait for the search that was started, make its table the current one and return it.

        Raises:
            RuntimeError: no search was started.
            ValueError: the points could not be searched, see `nearest_neighbours`.
        """
        search = self._search
        self._search = None
        if search is None:
            raise RuntimeError("there is no search of neighbours to take: call start(points) first, then take() once")
        table = search.future.result()
        if not bool(search.keep.all()):
            # Points were removed while the search ran: renumber, and search the broken rows again.
            table = table.pruned(search.keep, search.points[search.keep])
        self.table = table.to(search.device)
        return self.table

    def prune(self, keep: Bool[Tensor, " n"], points: Float[Tensor, "survivors 3"]) -> None:
        """Let go of points: in the current table, and in the one being searched.

        Args:
            keep: which of the points there were stay.
            points: those that stay.

        Raises:
            ValueError: see `NeighbourTable.pruned`; or `keep` is of another length than the points being searched.
        """
        search = self._search
        if search is not None:
            searched = int(search.keep.sum())
            if len(keep) != searched:
                msg = (
                    f"a prune of {len(keep)} points came while neighbours of {searched} are searched: after points "
                    "were "
                    f"added, call start(points) again"
                )
                raise ValueError(msg)
            # The mask counts the points of the start; `keep` only those that are left since.
            search.keep[search.keep.nonzero()[:, 0]] = keep.to("cpu")
        if self.table is not None:
            self.table = self.table.pruned(keep, points)

    def drop(self) -> None:
        """Give up the search under way, if any; the current table stays."""
        if self._search is not None:
            self._search.future.cancel()
        self._search = None

    def close(self) -> None:
        """End the thread, after the search under way."""
        self.drop()
        self._worker.shutdown()
