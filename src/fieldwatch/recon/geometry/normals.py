"""Normals of the surface that a depth map shows."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.geometry.cameras import Camera

_MIN_SQUARED_AREA = 1e-20  # of a squared area, in squared world units to the fourth


def normals_from_depth(
    depth: Float[Tensor, "height width"], camera: Camera, *, mask: Bool[Tensor, "height width"] | None = None
) -> tuple[Float[Tensor, "height width 3"], Bool[Tensor, "height width"]]:
    """Return unit normals in the world, towards the camera, by central differences of the points that a camera sees.

    A normal is valid where the pixel and its four neighbours lie in the picture, in the mask and in front of the
    camera; elsewhere it is 0 and passes no gradient. There is no square root near 0 and no division by a cosine, so
    the gradient stays finite on surfaces seen edge on.

    Args:
        depth: along the optical axis, in world units.
        camera: of the same size as `depth`.
        mask: pixels whose depth means something; all, if None.

    Returns:
        Normals and where they are valid.

    Raises:
        ValueError: the depth map and the camera have different sizes.
    """
    if depth.shape != (camera.height, camera.width):
        msg = (
            f"a depth map of {depth.shape[1]}x{depth.shape[0]} (width x height) for camera {camera.name!r} of "
            f"{camera.width}x{camera.height}: bring them to one size, with camera.resized"
        )
        raise ValueError(msg)
    known = depth.detach() > 0
    known = known if mask is None else known & mask
    valid = torch.zeros_like(known)
    valid[1:-1, 1:-1] = known[1:-1, 1:-1] & known[:-2, 1:-1] & known[2:, 1:-1] & known[1:-1, :-2] & known[1:-1, 2:]
    # relative to the camera, not the world's origin: differences of large numbers lose digits
    directions = camera.directions().to(depth)
    points = directions * depth[..., None]
    right = torch.zeros_like(points)
    down = torch.zeros_like(points)
    # Central differences between the left and right (upper and lower) neighbors.
    right[1:-1, 1:-1] = points[1:-1, 2:] - points[1:-1, :-2]
    down[1:-1, 1:-1] = points[2:, 1:-1] - points[:-2, 1:-1]
    # with y down and z forward this order points back at the camera
    area = torch.linalg.cross(down, right)
    squared = area.square().sum(-1, keepdim=True)
    valid = valid & (squared[..., 0].detach() > _MIN_SQUARED_AREA)
    # 1 where invalid: rsqrt's infinite slope at 0 stays out of the graph.
    safe = torch.where(valid[..., None], squared, torch.ones_like(squared))
    unit = torch.where(valid[..., None], area, torch.zeros_like(area)) * safe.rsqrt()
    return unit @ camera.world_from_camera[:3, :3].T.to(depth), valid
