"""How published protocols choose the points of two surfaces, and between what they measure."""

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
"""Protocols.

- "plain": from the points to the other surface's triangles, exact. With cameras, from what they see of one surface to
  the whole other one.
- "dtu": clouds thinned to a spacing, distances from cloud to cloud, those above a cap left out of the means.
- "tanks": clouds thinned to half of the first threshold, from cloud to cloud.
- "diligent": the first hits of all rays within the masks as they are, from cloud to cloud (the protocol of SuperNormal
  for DiLiGenT-MV; there with 512 x 612 rays per view, and 0.5 mm as the threshold). Needs cameras.

From cloud to cloud, equal surfaces are about half a spacing apart: that is the floor of the last three.
"""

_DTU_SPACING = 0.001  # of the diameter: DTU's 0.2 mm on objects of some 20 cm
_DTU_CAP = 100.0  # spacings: DTU's 20 mm


@dataclass(frozen=True, kw_only=True)
class StyleLengths:
    """Lengths of a protocol, in units of the scene.

    Attributes:
        spacing: of the points that are left after thinning; None: they are not thinned.
        cap: distances above it are left out of the means; None: all count.
    """

    spacing: float | None = None
    cap: float | None = None


def style_lengths(style: EvaluationStyle, *, diameter: float, threshold: float, given: StyleLengths) -> StyleLengths:
    """Return the lengths of a protocol; those that are given win.

    DTU (Jensen et al., Large scale multi-view stereopsis evaluation, CVPR 2014, and the evaluation code that goes with
    the data set): spacing 0.2 mm, cap 20 mm; here 0.001 and 0.1 of the diameter, since a scene need not be in mm.
    Tanks and Temples (Knapitsch et al., TOG 2017): both clouds thinned to half the threshold. The others thin nothing.
    """
    spacing = given.spacing
    cap = given.cap
    if style == "tanks":
        spacing = threshold / 2 if spacing is None else spacing
    if style == "dtu":
        spacing = _DTU_SPACING * diameter if spacing is None else spacing
        cap = _DTU_CAP * spacing if cap is None else cap
    return StyleLengths(spacing=spacing, cap=cap)


@dataclass(frozen=True, kw_only=True, eq=False)
class SurfaceDistances:
    """From the points of one surface to another surface.

    Attributes:
        distances: units of the scene.
        cosines: between the normals of a point and of the nearest one.
    """

    distances: Float64[np.ndarray, "n"]
    cosines: Float64[np.ndarray, "n"]


def distances_to_surface(points: SurfaceSamples, mesh: Triangles, search: SurfaceSearch) -> SurfaceDistances:
    """Measure exact distances from points to the triangles of a mesh."""
    closest: ClosestPoints = search.closest(points.points)
    return SurfaceDistances(distances=closest.distances, cosines=_cosines(points.normals, mesh.normals[closest.faces]))


def distances_to_points(points: SurfaceSamples, others: SurfaceSamples) -> SurfaceDistances:
    """Measure distances from points to the nearest of other points, as protocols for clouds do."""
    distances, nearest = KDTree(others.points).query(points.points)
    return SurfaceDistances(distances=distances, cosines=_cosines(points.normals, others.normals[nearest]))


def thinned_for(points: SurfaceSamples, lengths: StyleLengths, whose: str) -> SurfaceSamples:
    """Thin points where the protocol says so.

    Raises:
        MeshError: there are no points.
    """
    if not len(points):
        raise MeshError(
            f"the cameras see nothing of {whose}: it lies outside all views (or masks); check that both meshes and the "
            "cameras are in the same world, or leave the cameras out"
        )
    return points if lengths.spacing is None else thinned(points, lengths.spacing)


def _cosines(one: np.ndarray, other: np.ndarray) -> Float64[np.ndarray, "n"]:
    return np.einsum("ni,ni->n", one, other)
