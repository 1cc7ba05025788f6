"""How a mesh fits the Gaussians that it was made from."""

import numpy as np
from jaxtyping import Float64

from fieldwatch.recon.mesh.closest import closest_points
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.inside import encloses, points_inside
from fieldwatch.recon.mesh.triangles import Triangles


def gaussian_fit(mesh: Triangles, centres: Float64[np.ndarray, "n 3"]) -> dict[str, float | None]:
    """Measure how a mesh fits Gaussians, by the tags of SuGaR's tools.

    `Mesh/GaussianFit/coverage` is the share of centres inside the mesh; None where it has no inside (it is open, or
    cannot be wound alike), for then any number would be wrong. `Mesh/GaussianFit/avg_distance` and `max_distance` are
    distances of the centres from the surface, exact, in units of the scene.

    Raises:
        MeshError: there are no centres, one is not finite, or the mesh has no faces.
    """
    if not len(centres):
        raise MeshError("the fit of a mesh to no Gaussians was asked for: give the centres of at least one Gaussian")
    _, distances, _ = closest_points(mesh, centres)
    # An open mesh has no inside: None is honest where 0 would look like a bad fit.
    coverage = float(points_inside(mesh, centres).mean()) if encloses(mesh) else None
    return {
        "Mesh/GaussianFit/coverage": coverage,
        "Mesh/GaussianFit/avg_distance": float(distances.mean()),
        "Mesh/GaussianFit/max_distance": float(distances.max()),
    }
