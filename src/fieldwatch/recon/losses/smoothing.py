"""A surface of Gaussians that is smooth: each centre in the middle of its neighbours', along its normal."""

from jaxtyping import Float, Int, Int64
from torch import Tensor

from fieldwatch.recon.losses.ellipsoids import Ellipsoids

_PER_EXTENT = 10.0  # distances are told in tenths of the extent, as those of the samples


def smoothing_error(
    ellipsoids: Ellipsoids,
    owners: Int64[Tensor, " samples"],
    neighbours: Int[Tensor, "samples k"],
    extent: float,
) -> Float[Tensor, ""]:
    """Mean distance of centres from the middle of their neighbours, along their normals, in tenths of the extent.

    The uniform Laplacian of SuGaR's mesh term (weight 5 there), on neighbours in space instead of edges; only the part
    along the normal, so that Gaussians may lie as densely as they like. 0 on a plane.

    Args:
        ellipsoids: all Gaussians.
        owners: the Gaussians that count.
        neighbours: of each of them, itself among them.
        extent: of the cameras, world units.

    Raises:
        ValueError: the extent is not positive.
    """
    if not extent > 0:
        msg = f"distances are told in tenths of the cameras' extent, which is {extent}: it must be above 0"
        raise ValueError(msg)
    rows = neighbours.reshape(-1)
    shape = neighbours.shape
    middles = ellipsoids.means.index_select(0, rows).view(*shape, 3).mean(1)
    normals = ellipsoids.normals.index_select(0, owners)
    distances = ((ellipsoids.means.index_select(0, owners) - middles) * normals).sum(-1)
    return distances.abs().sum() * _PER_EXTENT / (extent * max(len(owners), 1))
