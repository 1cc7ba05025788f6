"""What rays see of a signed distance field: opacity, normal and distance, as NeuS blends them."""

from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import RenderOptions
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.patch_rendering import (
    Patches,
    blend_patches,
    pixel_samples,
    visible_patch_samples,
)
from fieldwatch.recon.render import (
    BoundedRays,
    DistanceField,
    PackedSamples,
    composite_sections,
    fill_empty,
    gradient_fd,
    points_along,
    section_opacities,
)

STRIDE = 0.75
"""Length of a stride through the grid, in edges of its cells; it must not exceed one, or a cell is stepped over."""
SLOPE = 1.5
"""How fast the field may change at most where strides are left out: faster than a distance, training is not over."""
VISIBLE_RANGE = 8.0
"""Distance from the surface, in units of 1 / s, beyond which it is not seen: S(-8) = 0.03 % of a ray's opacity."""
RADIUS = 0.995
"""Of the sphere that bounds rays: inside the box of the field, whatever rounding and finite differences add."""


@runtime_checkable
class RaysToRender(Protocol):
    """Rays with the random numbers that place their samples: those of a micro-batch, or one rank's part of them."""

    @property
    def batch(self) -> RayBatch:
        """The rays of this process."""
        ...

    def jitter(self, rays: int) -> Float[Tensor, " rays"]:
        """Return shifts of the samples of the first rays, in steps."""
        ...

    def noise(self, rays: int, columns: int) -> Float[Tensor, "rays columns"]:
        """Return places within parts of the first rays."""
        ...

    def limited(self, samples: PackedSamples, most: int) -> PackedSamples:
        """Leave out the rays from the first on that would exceed a number of samples, counted over all ranks."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedRays:
    """What rays saw, and how that came about.

    Attributes:
        opacity: of each ray.
        normal: sum of weight times gradient, in the frame of the scene's sphere; not normalised.
        distance: sum of weight times distance from the camera.
        gradients: of the field at the ends of the samples.
        samples: all that were looked at.
        filled: rays that the grid gave no samples and that got stratified ones.
        starved: share of the rays in the mask that the grid gave no samples.
        ray_count: rays; fewer than were asked for if the samples of all were too many.
    """

    opacity: Float[Tensor, " rays"]
    normal: Float[Tensor, "rays 3"]
    distance: Float[Tensor, " rays"]
    gradients: Float[Tensor, "ends 3"]
    samples: PackedSamples
    filled: int
    starved: float
    ray_count: int


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedDistances:
    """What rays saw of distances.

    Attributes:
        opacity: of each ray.
        distance: sum of weight times distance from the camera.
    """

    opacity: Float[Tensor, " rays"]
    distance: Float[Tensor, " rays"]


def rays_in_scene(batch: RayBatch, poses: Float[Tensor, "views 4 4"]) -> BoundedRays:
    """Return the rays of a batch, in the frame of the scene's sphere; gradients flow to the poses.

    Args:
        batch: rays in camera axes.
        poses: `world_from_camera` of all views that the batch's numbers mean.
    """
    pose_of_ray = poses.index_select(0, batch.view)
    directions = torch.einsum("nij,nj->ni", pose_of_ray[:, :3, :3], batch.directions)
    return BoundedRays.in_sphere(pose_of_ray[:, :3, 3], directions, RADIUS)


@torch.no_grad()
def march_samples(  # noqa: PLR0913  a model, its rays, and how they are looked along
    model: NormalsModel,
    rays: BoundedRays,
    step: float,
    *,
    jitter: Float[Tensor, " rays"] | None = None,
    most: int | None = None,
    shared: RaysToRender | None = None,
) -> PackedSamples:
    """Return the sections of rays in which the surface may be: in occupied cells, and near enough to it.

    The grid is marched in strides of some steps. A stride is cut into steps only where the distance in its middle says
    that the surface, as blurred as it is, may reach into it: a field of distances tells of empty space, too.

    Args:
        model: what is looked at.
        rays: in the frame of the scene's sphere.
        step: distance between samples.
        jitter: shift of each ray's samples, in steps; None is no shift.
        most: strides, in steps, at most; rays from the first on that would exceed it are left out.
        shared: bounds the samples of all ranks, where others render other rays; None bounds these only.
    """
    # A whole number of steps: below, strides are cut into steps.
    steps_per_stride = max(int(STRIDE * min(model.grid.config.cells.edges) / step), 1)
    bound = None if most is None else max(most // steps_per_stride, 1)
    strides = model.grid.march(rays, step * steps_per_stride, jitter=jitter, max_samples=bound)
    # Ranks meet in here: a rank without samples has to come, too.
    if shared is not None and bound is not None:
        strides = shared.limited(strides, bound)
    # The march may have left out the last rays.
    far = rays.far if most is None else rays.far[: strides.n_rays]
    # The last stride of a ray may reach out of the sphere, where the field is not to be asked.
    strides = strides.clipped(far)
    if steps_per_stride == 1 or not len(strides):
        return strides
    values = model.sdf(points_along(rays, strides.midpoints, strides.ray_index))
    # From the middle to an end of a stride the distance falls by its slope times half the length, at most.
    reach = SLOPE * 0.5 * step * steps_per_stride + VISIBLE_RANGE / model.deviation()
    return strides.selected(values.abs() <= reach).subdivided(steps_per_stride)


@torch.no_grad()
def visible_samples(
    field: DistanceField, rays: BoundedRays, samples: PackedSamples, sharpness: float, options: RenderOptions
) -> PackedSamples:
    """Leave out samples that no light reaches, and those below the threshold of opacity; nothing is trained for it."""
    if not len(samples) or (options.unseen == 0 and options.alpha_threshold == 0):
        return samples
    ends = samples.sections()
    light = section_opacities(field(points_along(rays, ends.distances, ends.ray_index)), sharpness, samples, ends)
    return samples.selected((light.transmittance >= options.unseen) & (light.alpha >= options.alpha_threshold))


def blend_samples(
    model: NormalsModel, rays: BoundedRays, samples: PackedSamples, options: RenderOptions
) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays 3"], Float[Tensor, " rays"], Float[Tensor, "ends 3"]]:
    """Blend samples to opacity, normal and distance; also return the gradients at the ends of the samples.

    A section's normal is the mean of the gradients at its ends, so that it stands where its weight does.
    """
    ends = samples.sections()
    points = points_along(rays, ends.distances, ends.ray_index)
    # Central differences (Neuralangelo, but with a constant step): no second derivatives, six more evaluations.
    if options.gradient_method == "fd":
        values = model.sdf(points)
        gradients = gradient_fd(model.sdf, points, options.finite_step)
    else:
        values, gradients = model.sdf.with_gradient(points)
    composited = composite_sections(values, model.deviation(), samples, ends, gradients)
    return composited.opacity, composited.values[0], composited.depth, gradients


def render(
    model: NormalsModel, rays_to_render: RaysToRender, step: float, options: RenderOptions, most: int | None = None
) -> RenderedRays:
    """March rays through the occupancy grid and blend the samples of the field, for training.

    Args:
        model: what is rendered, from its poses.
        rays_to_render: the rays, and the random numbers that place their samples.
        step: distance between samples.
        options: how.
        most: samples at most, of all ranks; rays whose samples would exceed it are left out.
    """
    batch = rays_to_render.batch
    poses = model.poses()
    rays = rays_in_scene(batch, poses)
    mask = batch.mask
    patches = Patches.of(rays, batch, poses) if options.gradient_method == "dfd" else None
    pixels_per_ray = 1
    if patches is not None:  # a patch goes where its central ray goes, and is in the mask where any of its pixels is
        rays = patches.central
        pixels_per_ray = patches.area
        mask = mask.view(-1, patches.area).any(1)
    # The bound is on evaluations of the field, and each sample of a central ray is one at every pixel of its patch.
    most = None if most is None else most // pixels_per_ray
    samples_found = march_samples(
        model, rays, step, jitter=rays_to_render.jitter(len(rays)), most=most, shared=rays_to_render
    )
    kept = samples_found.n_rays
    rays = _first(rays, kept)
    mask = mask[:kept]
    # Before empty rays are filled: the recovery wants to know what the grid alone gives.
    starved = _share((samples_found.counts == 0) & mask, mask)
    filled = 0
    if options.empty_samples:
        starving_rays = replace(
            rays, far=torch.where(mask, rays.far, rays.near)
        )  # rays beside the object are rightly empty
        # For the rays that the bound has left, which are the same with any number of ranks.
        noise = rays_to_render.noise(kept, options.empty_samples + 1)
        filled_samples = fill_empty(samples_found, starving_rays, options.empty_samples, noise=noise)
        samples_found = filled_samples.samples
        filled = filled_samples.filled * pixels_per_ray
    sharpness = model.sharpness
    if patches is None:
        samples = visible_samples(model.sdf, rays, samples_found, sharpness, options)
        opacity, normal, distance, gradients = blend_samples(model, rays, samples, options)
    else:
        patches = patches.first(kept)
        samples = visible_patch_samples(model.sdf, patches, samples_found, sharpness, options)
        opacity, normal, distance, gradients = blend_patches(model, patches, samples)
        samples = pixel_samples(patches, samples)
    return RenderedRays(
        opacity=opacity,
        normal=normal,
        distance=distance,
        gradients=gradients,
        samples=samples,
        filled=filled,
        starved=starved,
        ray_count=kept * pixels_per_ray,
    )


def _first(rays: BoundedRays, count: int) -> BoundedRays:
    parts = {name: getattr(rays, name)[:count] for name in ("origins", "directions", "near", "far")}
    return BoundedRays(**parts)


def _share(which: Bool[Tensor, " rays"], among: Bool[Tensor, " rays"]) -> float:
    return float(which.sum() / among.sum().clamp_min(1))
