"""Published evaluation protocols: their choice of points, lengths and distances."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float64
from scipy.spatial import KDTree

from fieldwatch.recon.mesh.closest import ClosestPoints, SurfaceSearch
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.sampling import SurfaceSamples, thinned
from fieldwatch.recon.mesh.triangles import Triangles

EvaluationStyle = Literal["plain", "dtu", "tanks", "diligent"]
"""Evaluation protocols.

- "plain": exact distances from points to the triangles of the other surface. With cameras, from the visible points of
  one surface to the whole other surface.
- "dtu": distances between point clouds thinned to a spacing; distances above a cap are left out of the means.
- "tanks": distances between point clouds thinned to half of the first threshold.
- "diligent": distances between the unthinned first hits of all rays within the masks (the protocol of SuperNormal for
  DiLiGenT-MV, which uses 512 x 612 rays per view and a threshold of 0.5 mm). Requires cameras.

Between point clouds, equal surfaces are about half a spacing apart, which is the floor of the last three protocols.
"""

_DTU_SPACING = 0.001  # of the diameter: 0.2 mm in DTU, whose objects measure about 20 cm
_DTU_CAP = 100.0  # in spacings: 20 mm in DTU


@dataclass(frozen=True, kw_only=True)
class StyleLengths:
    """Lengths of a protocol in world units.

    Attributes:
        spacing: distance between points after thinning; None disables thinning.
        cap: largest distance included in the means; None includes all.
    """

    spacing: float | None = None
    cap: float | None = None


def style_lengths(style: EvaluationStyle, *, diameter: float, threshold: float, given: StyleLengths) -> StyleLengths:
    """Return the lengths of a protocol; given lengths take precedence.

    DTU (Jensen et al., Large scale multi-view stereopsis evaluation, CVPR 2014, and its evaluation code) uses a spacing
    of 0.2 mm and a cap of 20 mm. Scenes here need not be in mm, so these become 0.001 and 0.1 of the diameter. Tanks
    and Temples (Knapitsch et al., TOG 2017) thins both clouds to half the threshold. The other protocols do not thin.
    """
    spacing = given.spacing
    cap = given.cap
    if style == "tanks":
        # Explicit lengths take precedence over those of the protocol.
        spacing = threshold / 2 if spacing is None else spacing
    if style == "dtu":
        spacing = _DTU_SPACING * diameter if spacing is None else spacing
        cap = _DTU_CAP * spacing if cap is None else cap
    return StyleLengths(spacing=spacing, cap=cap)


@dataclass(frozen=True, kw_only=True, eq=False)
class SurfaceDistances:
    """Distances from the points of one surface to another surface.

    Attributes:
        distances: distances in world units.
        cosines: cosine between the normals of each point and of its nearest point.
    """

    distances: Float64[np.ndarray, "n"]
    cosines: Float64[np.ndarray, "n"]


def distances_to_surface(points: SurfaceSamples, mesh: Triangles, search: SurfaceSearch) -> SurfaceDistances:
    """Measure exact distances from points to the triangles of a mesh."""
    closest: ClosestPoints = search.closest(points.points)
    return SurfaceDistances(distances=closest.distances, cosines=_cosines(points.normals, mesh.normals[closest.faces]))


def distances_to_points(points: SurfaceSamples, others: SurfaceSamples) -> SurfaceDistances:
    """Measure distances from points to their nearest neighbors in another point cloud."""
    # Nearest sample, not nearest surface point: what the protocols for scans measure.
    distances, nearest = KDTree(others.points).query(points.points)
    return SurfaceDistances(distances=distances, cosines=_cosines(points.normals, others.normals[nearest]))


def thinned_for(points: SurfaceSamples, lengths: StyleLengths, whose: str) -> SurfaceSamples:
    """Thin points if the protocol requires it.

    Raises:
        MeshError: there are no points.
    """
    if not len(points):
        raise MeshError(
            f"the cameras see nothing of {whose}: it is outside all views or masks; check that both meshes and the "
            "cameras are in the same coordinates, or leave the cameras out"
        )
    return points if lengths.spacing is None else thinned(points, lengths.spacing)


def _cosines(one: np.ndarray, other: np.ndarray) -> Float64[np.ndarray, "n"]:
    return np.einsum("ni,ni->n", one, other)
