"""The nearest neighbours of every point, by a k-d tree on the CPU: exact, deterministic, each point its own first."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int32
from numpy import ndarray
from scipy.spatial import KDTree
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighbourTable:
    """The k nearest neighbours of n points, nearest first; the first of every point is itself.

    Attributes:
        indices: of the neighbours; 4 bytes each, so 64 MB for a million points with 16 neighbours.
        squared: squared distances, in squared world units, at the time of the search.
    """

    indices: Int32[Tensor, "n k"]
    squared: Float32[Tensor, "n k"]

    def to(self, device: torch.device | str) -> "NeighbourTable":
        """Return the table on another device."""
        return NeighbourTable(indices=self.indices.to(device), squared=self.squared.to(device))

    def pruned(self, keep: Bool[Tensor, " n"], points: Float[Tensor, "survivors 3"]) -> "NeighbourTable":
        """Return the table of the points that are kept.

        A row that lost none of its neighbours is only renumbered; the others are searched anew.

        Args:
            keep: the points that stay.
            points: those that stay, in their order.

        Raises:
            ValueError: `points` are not as many as `keep` says, or there are points that are not finite.
        """
        survivors = int(keep.sum())
        if len(points) != survivors:
            msg = f"{survivors} points are kept, but {len(points)} were given: pass the points after the prune"
            raise ValueError(msg)
        device = self.indices.device
        keep = keep.to(self.indices.device)
        # Running count of survivors: the new row of every point that stays.
        new_rows = torch.cumsum(keep, 0, dtype=torch.int32) - 1
        rows = self.indices[keep]
        # A row stays valid when all its neighbors survive: what was nearest still is.
        intact = keep[rows].all(-1) & (rows.shape[-1] <= survivors)
        count = min(rows.shape[-1], survivors)
        indices = new_rows[rows][:, :count]
        squared = self.squared[keep][:, :count]
        broken = (~intact).nonzero()[:, 0]
        if len(broken):
            fresh = _searched(_checked(points), broken.numpy(force=True).astype(np.int32), count)
            indices[broken], squared[broken] = (torch.from_numpy(array).to(device) for array in fresh)
        return NeighbourTable(indices=indices, squared=squared)


def nearest_neighbours(points: Float[Tensor, "n 3"], count: int = 16) -> NeighbourTable:
    """Find the nearest neighbours of every point, itself included and first.

    Distances are computed in float64; the same points give the same table, also among equal distances.

    Args:
        points: in world units, on any device.
        count: neighbours of each, itself included; with fewer points than that, all of them.

    Returns:
        The table, on the device of the points.

    Raises:
        ValueError: count is below 1, or there are points that are not finite.
    """
    if count < 1:
        msg = f"{count} neighbours were asked for: every point has at least one, itself, so ask for 1 or more"
        raise ValueError(msg)
    coordinates = _checked(points)
    arrays = _searched(coordinates, np.arange(len(coordinates), dtype=np.int32), min(count, len(coordinates)))
    indices, squared = (torch.from_numpy(array).to(points.device) for array in arrays)
    return NeighbourTable(indices=indices, squared=squared)


def _checked(points: Tensor) -> Float[ndarray, "n 3"]:
    coordinates = points.detach().numpy(force=True).astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(coordinates).all(-1))
    if len(wrong):
        msg = (
            f"{len(wrong)} of {len(coordinates)} points are not finite, the first is number {wrong[0]} at "
            f"{tuple(coordinates[wrong[0]].tolist())}: neighbours exist for finite points only, so prune these first"
        )
        raise ValueError(msg)
    return coordinates


def _searched(
    coordinates: Float[ndarray, "n 3"], query_rows: Int32[ndarray, " rows"], count: int
) -> tuple[Int32[ndarray, "rows k"], Float32[ndarray, "rows k"]]:
    """Neighbours of the points `query_rows`, in that order; `count` is at most the number of points."""
    if not len(query_rows):
        return np.empty((0, count), np.int32), np.empty((0, count), np.float32)
    # Median balancing costs build time and does not change the answers.
    tree = KDTree(coordinates, balanced_tree=False)
    # in the tree's own order the search visits memory that it has just seen
    order = np.asarray(tree.indices, dtype=np.int32)
    if len(query_rows) < len(coordinates):
        order = order[np.isin(order, query_rows, assume_unique=True)]
    distances, neighbour_rows = tree.query(coordinates[order], k=count)
    target_rows = np.searchsorted(query_rows, order)
    indices = np.empty((len(query_rows), count), np.int32)
    squared = np.empty((len(query_rows), count), np.float32)
    # one neighbour comes without its axis
    indices[target_rows], squared[target_rows] = (
        np.reshape(array, (-1, count)) for array in (neighbour_rows, np.square(distances))
    )
    _self_first(indices, squared, query_rows)
    return indices, squared


def _self_first(
    indices: Int32[ndarray, "rows k"], squared: Float32[ndarray, "rows k"], self_rows: Int32[ndarray, " rows"]
) -> None:
    """Put every point first in its row: among points at one place the tree may put another first, or leave it out."""
    rows = np.flatnonzero(indices[:, 0] != self_rows)
    if not len(rows):
        return
    is_self = indices[rows] == self_rows[rows, None]
    # Where the point is not in its own row, it replaces the farthest neighbor.
    self_column = np.where(is_self.any(-1), is_self.argmax(-1), indices.shape[1] - 1)[:, None]
    columns = np.arange(indices.shape[1])[None]
    source = np.where(columns == 0, self_column, np.where(columns <= self_column, columns - 1, columns))
    indices[rows] = np.take_along_axis(indices[rows], source, 1)
    squared[rows] = np.take_along_axis(squared[rows], source, 1)
    indices[rows, 0] = self_rows[rows]
    squared[rows, 0] = 0.0
