"""Smoothness of a surface of Gaussians: offsets of centers from their neighbors' mean along the normal."""

from jaxtyping import Float, Int, Int64
from torch import Tensor

from fieldwatch.recon.losses.ellipsoids import Ellipsoids, take_rows

_PER_EXTENT = 10.0  # distances are measured in tenths of the camera extent, as in `surface`


def smoothing_error(
    ellipsoids: Ellipsoids,
    owners: Int64[Tensor, " samples"],
    neighbors: Int[Tensor, "samples k"],
    extent: float,
) -> Float[Tensor, ""]:
    """Return the mean distance of centers from their neighbors' mean along their normals, in tenths of the extent.

    This is the uniform Laplacian of SuGaR's mesh term (weight 5 there) with spatial neighbors instead of edges. Only
    the normal component is used, so the density of Gaussians along the surface is free. The result is 0 on a plane.

    Args:
        ellipsoids: all Gaussians.
        owners: indices of the Gaussians to regularize.
        neighbors: neighbor indices of each owner, including the owner itself.
        extent: camera extent E in world units, see `camera_extent`.

    Raises:
        ValueError: if the extent is not positive.
    """
    if not extent > 0:
        msg = f"the camera extent, the unit of distances, must be greater than 0, got {extent}"
        raise ValueError(msg)
    # index_select takes flat indices only.
    rows = neighbors.reshape(-1)
    shape = neighbors.shape
    neighbor_means = take_rows(ellipsoids.means, rows).view(*shape, 3).mean(1)
    normals = take_rows(ellipsoids.normals, owners)
    distances = ((take_rows(ellipsoids.means, owners) - neighbor_means) * normals).sum(-1)
    return distances.abs().sum() * _PER_EXTENT / (extent * max(len(owners), 1))
