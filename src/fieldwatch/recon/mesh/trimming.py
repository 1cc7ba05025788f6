"""What does not belong to a surface: outliers among its points, parts that no point supports, small pieces."""

import numpy as np

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.point_queries import mean_distances, nearest, search_tree
from fieldwatch.recon.mesh.points import OrientedPoints
from fieldwatch.recon.mesh.poisson import PoissonSurface
from fieldwatch.recon.mesh.triangles import Triangles

_SUPPORT_CELLS = 2.0  # cells from a sample: there a surface is supported, however thin the samples lie
_NEIGHBOURS = 10


def without_outliers(points: OrientedPoints, *, neighbours: int = 20, ratio: float = 20.0) -> OrientedPoints:
    """Return the points whose mean distance to their nearest ones is not much larger than that of all.

    Args:
        points: any number; none are left out where there are no more than `neighbours`.
        neighbours: over which a point's mean distance is taken.
        ratio: standard deviations above the mean of all that are allowed.

    Raises:
        MeshError: fewer than one neighbour, or a ratio that is not above 0.
    """
    if neighbours < 1 or not ratio > 0:
        raise MeshError(f"outliers by {neighbours} neighbours and a ratio of {ratio}: both must be above 0")
    if len(points) <= neighbours:
        return points
    mean = mean_distances(search_tree(points.points), points.points, neighbours)
    return points.chosen(mean <= mean.mean() + ratio * mean.std())


def trimmed(surface: PoissonSurface, quantile: float, *, support: OrientedPoints) -> Triangles:
    """Return the part of a surface that points support.

    A vertex goes if no sample is near it, within two cells or three times the distance at which the nearest sample has
    its own neighbours, and its density is among the lowest of those that have one. So an object that was sampled all
    over loses nothing, where SuGaR's cut at a quantile of all vertices always opens it; and a side that was not sampled
    goes as a whole, however large it is.

    Args:
        surface: as reconstructed.
        quantile: of the densities of supported vertices, 0 to 1, up to which unsupported ones go; 0 keeps all.
        support: points that the surface was made from.

    Raises:
        MeshError: the quantile is not within 0 and 1, or nothing would remain.
    """
    if not 0 <= quantile <= 1:
        raise MeshError(f"the quantile of densities to trim at is {quantile}: it must lie within 0 and 1")
    mesh = surface.mesh
    if quantile == 0 or not len(mesh.faces):
        return mesh
    tree = search_tree(support.points)
    distance, row = nearest(tree, mesh.vertices, 1)
    spacing, _ = nearest(tree, support.points[row[:, 0]], _NEIGHBOURS + 1)
    # Relative to the local spacing: sparse but regular sampling still counts as support.
    far = distance[:, 0] > np.maximum(_SUPPORT_CELLS * surface.cell, 3 * spacing[:, 1:].mean(1))
    # The quantile is taken over supported vertices, so that a large gap does not shift it.
    supported = surface.density[~far] if not far.all() else surface.density
    removed = far & (surface.density <= np.quantile(supported, quantile))
    keep = ~removed[mesh.faces].any(1)
    if not keep.any():
        raise MeshError(
            f"trimming at the quantile {quantile} leaves nothing of {len(mesh.faces)} faces: the points given as "
            f"support are not those of the surface, or its resolution is too low. Lower the quantile"
        )
    return mesh if keep.all() else mesh.chosen(keep)


def without_small_pieces(mesh: Triangles, *, least_share: float = 0.01, least_faces: int | None = None) -> Triangles:
    """Return a mesh without its small pieces; faces that share an edge are of one piece.

    Args:
        mesh: welded; the largest piece always stays.
        least_share: of the faces of the whole mesh that a piece must have, 0 to 1.
        least_faces: that a piece must have, instead of a share.

    Raises:
        MeshError: the share is not within 0 and 1.
    """
    if not 0 <= least_share <= 1:
        raise MeshError(f"pieces below a share of {least_share} of the faces: the share must lie within 0 and 1")
    if not len(mesh.faces):
        return mesh
    sizes = np.bincount(mesh.pieces)
    min_faces = least_share * len(mesh.faces) if least_faces is None else least_faces
    keep = (sizes >= min_faces)[mesh.pieces] | (mesh.pieces == 0)
    return mesh if keep.all() else mesh.chosen(keep)
