"""Rendering of complete views: opacity, normals and distance of every pixel, empty outside the silhouette.

Images are volume-rendered, as in training. Errors are measured on them.
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
"""Opacity above which a pixel belongs to the silhouette."""
LEAST_TRANSMITTANCE = 1e-3
"""Transmittance below which a ray ends."""
LEAST_OPACITY = 1e-4
"""Opacity of a point (approximately S(-s f)) below which it is skipped."""
STEEPEST = 1.5
"""Slope of the field assumed when empty space is skipped; a true distance has slope 1."""
STEPS_PER_SECTION = 4
"""Number of steps in a coarse section."""
RAYS = 65_536
"""Number of rays rendered at a time."""
SECTIONS_PER_ROUND = 6
"""Coarse sections evaluated per ray before terminated rays are removed."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedSurface:
    """A rendered view. All values except the opacity are 0 where the opacity is at most 0.5, outside the silhouette.

    Attributes:
        opacity: opacity in [0, 1].
        normals: unit normals in the frame of the scene's sphere, pointing out of the object.
        camera_normals: the same normals in the camera's OpenCV axes (x right, y down, z forward).
        distance: distance along the ray in units of the scene's sphere.
        depth: depth along the optical axis in the same units.
    """

    opacity: Float[Tensor, "height width"]
    normals: Float[Tensor, "height width 3"]
    camera_normals: Float[Tensor, "height width 3"]
    distance: Float[Tensor, "height width"]
    depth: Float[Tensor, "height width"]

    @property
    def mask(self) -> Bool[Tensor, "height width"]:
        """Silhouette of the object."""
        return self.opacity > OPAQUE


@torch.no_grad()
def render_view(  # noqa: PLR0913  model, camera and resolution, and two limits of memory
    model: NormalsModel,
    camera: Camera,
    options: RenderOptions,
    step: float,
    *,
    chunks: Chunks | None = None,
    rays: int = RAYS,
) -> RenderedSurface:
    """Render a complete view, deterministically and without gradients.

    The only difference from training is the samples: they are not jittered, samples of low transmittance or opacity are
    dropped, and no stratified samples are added. Normals are sums of weight times gradient, normalized to length 1.

    Args:
        model: model to render, in the frame of the scene's sphere.
        camera: camera in the same frame.
        options: rendering options.
        step: distance between samples, as of `NormalsSchedule.march_step`.
        chunks: number of points at a time; pass the same object to repeated calls to keep its reductions.
        rays: number of rays at a time.

    Returns:
        The rendered view, on the model's device.

    Raises:
        MemoryError: even the smallest chunk does not fit into memory.
    """
    chunks = Chunks(options.chunk) if chunks is None else chunks
    device = model.grid.occupied.device
    pose = camera.world_from_camera.to(device)
    # Directions in float64 before rounding, so that pixels of large images do not shift.
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
    # A zero sum of gradients has no direction, although the opacity may be high.
    opaque &= length[:, 0] > 0
    # Divisors are replaced by 1 where the result is not used, to avoid NaN.
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
    """Return the length of each pixel's ray at depth 1, and its unit direction in camera axes."""
    directions = camera.to("cpu", torch.float64).directions().view(-1, 3)
    lengths = directions.norm(dim=-1)
    return lengths.float().to(device), (directions / lengths[:, None]).float().to(device)


def _blended(
    model: NormalsModel, rays: BoundedRays, options: RenderOptions, step: float, chunks: Chunks
) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays 3"], Float[Tensor, " rays"]]:
    """Return opacity, sum of weight times gradient, sum of weight times distance."""
    samples = near_surface(model, rays, step, chunks)
    ends = samples.sections()
    values, slopes = gradients_in_chunks(model.sdf.with_gradient, _points(rays, ends.distances, ends.ray_index), chunks)
    alpha = section_alpha(values[ends.start], values[ends.end], model.deviation())
    # Set to 0 instead of dropped, so that sections stay aligned with their gradients.
    alpha = torch.where(alpha >= options.alpha_threshold, alpha, 0)
    normals = 0.5 * (slopes[ends.start] + slopes[ends.end])
    composited = composite(alpha, samples.ray_index, samples.n_rays, samples.midpoints, normals)
    return composited.opacity, composited.values[0], composited.depth


