"""Differentiable rendering of a signed distance field: opacity, normal and distance per ray, composited as in NeuS."""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import RenderOptions
from fieldwatch.recon.pipelines.normals.device_rendering import DeviceRays, render_on_device, renders_on_device
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.patch_rendering import (
    Patches,
    blend_patches,
    pixel_samples,
    visible_patch_samples,
)
from fieldwatch.recon.pipelines.normals.rays_to_render import RaysToRender
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
from fieldwatch.recon.render.sdf import FilledSamples
from fieldwatch.recon.render.sdf_gpu import DeviceSamples, StrideSearch
from fieldwatch.recon.render.sdf_search import SectionSearch, searches_natively, visible_sections

STRIDE = 0.75
"""Length of a coarse march step in cell edges; at most one, or a cell could be skipped."""
ONE_OF = 4
"""One in so many strides is evaluated before the others."""
SLOPE = 1.5
"""Maximum slope assumed when strides are skipped: steeper than a distance, because the field is still being trained."""
VISIBLE_RANGE = 8.0
"""Distance from the surface, in units of 1 / s, beyond which it is invisible: S(-8) = 0.03 % of a ray's opacity."""
RADIUS = 0.995
"""Radius of the sphere that bounds rays: inside the field's box despite rounding and finite differences."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedRays:
    """Rendering results of rays, with statistics of the sampling.

    Attributes:
        opacity: opacity of each ray.
        normal: sum of weight times gradient, in the frame of the scene's sphere; not normalized.
        distance: sum of weight times distance from the camera.
        gradients: gradients of the field at the ends of the samples.
        samples: all samples that were blended.
        filled: number of rays without samples from the grid that were given stratified ones.
        starved: fraction of the rays in the mask that the grid gave no samples.
        ray_count: number of rendered rays; fewer than requested if their samples would exceed the bound. On a GPU that
            renders by itself, all rays: ``device`` knows which count.
        device: rendering results on a GPU, whose numbers the host does not know; None elsewhere.
    """

    opacity: Float[Tensor, " rays"]
    normal: Float[Tensor, "rays 3"]
    distance: Float[Tensor, " rays"]
    gradients: Float[Tensor, "ends 3"]
    samples: PackedSamples | DeviceSamples
    filled: int
    starved: float
    ray_count: int
    device: DeviceRays | None = None

    def rendered_of(self, batch: RayBatch) -> RayBatch:
        """Return the rays of a batch that were rendered; on a GPU all, of which those that were not have no weight."""
        return batch.first(self.ray_count) if self.device is None else self.device.only_rendered(batch)


@dataclass(frozen=True, kw_only=True, eq=False)
class RenderedDistances:
    """Rendered opacities and distances of rays.

    Attributes:
        opacity: opacity of each ray.
        distance: sum of weight times distance from the camera.
    """

    opacity: Float[Tensor, " rays"]
    distance: Float[Tensor, " rays"]


def rays_in_scene(batch: RayBatch, poses: Float[Tensor, "views 4 4"]) -> BoundedRays:
    """Return the rays of a batch in the frame of the scene's sphere; gradients flow to the poses.

    Args:
        batch: rays in camera axes.
        poses: ``world_from_camera`` of all views that the batch indexes.
    """
    pose_of_ray = poses.index_select(0, batch.view)
    directions = torch.einsum("nij,nj->ni", pose_of_ray[:, :3, :3], batch.directions)
    # Contiguous: selecting the rows of a view for each sample takes several times as long.
    return BoundedRays.in_sphere(pose_of_ray[:, :3, 3].contiguous(), directions, RADIUS)


class FoundSamples(NamedTuple):
    """Sections of rays that a search found.

    Attributes:
        samples: the sections.
        reached: whether the blurred surface may reach each ray, whatever was left out of its sections.
    """

    samples: PackedSamples
    reached: Bool[Tensor, " rays"]


def march_samples(  # noqa: PLR0913  a model, its rays, and how they are marched
    model: NormalsModel,
    rays: BoundedRays,
    step: float,
    *,
    jitter: Float[Tensor, " rays"] | None = None,
    most: int | None = None,
    shared: RaysToRender | None = None,
) -> PackedSamples:
    """Return the sections of rays that may contain the surface: in occupied cells, and close enough to it.

    The grid is marched in strides of several steps. A stride is subdivided into steps only if the distance at its
    midpoint allows the blurred surface to reach into it: the field reveals empty space inside occupied cells.

    Args:
        model: model with the field and the grid.
        rays: rays in the frame of the scene's sphere.
        step: distance between samples.
        jitter: offset of each ray's samples, in steps; None uses no offset.
        most: maximum number of samples; trailing rays that would exceed it are dropped.
        shared: limits the samples over all ranks if other ranks render other rays; None limits these rays only.
    """
    bound = None if most is None else max(most // _steps_per_stride(model, step), 1)
    return search_samples(model, rays, step, jitter=jitter, most_strides=bound, shared=shared).samples


@torch.no_grad()
def search_samples(  # noqa: PLR0913  a model, its rays, and how they are marched
    model: NormalsModel,
    rays: BoundedRays,
    step: float,
    *,
    unseen: float = 0.0,
    jitter: Float[Tensor, " rays"] | None = None,
    most_strides: int | None = None,
    shared: RaysToRender | None = None,
) -> FoundSamples:
    """Return what `march_samples` does, without sections in the dark, which `visible_samples` drops.

    Args:
        model: model with the field and the grid.
        rays: rays in the frame of the scene's sphere.
        step: distance between samples.
        unseen: transmittance below which sections are left out; 0 leaves out none.
        jitter: offset of each ray's samples, in steps; None uses no offset.
        most_strides: maximum number of strides; trailing rays that would exceed it are dropped.
        shared: limits the strides over all ranks if other ranks render other rays; None limits these rays only.
    """
    strides = _marched(model, rays, step, jitter, most_strides, shared)
    return _sections_in(strides, model, rays, step, unseen)


def _marched(  # noqa: PLR0913, PLR0917  as above
    model: NormalsModel,
    rays: BoundedRays,
    step: float,
    jitter: Float[Tensor, " rays"] | None,
    most_strides: int | None,
    shared: RaysToRender | None,
) -> PackedSamples:
    """Return the strides of rays in occupied cells; the march may drop trailing rays."""
    stride = step * _steps_per_stride(model, step)
    strides = model.grid.march(rays, stride, jitter=jitter, max_samples=most_strides)
    # An all-reduce: ranks without samples have to take part, too.
    return strides if shared is None or most_strides is None else shared.limited(strides, most_strides)


def _sections_in(
    strides: PackedSamples, model: NormalsModel, rays: BoundedRays, step: float, unseen: float
) -> FoundSamples:
    """Return the sections of strides that may hold the surface, without those in the dark."""
    steps_per_stride = _steps_per_stride(model, step)
    # The last stride of a ray may leave the sphere, where the field is undefined.
    strides = strides.clipped(rays.far[: strides.n_rays])
    if steps_per_stride == 1 or not len(strides):
        return FoundSamples(strides, _named(strides))
    reach = _reach(model, step, steps_per_stride)
    # Sections beyond the visible range are left out: how dark it is behind a fainter surface is not known.
    if unseen < math.exp(-VISIBLE_RANGE):
        near = strides.selected(_at_midpoints(model, rays, strides).abs() <= reach)
        return FoundSamples(near.subdivided(steps_per_stride), _named(near))
    dark = _dark(model, step, unseen)
    # Most strides of a ray are inside the object: a few of them tell behind which point it is dark.
    few = strides.selected(torch.arange(len(strides), device=strides.t_start.device) % ONE_OF == 0)
    is_dark = _at_midpoints(model, rays, few) < dark
    strides = strides.selected(_lit(strides, few, is_dark))
    values = _at_midpoints(model, rays, strides)
    near = values.abs() <= reach
    in_dark = values < dark
    # A ray on which it is dark has met the surface before.
    reached = _named(strides.selected(near | in_dark)) | _named(few.selected(is_dark))
    lit = strides.selected(near & _lit(strides, strides, in_dark))
    return FoundSamples(lit.subdivided(steps_per_stride), reached)


def _reach(model: NormalsModel, step: float, steps_per_stride: int) -> Float[Tensor, ""]:
    """Return the distance at the midpoint of a stride up to which the blurred surface may be in it."""
    # From the midpoint to an end of a stride, the distance falls by at most its slope times half the length.
    return _slack(step, steps_per_stride) + VISIBLE_RANGE / model.deviation()


def _dark(model: NormalsModel, step: float, unseen: float) -> Float[Tensor, ""]:
    """Return the distance at the midpoint of a stride below which nothing is visible behind the stride."""
    # T <= S(s f) / S(s f0), with f any distance on the way and f0 >= 0 the first. A section's end is half a step away.
    return math.log(unseen / 2) / model.deviation() - SLOPE * step


def _visible_natively(
    model: NormalsModel, rays: BoundedRays, strides: PackedSamples, step: float, options: RenderOptions
) -> FoundSamples | None:
    """Return the sections that `visible_samples` would keep, found by a kernel; None if it does not support them."""
    # As in `_sections_in`: how dark it is behind fainter surfaces is not known.
    if options.unseen < math.exp(-VISIBLE_RANGE) or not searches_natively(model.sdf, rays, strides):
        return None
    parts = _steps_per_stride(model, step)
    search = SectionSearch(
        parts=parts,
        slope=SLOPE,
        reach=_reach(model, step, parts).item(),
        dark=_dark(model, step, options.unseen).item(),
        sharpness=model.sharpness,
        unseen=options.unseen,
        alpha_threshold=options.alpha_threshold,
    )
    found = visible_sections(model.sdf, rays, strides, search)
    return FoundSamples(found.samples, found.reached)


def _named(samples: PackedSamples) -> Bool[Tensor, " rays"]:
    """Return which rays have samples."""
    return samples.counts > 0


def _at_midpoints(model: NormalsModel, rays: BoundedRays, samples: PackedSamples) -> Float[Tensor, " samples"]:
    return model.sdf(points_along(rays, samples.midpoints, samples.ray_index))


def _lit(samples: PackedSamples, others: PackedSamples, dark: Bool[Tensor, " others"]) -> Bool[Tensor, " samples"]:
    """Return which samples do not lie behind another one of their ray at whose midpoint it is dark."""
    rows = torch.nonzero(dark)[:, 0]
    ends = torch.full((samples.n_rays,), torch.inf, device=samples.t_start.device)
    ends.scatter_reduce_(0, others.ray_index.index_select(0, rows), others.t_end.index_select(0, rows), "amin")
    return samples.t_start < ends.index_select(0, samples.ray_index)


@torch.no_grad()
def visible_samples(
    field: DistanceField, rays: BoundedRays, samples: PackedSamples, sharpness: float, options: RenderOptions
) -> PackedSamples:
    """Drop samples whose transmittance or opacity is below its threshold. Computes no gradients."""
    if not len(samples) or (options.unseen == 0 and options.alpha_threshold == 0):
        return samples
    ends = samples.sections()
    light = section_opacities(field(points_along(rays, ends.distances, ends.ray_index)), sharpness, samples, ends)
    return samples.selected((light.transmittance >= options.unseen) & (light.alpha >= options.alpha_threshold))


def blend_samples(
    model: NormalsModel, rays: BoundedRays, samples: PackedSamples, options: RenderOptions
) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays 3"], Float[Tensor, " rays"], Float[Tensor, "ends 3"]]:
    """Composite samples into opacity, normal and distance; also return the gradients at the ends of the samples.

    The normal of a section is the mean of the gradients at its two ends, so that it applies to the same place as its
    weight.
    """
    ends = samples.sections()
    points = points_along(rays, ends.distances, ends.ray_index)
    # Central differences (Neuralangelo, but with a constant step): no second derivatives, six more evaluations.
    if options.gradient_method == "fd":
        values = model.sdf(points)
        gradients = gradient_fd(model.sdf, points, options.finite_step)
    else:
        values, gradients = model.sdf.with_gradient(points)
    # NeuS computes the opacity of a section from the field's values at its two ends.
    composited = composite_sections(values, model.deviation(), samples, ends, gradients)
    return composited.opacity, composited.values[0], composited.depth, gradients


def render(
    model: NormalsModel, rays_to_render: RaysToRender, step: float, options: RenderOptions, most: int | None = None
) -> RenderedRays:
    """March rays through the occupancy grid and composite their samples, for training.

    Args:
        model: model to render, from its own poses.
        rays_to_render: rays, and the random numbers that place their samples.
        step: distance between samples.
        options: rendering options.
        most: maximum number of samples over all ranks; trailing rays that would exceed it are dropped.
    """
    batch = rays_to_render.batch
    search = _search(model, len(batch), step, options, most)
    if renders_on_device(model, rays_to_render, search, options):
        return _on_device(model, rays_to_render, search, options)
    poses = model.poses()
    rays = rays_in_scene(batch, poses)
    mask = batch.mask
    patches = Patches.of(rays, batch, poses) if options.gradient_method == "dfd" else None
    pixels_per_ray = 1
    # A patch is marched along its central ray, and counts as inside the mask if any of its pixels is.
    if patches is not None:
        rays = patches.central
        pixels_per_ray = patches.area
        mask = mask.view(-1, patches.area).any(1)
    # The bound counts field evaluations, and each sample of a central ray needs one for every pixel of its patch.
    most = None if most is None else most // pixels_per_ray
    most_strides = None if most is None else _most_strides(most, _steps_per_stride(model, step), options)
    strides = _marched(model, rays, step, rays_to_render.jitter(len(rays)), most_strides, rays_to_render)
    visible = _visible_natively(model, rays, strides, step, options) if patches is None else None
    # Where it is dark on the central ray of a patch, other pixels may see something.
    unseen = options.unseen if patches is None else 0.0
    found = _sections_in(strides, model, rays, step, unseen) if visible is None else visible
    kept = strides.n_rays
    rays = _first(rays, kept)
    mask = mask[:kept]
    # Before empty rays are filled, because the recovery judges the grid alone.
    starving = mask & ~found.reached
    starved = _share(starving, mask)
    samples = found.samples
    if visible is None and patches is None:
        samples = visible_samples(model.sdf, rays, samples, model.sharpness, options)
    filled = 0
    if options.empty_samples:
        # Noise for the rays within the bound, which are the same for any number of ranks.
        noise = rays_to_render.noise(kept, options.empty_samples + 1)
        added = _added(starving, rays, options.empty_samples, noise)
        filled = added.filled * pixels_per_ray
        if filled:
            more = added.samples
            if patches is None:
                more = visible_samples(model.sdf, rays, more, model.sharpness, options)
            samples = samples.merged(more)
    if patches is None:
        opacity, normal, distance, gradients = blend_samples(model, rays, samples, options)
    else:
        patches = patches.first(kept)
        samples = visible_patch_samples(model.sdf, patches, samples, model.sharpness, options)
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


def _search(model: NormalsModel, rays: int, step: float, options: RenderOptions, most: int | None) -> StrideSearch:
    """Return how GPU kernels find the samples of rays: as `march_samples` does."""
    parts = _steps_per_stride(model, step)
    unlimited = StrideSearch(
        cells=model.grid.config.cells,
        step=step,
        parts=parts,
        most=0,
        radius=RADIUS,
        slack=_slack(step, parts),
        visible_range=VISIBLE_RANGE,
        empty_samples=options.empty_samples,
    )
    if most is None:
        return replace(unlimited, most=rays * unlimited.strides * parts)
    return replace(unlimited, most=_most_strides(most, parts, options) * parts)


def _on_device(
    model: NormalsModel, rays_to_render: RaysToRender, search: StrideSearch, options: RenderOptions
) -> RenderedRays:
    rendered, distance = render_on_device(model, rays_to_render, search, options)
    return RenderedRays(
        opacity=rendered.opacity,
        normal=rendered.normal,
        distance=distance,
        gradients=rendered.gradients,
        samples=rendered.samples,
        filled=0,
        starved=0.0,
        ray_count=len(rays_to_render.batch),
        device=rendered,
    )


def _most_strides(most: int, steps_per_stride: int, options: RenderOptions) -> int:
    # If faint samples are dropped, about one step of a stride is left, else up to all of them.
    return max(most // (1 if options.alpha_threshold else steps_per_stride), 1)


def _steps_per_stride(model: NormalsModel, step: float) -> int:
    # An integer, because strides are subdivided into steps.
    return max(int(STRIDE * min(model.grid.config.cells.edges) / step), 1)


def _slack(step: float, steps_per_stride: int) -> float:
    """Return how far the distance may fall from the midpoint to an end of a stride."""
    return SLOPE * 0.5 * step * steps_per_stride


def _first(rays: BoundedRays, count: int) -> BoundedRays:
    parts = {name: getattr(rays, name)[:count] for name in ("origins", "directions", "near", "far")}
    return BoundedRays(**parts)


def _added(
    starving: Bool[Tensor, " rays"], rays: BoundedRays, count: int, noise: Float[Tensor, "rays _"]
) -> FilledSamples:
    """Return stratified samples of the rays that the grid gave none."""
    # Other rays are rightly empty: a range of zero length gets no samples.
    starving_rays = replace(rays, far=torch.where(starving, rays.far, rays.near))
    none = PackedSamples(
        t_start=rays.near.new_empty(0),
        t_end=rays.near.new_empty(0),
        ray_index=torch.empty(0, dtype=torch.int64, device=rays.near.device),
        n_rays=len(rays),
    )
    return fill_empty(none, starving_rays, count, noise=noise)


def _share(which: Bool[Tensor, " rays"], among: Bool[Tensor, " rays"]) -> float:
    return float(which.sum() / among.sum().clamp_min(1))
