"""Removal of outlier points, unsupported surface and small connected components."""

import numpy as np

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.point_queries import mean_distances, nearest, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.poisson import PoissonSurface
from fieldwatch.recon.mesh.triangles import Triangles

_SUPPORT_CELLS = 2.0  # distance from a sample, in cells, within which surface is always supported
_NEIGHBORS = 10


def without_outliers(points: OrientedPoints, *, neighbors: int = 20, ratio: float = 20.0) -> OrientedPoints:
    """Remove statistical outliers: points whose mean neighbor distance is far above that of all points.

    Args:
        points: point cloud; returned unchanged if it has no more than `neighbors` points.
        neighbors: number of neighbors per mean distance.
        ratio: accepted standard deviations above the mean over all points.

    Raises:
        MeshError: `neighbors` is below 1, or `ratio` is not positive.
    """
    if neighbors < 1 or not ratio > 0:
        raise MeshError(f"neighbors and ratio must be greater than 0, got {neighbors} and {ratio}")
    # The mean distance needs more points than neighbors.
    if len(points) <= neighbors:
        return points
    mean = mean_distances(search_tree(points.points), points.points, neighbors)
    return points.chosen(mean <= mean.mean() + ratio * mean.std())


def trimmed(surface: PoissonSurface, quantile: float, *, support: OrientedPoints) -> Triangles:
    """Remove the parts of a surface without nearby samples.

    A vertex is removed if two conditions hold. No sample is within two cells or three times the mean neighbor distance
    of its nearest sample. And its sample density is at most the given quantile of the densities of supported vertices.
    An object sampled on all sides therefore loses nothing, while SuGaR's cut at a quantile of all vertices always opens
    it. A side without samples is removed entirely, however large it is.

    Args:
        surface: reconstructed surface.
        quantile: quantile of the densities of supported vertices, 0 to 1; 0 keeps everything.
        support: points that the surface was reconstructed from.

    Raises:
        MeshError: the quantile is outside 0 to 1, or nothing would remain.
    """
    if not 0 <= quantile <= 1:
        raise MeshError(f"the quantile of densities to trim at must be from 0 to 1, got {quantile}")
    mesh = surface.mesh
    if quantile == 0 or not len(mesh.faces):
        return mesh
    tree = search_tree(support.points)
    distance, row = nearest(tree, mesh.vertices, 1)
    spacing, _ = nearest(tree, support.points[row[:, 0]], _NEIGHBORS + 1)
    # Relative to the local spacing, so that sparse regular sampling still counts as support.
    far = distance[:, 0] > np.maximum(_SUPPORT_CELLS * surface.cell, 3 * spacing[:, 1:].mean(1))
    # Over supported vertices only, so that a large gap does not shift the quantile.
    supported = surface.density[~far] if not far.all() else surface.density
    removed = far & (surface.density <= np.quantile(supported, quantile))
    # A face goes with any of its vertices, so no face keeps an unsupported corner.
    keep = ~removed[mesh.faces].any(1)
    if not keep.any():
        raise MeshError(
            f"trimming at the quantile {quantile} removes all {len(mesh.faces)} faces: the support points are not "
            f"those of the surface, or its resolution is too low. Lower the quantile"
        )
    return mesh if keep.all() else mesh.chosen(keep)


def without_small_pieces(mesh: Triangles, *, least_share: float = 0.01, least_faces: int | None = None) -> Triangles:
    """Remove small connected components; the largest one is always kept.

    Args:
        mesh: mesh with merged vertices.
        least_share: smallest size of a component to keep, as a fraction of all faces, 0 to 1.
        least_faces: smallest number of faces of a component to keep; overrides `least_share`.

    Raises:
        MeshError: `least_share` is outside 0 to 1.
    """
    if not 0 <= least_share <= 1:
        raise MeshError(f"the smallest fraction of the faces in a piece must be from 0 to 1, got {least_share}")
    if not len(mesh.faces):
        return mesh
    sizes = np.bincount(mesh.pieces)
    min_faces = least_share * len(mesh.faces) if least_faces is None else least_faces
    # The largest component is always kept, also if it is below the threshold.
    keep = (sizes >= min_faces)[mesh.pieces] | (mesh.pieces == 0)
    return mesh if keep.all() else mesh.chosen(keep)
