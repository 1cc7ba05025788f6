"""Loss terms that compare the surface of a view with that of a neighboring view (PGSR, Chen et al. 2024)."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch import Terms
from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.splats.config import SplatsConfig
from fieldwatch.recon.pipelines.splats.objective import OPAQUE, RenderedView
from fieldwatch.recon.pipelines.splats.plane_consistency import (
    PixelPlanes,
    patch_correlation,
    patch_error,
    round_trip,
    round_trip_error,
)
from fieldwatch.recon.pipelines.splats.scene import PhotoView, Scene
from fieldwatch.recon.transfers import constant

MULTI_VIEW_TERMS = ("multi_view_depth", "multi_view_photo")
"""Names of the terms."""
_GRAY = (0.299, 0.587, 0.114)  # BT.601


def multi_view_terms(config: SplatsConfig, scene: Scene, rendered: RenderedView) -> Terms:
    """Return the multi-view terms that act at a step; none for a view without neighbors.

    The neighbor is rendered without gradient: what is wrong there is corrected when it is the neighbor of others, or
    the view of a step itself.
    """
    acting = [name for name in MULTI_VIEW_TERMS if scene.plan.acts(name, rendered.step)]
    train_index = rendered.view.train_index
    neighbors = () if train_index is None else scene.neighbors[train_index]
    if not acting or not neighbors:
        return Terms()
    # Another one in every epoch, without a random choice.
    epoch = rendered.step // len(scene.photos.train)
    other = scene.photo_view(scene.photos.train[neighbors[epoch % len(neighbors)]])
    camera = scene.cameras[rendered.view.index]
    neighbor = scene.cameras[other.index]
    planes = _sampled_planes(rendered, camera, config.surface.multi_view_samples)
    trip = round_trip(planes, camera, neighbor, _depth_of(rendered, other))
    found: dict[str, tuple[float, Tensor]] = {}
    if "multi_view_depth" in acting:
        found["multi_view_depth"] = (config.surface.multi_view_depth_weight, round_trip_error(trip))
    if "multi_view_photo" in acting:
        correlation, defined = patch_correlation(planes, camera, _gray(rendered.view), neighbor, _gray(other))
        error = patch_error(correlation, defined, trip.confidence)
        found["multi_view_photo"] = (config.surface.multi_view_photo_weight, error)
    return Terms(**found)


@torch.no_grad()
def _depth_of(rendered: RenderedView, other: PhotoView) -> Float[Tensor, "height width"]:
    """Return the depth of another view; 0 where it shows no surface or is masked."""
    output = rendered.model.render(other.camera, degree=0, depth="planar", bands=rendered.bands, shapes=rendered.shapes)
    return torch.where(_surface(output.alpha, other), output.expected_depth(), 0.0)


def _surface(alpha: Float[Tensor, "height width"], view: PhotoView) -> Bool[Tensor, "height width"]:
    surface = alpha.detach() > OPAQUE
    return surface if view.mask is None else surface & (view.mask[..., 0] > OPAQUE)


def _sampled_planes(rendered: RenderedView, camera: Camera, count: int) -> PixelPlanes:
    """Return depth and normal at random pixels of a rendered view."""
    output = rendered.output
    if output.depth is None or output.normals is None:
        raise ValueError("the multi-view terms require depth and normals: render the outputs of geometry_outputs")
    device = output.alpha.device
    pixels = torch.randint(output.alpha.numel(), (count,), generator=rendered.generator, device=device)
    surface = _surface(output.alpha, rendered.view).flatten()[pixels]
    alpha = output.alpha.flatten()[pixels]
    depth = output.depth.flatten()[pixels] / torch.where(surface, alpha, 1.0)
    normals = output.normals.reshape(-1, 3)[pixels]
    # Blended normals are shorter than 1.
    length = normals.detach().square().sum(-1)
    valid = surface & (length > OPAQUE**4) & (depth.detach() > 0)
    toward_camera = constant((0.0, 0.0, -1.0), normals)
    unit = torch.nn.functional.normalize(torch.where(valid[:, None], normals, toward_camera), dim=-1)
    return PixelPlanes(
        rows=pixels // camera.width,
        columns=pixels % camera.width,
        depth=torch.where(valid, depth, 1.0),
        normals=unit,
        valid=valid,
    )


def _gray(view: PhotoView) -> Float[Tensor, "height width"]:
    return view.image @ constant(_GRAY, view.image)
