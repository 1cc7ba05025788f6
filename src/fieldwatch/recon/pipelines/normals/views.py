"""What a camera sees of a trained field: opacity, normals and distance of every pixel, empty outside of the silhouette.

The picture is volume-rendered, as in training; it is what the errors are measured on.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from fieldwatch.recon.geometry import Camera
from fieldwatch.recon.pipelines.normals.config import RenderOptions
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.rendering import RADIUS
from fieldwatch.recon.render import (
    BoundedRays,
    Chunks,
    PackedSamples,
    composite,
    evaluate_in_chunks,
    gradients_in_chunks,
    points_along,
    section_alpha,
)

OPAQUE = 0.5
"""Opacity above which a pixel shows the object: there is no silhouette without a threshold."""
LEAST_TRANSMITTANCE = 1e-3
"""Share of the light below which what lies behind is not looked at."""
LEAST_OPACITY = 1e-4
"""Opacity of a place (S(-s f), nearly) below which it is not looked at."""
STEEPEST = 1.5
"""Slope of the field that is reckoned with when space is passed over; 1 is that of a true distance."""
STEPS_PER_SECTION = 4
"""Sections that are looked at as one first."""
RAYS = 65_536
"""Rays at a time."""
SECTIONS_PER_ROUND = 6
"""Coarse sections of each ray that are looked at before it is asked which rays still have light."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedSurface:
    """What a camera sees. All but the opacity is 0 where the opacity is 0.5 or less: there is no object there.

    Attributes:
        opacity: in [0, 1].
        normals: of length 1, in the frame of the scene's sphere; they point out of the object.
        camera_normals: the same in the camera's OpenCV axes (x right, y down, z forward).
        distance: along the ray, units of the scene's sphere.
        depth: along the optical axis.
    """

    opacity: Float[Tensor, "height width"]
    normals: Float[Tensor, "height width 3"]
    camera_normals: Float[Tensor, "height width 3"]
    distance: Float[Tensor, "height width"]
    depth: Float[Tensor, "height width"]

    @property
    def mask(self) -> Bool[Tensor, "height width"]:
        """Where the object is."""
        return self.opacity > OPAQUE


@torch.no_grad()
def render_view(  # noqa: PLR0913  what is looked at, from where and how finely; two bounds of memory
    model: NormalsModel,
    camera: Camera,
    options: RenderOptions,
    step: float,
    *,
    chunks: Chunks | None = None,
    rays: int = RAYS,
) -> RenderedSurface:
    """Render a whole view, without gradients and without anything random.

    Differs from training in nothing but the samples: they are not shifted, those that hardly any light reaches or
    that are hardly opaque are left out, and no stratified ones are added. Normals are sums of weight times gradient,
    brought to length 1.

    Args:
        model: what is looked at, in the frame of the scene's sphere.
        camera: from where, in the same frame.
        options: of rendering.
        step: distance between samples, as of `Plan.march_step`.
        chunks: how many points at a time; kept by callers that look again.
        rays: at a time.

    Returns:
        What is seen, on the model's device.

    Raises:
        MemoryError: even few points at a time do not fit.
    """
    chunks = Chunks(options.chunk) if chunks is None else chunks
    device = model.grid.occupied.device
    pose = camera.world_from_camera.to(device)
    lengths, axes = _directions(camera, device)
    world_directions = (axes.double() @ pose[:3, :3].double().T).float()
    origin = pose[:3, 3].float()
    batches = [
        _blended(model, BoundedRays.in_sphere(origin.expand_as(directions), directions, RADIUS), options, step, chunks)
        for directions in world_directions.split(rays)
    ]
    opacity, normals, distance = (torch.cat(columns) for columns in zip(*batches, strict=True))
    opaque = opacity > OPAQUE
    length = normals.norm(dim=-1, keepdim=True)
    opaque &= length[:, 0] > 0
    normals = torch.where(opaque[:, None], normals / torch.where(opaque[:, None], length, 1), 0)
    distance = torch.where(opaque, distance / torch.where(opaque, opacity, 1), 0)
    shape = (camera.height, camera.width)
    return RenderedSurface(
        opacity=opacity.view(shape),
        normals=normals.view(*shape, 3),
        camera_normals=(normals @ pose[:3, :3].float()).view(*shape, 3),
        distance=distance.view(shape),
        depth=(distance / lengths).view(shape),
    )


def _directions(camera: Camera, device: torch.device) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays 3"]]:
    """Length of the ray of each pixel to the depth 1, and its unit direction in camera axes."""
    directions = camera.to("cpu", torch.float64).directions().view(-1, 3)
    lengths = directions.norm(dim=-1)
    return lengths.float().to(device), (directions / lengths[:, None]).float().to(device)


