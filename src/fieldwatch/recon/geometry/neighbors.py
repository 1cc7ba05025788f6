"""Exact, deterministic nearest neighbors with a k-d tree on the CPU; the first neighbor is the point itself."""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int32
from numpy import ndarray
from scipy.spatial import KDTree
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class NeighborTable:
    """The k nearest neighbors of n points, nearest first; the first one is the point itself.

    Attributes:
        indices: indices of the neighbors; int32, so 64 MB for a million points with 16 neighbors.
        squared: squared distances in squared world units at the time of the search.
    """

    indices: Int32[Tensor, "n k"]
    squared: Float32[Tensor, "n k"]

    def to(self, device: torch.device | str) -> "NeighborTable":
        """Return the table on another device."""
        return NeighborTable(indices=self.indices.to(device), squared=self.squared.to(device))

    def pruned(self, keep: Bool[Tensor, " n"], points: Float[Tensor, "survivors 3"]) -> "NeighborTable":
        """Return the table after pruning points.

        Rows that lost no neighbors are only renumbered; the others are searched again.

        Args:
            keep: mask of the points to keep.
            points: remaining points in world units, in the same order.

        Raises:
            ValueError: if the number of points does not match `keep`, or a point is not finite.
        """
        survivors = int(keep.sum())
        if len(points) != survivors:
            msg = f"expected the {survivors} points that `keep` selects, got {len(points)}: pass the remaining points"
            raise ValueError(msg)
        device = self.indices.device
        keep = keep.to(self.indices.device)
        # The running count of survivors is the new index of each remaining point.
        new_rows = torch.cumsum(keep, 0, dtype=torch.int32) - 1
        rows = self.indices[keep]
        # If all neighbors of a row survive, they are still the nearest ones.
        intact = keep[rows].all(-1) & (rows.shape[-1] <= survivors)
        count = min(rows.shape[-1], survivors)
        indices = new_rows[rows][:, :count]
        squared = self.squared[keep][:, :count]
        broken = (~intact).nonzero()[:, 0]
        if len(broken):
            fresh = _searched(_checked(points), broken.numpy(force=True).astype(np.int32), count)
            indices[broken], squared[broken] = (torch.from_numpy(array).to(device) for array in fresh)
        return NeighborTable(indices=indices, squared=squared)


def nearest_neighbors(points: Float[Tensor, "n 3"], count: int = 16) -> NeighborTable:
    """Find the nearest neighbors of every point, including the point itself as the first one.

    Distances are computed in float64. The same points give the same table, also for equal distances.

    Args:
        points: points in world units, on any device.
        count: number of neighbors per point, including the point itself; at most the number of points is used.

    Returns:
        Neighbor table on the device of the points.

    Raises:
        ValueError: if `count` is below 1, or a point is not finite.
    """
    if count < 1:
        msg = f"count of neighbors, which includes the point itself, must be at least 1, got {count}"
        raise ValueError(msg)
    coordinates = _checked(points)
    arrays = _searched(coordinates, np.arange(len(coordinates), dtype=np.int32), min(count, len(coordinates)))
    indices, squared = (torch.from_numpy(array).to(points.device) for array in arrays)
    return NeighborTable(indices=indices, squared=squared)


def _checked(points: Tensor) -> Float[ndarray, "n 3"]:
    # force=True also copies from a GPU.
    coordinates = points.detach().numpy(force=True).astype(np.float64)
    wrong = np.flatnonzero(~np.isfinite(coordinates).all(-1))
    if len(wrong):
        msg = (
            f"{len(wrong)} of {len(coordinates)} points are not finite, the first at index {wrong[0]}: "
            f"{tuple(coordinates[wrong[0]].tolist())}; neighbors exist only for finite points, so prune these first"
        )
        raise ValueError(msg)
    return coordinates


def _searched(
    coordinates: Float[ndarray, "n 3"], query_rows: Int32[ndarray, " rows"], count: int
) -> tuple[Int32[ndarray, "rows k"], Float32[ndarray, "rows k"]]:
    """Return neighbors and squared distances of the points `query_rows`, in that order.

    `count` must be at most the number of points.
    """
    if not len(query_rows):
        return np.empty((0, count), np.int32), np.empty((0, count), np.float32)
    # Median balancing would only add build time; the results are the same.
    tree = KDTree(coordinates, balanced_tree=False)
    # Querying in the order of the tree's leaves makes consecutive searches visit the same memory.
    order = np.asarray(tree.indices, dtype=np.int32)
    if len(query_rows) < len(coordinates):
        order = order[np.isin(order, query_rows, assume_unique=True)]
    distances, neighbor_rows = tree.query(coordinates[order], k=count)
    target_rows = np.searchsorted(query_rows, order)
    indices = np.empty((len(query_rows), count), np.int32)
    squared = np.empty((len(query_rows), count), np.float32)
    # For k = 1, scipy drops the neighbor axis.
    indices[target_rows], squared[target_rows] = (
        np.reshape(array, (-1, count)) for array in (neighbor_rows, np.square(distances))
    )
    _self_first(indices, squared, query_rows)
    return indices, squared


def _self_first(
    indices: Int32[ndarray, "rows k"], squared: Float32[ndarray, "rows k"], self_rows: Int32[ndarray, " rows"]
) -> None:
    """Move every point to the front of its row; with duplicate points the tree may return another one first or only."""
    rows = np.flatnonzero(indices[:, 0] != self_rows)
    if not len(rows):
        return
    is_self = indices[rows] == self_rows[rows, None]
    # A point that is missing from its row replaces the farthest neighbor.
    self_column = np.where(is_self.any(-1), is_self.argmax(-1), indices.shape[1] - 1)[:, None]
    columns = np.arange(indices.shape[1])[None]
    source = np.where(columns == 0, self_column, np.where(columns <= self_column, columns - 1, columns))
    indices[rows] = np.take_along_axis(indices[rows], source, 1)
    squared[rows] = np.take_along_axis(squared[rows], source, 1)
    indices[rows, 0] = self_rows[rows]
    squared[rows, 0] = 0.0
