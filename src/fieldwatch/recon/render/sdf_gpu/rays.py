"""Rays of a step on a GPU: their observations, poses, and place in the scene (`gpu/sdf_rays.cu`)."""

from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fieldwatch.recon.render.gpu import KernelFile
from fieldwatch.recon.render.sdf.samples import BoundedRays

RAYS = KernelFile("sdf_rays.cu")
_THREADS = 128
_POSE_THREADS = 32


class DrawnRays(NamedTuple):
    """Observations of rays; see `RayBatch`."""

    view: Int64[Tensor, " rays"]
    pixel: Int64[Tensor, " rays"]
    directions: Float[Tensor, "rays 3"]
    normals: Float[Tensor, "rays 3"]
    mask: Bool[Tensor, " rays"]
    known: Bool[Tensor, " rays"]
    distance: Float[Tensor, " rays"]


def draw_rays(drawn: Int64[Tensor, "2 rays"], regions: Int64[Tensor, " _"], *pixels: Tensor) -> DrawnRays:
    """Return the observations at drawn pixels.

    Args:
        drawn: places of the pixels in the list of regions, and their views.
        regions: pixels of all regions of all views, in their views.
        *pixels: first pixels and widths of the views, their lenses, and of all pixels normals, mask, known, distance.
    """
    rays = drawn.shape[1]
    device = drawn.device

    def empty(dtype: torch.dtype, *shape: int) -> Tensor:
        return torch.empty(rays, *shape, dtype=dtype, device=device)

    out = DrawnRays(
        view=empty(torch.int64),
        pixel=empty(torch.int64),
        directions=empty(torch.float32, 3),
        normals=empty(torch.float32, 3),
        mask=empty(torch.bool),
        known=empty(torch.bool),
        distance=empty(torch.float32),
    )
    RAYS.launch("draw_rays", -(-rays // _THREADS), rays, drawn, regions, *pixels, *out)
    return out


def moved_poses(
    rotations: Float[Tensor, "views 3"], translations: Float[Tensor, "views 3"], start: Float[Tensor, "views 4 4"]
) -> Float[Tensor, "views 4 4"]:
    """Return the poses [Exp(r) | t] start; gradients flow to the rotations and translations."""
    return cast("Tensor", _MovedPoses.apply(rotations, translations, start))


def placed_rays(
    view: Int64[Tensor, " rays"],
    directions: Float[Tensor, "rays 3"],
    normals: Float[Tensor, "rays 3"],
    poses: Float[Tensor, "views 4 4"],
    radius: float,
) -> tuple[BoundedRays, Float[Tensor, "rays 3"]]:
    """Return rays in the frame of the scene, bounded by a sphere, and the normals in that frame.

    Gradients flow from origins, directions and normals to the poses.

    Args:
        view: view of each ray.
        directions: unit directions in camera axes.
        normals: normals in camera axes.
        poses: ``world_from_camera`` of the views.
        radius: radius of the sphere.
    """
    origins, turned, near, far, observed = _PlacedRays.apply(poses, view, directions, normals, radius)
    return BoundedRays(origins=origins, directions=turned, near=near, far=far), observed


class _MovedPoses(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rotations: Tensor, translations: Tensor, start: Tensor) -> Tensor:
        poses = torch.empty_like(start)
        views = len(start)
        RAYS.launch("move_poses", -(-views // _POSE_THREADS), views, rotations, translations, start, poses)
        ctx.save_for_backward(rotations, start)
        return poses

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        rotations, start = ctx.saved_tensors
        by_rotations, by_translations = (torch.empty_like(rotations) for _ in range(2))
        given = (len(start), rotations, start, gradients[0].contiguous())
        RAYS.launch("move_poses_backward", -(-len(start) // _POSE_THREADS), *given, by_rotations, by_translations)
        return by_rotations, by_translations, None


class _PlacedRays(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, poses: Tensor, view: Tensor, directions: Tensor, *rest: Any) -> Any:
        normals, radius = rest
        rays = len(view)
        origins, turned, observed = (torch.empty_like(directions) for _ in range(3))
        near, far = (directions.new_empty(rays) for _ in range(2))
        given = (rays, radius, view, directions, normals, poses.contiguous())
        RAYS.launch("place_rays", -(-rays // _THREADS), *given, origins, turned, near, far, observed)
        ctx.save_for_backward(view, directions, normals)
        ctx.views = len(poses)
        ctx.mark_non_differentiable(near, far)
        ctx.set_materialize_grads(False)
        return origins, turned, near, far, observed

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        view, directions, normals = ctx.saved_tensors
        by_poses = directions.new_empty(ctx.views, 4, 4)
        upstream = [None if part is None else part.contiguous() for part in gradients]
        given = (len(view), view, directions, normals, upstream[0], upstream[1], upstream[4])
        RAYS.launch("place_rays_backward", ctx.views, *given, by_poses)
        return by_poses, None, None, None, None