def _blended(
    model: NormalsModel, rays: BoundedRays, options: RenderOptions, step: float, chunks: Chunks
) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays 3"], Float[Tensor, " rays"]]:
    """Opacity, sum of weight times gradient, sum of weight times distance."""
    samples = near_surface(model, rays, step, chunks)
    ends = samples.sections()
    values, slopes = gradients_in_chunks(model.sdf.with_gradient, _points(rays, ends.distances, ends.ray_index), chunks)
    alpha = section_alpha(values[ends.start], values[ends.end], model.deviation())
    alpha = torch.where(alpha >= options.alpha_threshold, alpha, 0)
    normals = 0.5 * (slopes[ends.start] + slopes[ends.end])
    composited = composite(alpha, samples.ray_index, samples.n_rays, samples.midpoints, normals)
    return composited.opacity, composited.values[0], composited.depth


@torch.no_grad()
def near_surface(model: NormalsModel, rays: BoundedRays, step: float, chunks: Chunks) -> PackedSamples:
    """Return the sections of rays that have something to show: near the surface, and reached by light.

    Rays go forward by the signed distance (sphere tracing, Hart 1996) until the surface is near, then in coarse
    sections until they are dark or clear of it again: most of space, and most of what lies inside, is never evaluated,
    and no grid can hide anything. NeuS opacities telescope where the distance falls, so the light behind a coarse
    section is that behind its parts.

    Args:
        model: what is looked at.
        rays: in the frame of the scene's sphere.
        step: length of a section.
        chunks: points at a time.
    """
    sharpness = model.sharpness
    length = STEPS_PER_SECTION * step
    # S(-s f) is about exp(-s f) there; half a section is room for what lies between the ends.
    near = math.log(1 / LEAST_OPACITY) / sharpness + 0.5 * STEEPEST * length
    places = rays.near.clone()
    light = torch.ones_like(rays.near)
    active = torch.nonzero(places < rays.far)[:, 0]
    sections_found = [(active[:0], places[:0], places[:0])]
    while len(active):
        active = _sphere_traced(model, rays, places, active, near, length, chunks)
        ends = places[active, None] + length * torch.arange(SECTIONS_PER_ROUND + 1, device=places.device)
        values = _distances(model, rays, active, ends, chunks)
        clear = 1 - section_alpha(values[:, :-1], values[:, 1:], sharpness)
        reaching = light[active, None] * torch.cat([torch.ones_like(clear[:, :1]), clear.cumprod(1)], 1)
        relevant = (torch.minimum(values[:, :-1], values[:, 1:]) < near) & (reaching[:, :-1] >= LEAST_TRANSMITTANCE)
        relevant &= ends[:, :-1] < rays.far[active, None]
        row, column = torch.nonzero(relevant, as_tuple=True)
        sections_found.append((active[row], ends[row, column], ends[row, column + 1]))
        places[active] = ends[:, -1]
        light[active] = reaching[:, -1]
        active = active[(reaching[:, -1] >= LEAST_TRANSMITTANCE) & (ends[:, -1] < rays.far[active])]
    ray, start, end = (torch.cat(column) for column in zip(*sections_found, strict=True))
    order = torch.argsort(ray, stable=True)  # those of one ray were found from the front
    sections = PackedSamples(t_start=start[order], t_end=end[order], ray_index=ray[order], n_rays=len(rays))
    return sections.subdivided(STEPS_PER_SECTION)


def _sphere_traced(  # noqa: PLR0913, PLR0917  a ray's state, and two lengths
    model: NormalsModel,
    rays: BoundedRays,
    places: Float[Tensor, " rays"],
    active: Int64[Tensor, " some"],
    near: float,
    length: float,
    chunks: Chunks,
) -> Int64[Tensor, " arrived"]:
    """Move rays forward, in place, until the field falls below `near`; return those that get there within bounds."""
    arrived: list[Tensor] = []
    while len(active):
        values = _distances(model, rays, active, places[active, None], chunks)[:, 0]
        close = values < near
        arrived.append(active[close])
        active = active[~close]
        # The field may be steeper than a distance, so the step is shorter; at least half a section, so that rays end.
        places[active] += ((values[~close] - near) / STEEPEST).clamp_min(0.5 * length)
        active = active[places[active] < rays.far[active]]
    return torch.cat(arrived).sort().values


def _distances(
    model: NormalsModel,
    rays: BoundedRays,
    ray: Int64[Tensor, " n"],
    places: Float[Tensor, "n m"],
    chunks: Chunks,
) -> Float[Tensor, "n m"]:
    """Signed distances at places along rays."""
    points = _points(rays, places.reshape(-1), ray.repeat_interleave(places.shape[1]))
    return evaluate_in_chunks(model.sdf, points, chunks).view(places.shape)


def _points(
    rays: BoundedRays, distances: Float[Tensor, " ends"], ray_index: Int64[Tensor, " ends"]
) -> Float[Tensor, "ends 3"]:
    """Points along rays, held to the field's box: the last section of a ray may end half a step beyond."""
    return points_along(rays, distances, ray_index).clamp(-1, 1)
