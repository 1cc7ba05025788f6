"""Agreement of a mesh with the Gaussians it was extracted from."""

import numpy as np
from jaxtyping import Float64

from fieldwatch.recon.mesh.closest import closest_points
from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.inside import encloses, points_inside
from fieldwatch.recon.mesh.triangles import Triangles


def gaussian_fit(mesh: Triangles, centers: Float64[np.ndarray, "n 3"]) -> dict[str, float | None]:
    """Measure how well a mesh fits Gaussians, under the tags of SuGaR's tools.

    `Mesh/GaussianFit/coverage` is the fraction of Gaussian centers inside the mesh, or None if the mesh has no inside
    because it is open or not orientable. `Mesh/GaussianFit/avg_distance` and `max_distance` are exact distances of the
    centers from the surface, in world units.

    Raises:
        MeshError: there are no centers, one is not finite, or the mesh has no faces.
    """
    if not len(centers):
        raise MeshError("expected the centers of at least one Gaussian, got none")
    _, distances, _ = closest_points(mesh, centers)
    # An open mesh has no inside: 0 would look like a bad fit.
    coverage = float(points_inside(mesh, centers).mean()) if encloses(mesh) else None
    return {
        "Mesh/GaussianFit/coverage": coverage,
        "Mesh/GaussianFit/avg_distance": float(distances.mean()),
        "Mesh/GaussianFit/max_distance": float(distances.max()),
    }