@torch.no_grad()
def near_surface(model: NormalsModel, rays: BoundedRays, step: float, chunks: Chunks) -> PackedSamples:
    """Return the sections of rays that contribute to the image: near the surface, and reached by light.

    Rays advance by the signed distance (sphere tracing, Hart 1996) until the surface is near, then in coarse sections
    until they are dark or have left it again: most of the empty space and of the inside is never evaluated, and no
    occupancy grid can hide anything. NeuS opacities telescope where the distance decreases, so the transmittance behind
    a coarse section is that behind its steps.

    Args:
        model: model to render.
        rays: rays in the frame of the scene's sphere.
        step: length of a section.
        chunks: number of points at a time.
    """
    sharpness = model.sharpness
    length = STEPS_PER_SECTION * step
    # S(-s f) is about exp(-s f) there; half a section accounts for points between the ends.
    near = math.log(1 / LEAST_OPACITY) / sharpness + 0.5 * STEEPEST * length
    positions = rays.near.clone()
    light = torch.ones_like(rays.near)
    active = torch.nonzero(positions < rays.far)[:, 0]
    sections_found = [(active[:0], positions[:0], positions[:0])]
    while len(active):
        active = _sphere_traced(model, rays, positions, active, near, length, chunks)
        ends = positions[active, None] + length * torch.arange(SECTIONS_PER_ROUND + 1, device=positions.device)
        values = _distances(model, rays, active, ends, chunks)
        clear = 1 - section_alpha(values[:, :-1], values[:, 1:], sharpness)
        reaching = light[active, None] * torch.cat([torch.ones_like(clear[:, :1]), clear.cumprod(1)], 1)
        relevant = (torch.minimum(values[:, :-1], values[:, 1:]) < near) & (reaching[:, :-1] >= LEAST_TRANSMITTANCE)
        relevant &= ends[:, :-1] < rays.far[active, None]
        row, column = torch.nonzero(relevant, as_tuple=True)
        sections_found.append((active[row], ends[row, column], ends[row, column + 1]))
        positions[active] = ends[:, -1]
        light[active] = reaching[:, -1]
        active = active[(reaching[:, -1] >= LEAST_TRANSMITTANCE) & (ends[:, -1] < rays.far[active])]
    ray, start, end = (torch.cat(column) for column in zip(*sections_found, strict=True))
    order = torch.argsort(ray, stable=True)  # sections of one ray are already in order
    sections = PackedSamples(t_start=start[order], t_end=end[order], ray_index=ray[order], n_rays=len(rays))
    return sections.subdivided(STEPS_PER_SECTION)


def _sphere_traced(  # noqa: PLR0913, PLR0917  state of the rays, and two lengths
    model: NormalsModel,
    rays: BoundedRays,
    positions: Float[Tensor, " rays"],
    active: Int64[Tensor, " some"],
    near: float,
    length: float,
    chunks: Chunks,
) -> Int64[Tensor, " arrived"]:
    """Advance rays in place until the field falls below ``near``; return those that reach it within their bounds."""
    arrived: list[Tensor] = []
    while len(active):
        values = _distances(model, rays, active, positions[active, None], chunks)[:, 0]
        close = values < near
        arrived.append(active[close])
        active = active[~close]
        # The field may be steeper than a distance, so steps are shorter; at least half a section, so that rays end.
        positions[active] += ((values[~close] - near) / STEEPEST).clamp_min(0.5 * length)
        active = active[positions[active] < rays.far[active]]
    return torch.cat(arrived).sort().values


def _distances(
    model: NormalsModel,
    rays: BoundedRays,
    ray: Int64[Tensor, " n"],
    positions: Float[Tensor, "n m"],
    chunks: Chunks,
) -> Float[Tensor, "n m"]:
    """Return signed distances at points along rays."""
    points = _points(rays, positions.reshape(-1), ray.repeat_interleave(positions.shape[1]))
    return evaluate_in_chunks(model.sdf, points, chunks).view(positions.shape)


def _points(
    rays: BoundedRays, distances: Float[Tensor, " ends"], ray_index: Int64[Tensor, " ends"]
) -> Float[Tensor, "ends 3"]:
    """Return points along rays, clamped to the field's box, because the last section may end half a step outside."""
    return points_along(rays, distances, ray_index).clamp(-1, 1)
