"""Surface normals from depth maps."""

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.geometry.cameras import Camera

_MIN_SQUARED_AREA = 1e-20  # world units to the fourth power


def normals_from_depth(
    depth: Float[Tensor, "height width"],
    camera: Camera,
    *,
    mask: Bool[Tensor, "height width"] | None = None,
    frame: Literal["world", "camera"] = "world",
) -> tuple[Float[Tensor, "height width 3"], Bool[Tensor, "height width"]]:
    """Compute unit normals, facing the camera, from central differences of the unprojected depth map.

    A normal is valid if the pixel and its four neighbors are in the image, in the mask and in front of the camera;
    elsewhere it is 0 without gradient. No square root near 0 and no division by a cosine are involved, so gradients
    stay finite on surfaces seen edge-on.

    Args:
        depth: depth along the optical axis in world units.
        camera: camera with the size of `depth`.
        mask: pixels with known depth; None means all pixels with positive depth.
        frame: axes of the normals: those of the world, or those of the camera (x right, y down, z forward).

    Returns:
        Normals, and a mask of where they are valid.

    Raises:
        ValueError: if depth map and camera have different sizes.
    """
    if depth.shape != (camera.height, camera.width):
        msg = (
            f"depth map and camera {camera.name!r} must have the same size (width x height), got "
            f"{depth.shape[1]}x{depth.shape[0]} and {camera.width}x{camera.height}: use camera.resized"
        )
        raise ValueError(msg)
    known = depth.detach() > 0
    known = known if mask is None else known & mask
    valid = torch.zeros_like(known)
    valid[1:-1, 1:-1] = known[1:-1, 1:-1] & known[:-2, 1:-1] & known[2:, 1:-1] & known[1:-1, :-2] & known[1:-1, 2:]
    # Camera coordinates, since far from the world origin differences of positions would lose digits.
    directions = camera.directions(depth)
    points = directions * depth[..., None]
    right = torch.zeros_like(points)
    down = torch.zeros_like(points)
    # Central differences between the left and right (upper and lower) neighbors.
    right[1:-1, 1:-1] = points[1:-1, 2:] - points[1:-1, :-2]
    down[1:-1, 1:-1] = points[2:, 1:-1] - points[:-2, 1:-1]
    # With y down and z forward, this order of the factors points toward the camera.
    area = torch.linalg.cross(down, right)
    squared = area.square().sum(-1, keepdim=True)
    valid = valid & (squared[..., 0].detach() > _MIN_SQUARED_AREA)
    # Replacing invalid values by 1 keeps the infinite slope of rsqrt at 0 out of the graph.
    safe = torch.where(valid[..., None], squared, torch.ones_like(squared))
    unit = torch.where(valid[..., None], area, torch.zeros_like(area)) * safe.rsqrt()
    return (unit if frame == "camera" else unit @ camera.world_from_camera[:3, :3].T.to(depth)), valid
