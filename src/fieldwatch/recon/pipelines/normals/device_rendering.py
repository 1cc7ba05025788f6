"""Rendering of a step's rays on a GPU, without a number that the host waits for.

Lists of samples have room for as many as a step may have; how many there are is known to the device only. Rays beyond
the bound of samples get none, as on a CPU, and the losses leave them out. What was counted is read a step later
(`DelayedCounts`).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import RenderOptions, TermOptions
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.pipelines.normals.normal_cost import norm_of
from fieldwatch.recon.pipelines.normals.rays_to_render import RaysToRender
from fieldwatch.recon.render.sdf_gpu import (
    FAULTS,
    KEPT_RAYS,
    MOST_POINTS,
    DeviceSamples,
    ObservedRays,
    RayTerms,
    StrideSearch,
    blend_on_device,
    find_samples,
    placed_rays,
    ray_terms,
    sharpness_on_device,
    view_losses_on_device,
    visible_on_device,
)

LEAST_OPACITY = 0.05
"""Opacity below which a ray has no meaningful direction yet; the mask term has to raise it first."""


@dataclass(frozen=True, kw_only=True, eq=False)
class DeviceRays:
    """What a GPU rendered of rays, besides what `RenderedRays` has of them.

    Attributes:
        opacity: opacity of each ray.
        normal: sum of weight times gradient.
        gradients: gradients of the field at the ends of the samples, and room for more.
        observed: observed normals in the frame of the scene's sphere.
        samples: the samples.
        counts: what was counted, at the places of `recon.render.sdf_gpu`.
    """

    opacity: Float[Tensor, " rays"]
    normal: Float[Tensor, "rays 3"]
    gradients: Float[Tensor, "ends 3"]
    observed: Float[Tensor, "rays 3"]
    samples: DeviceSamples
    counts: Int32[Tensor, "7"]
    _terms: dict[TermOptions, RayTerms]

    @property
    def kept(self) -> Int32[Tensor, "1"]:
        """Number of rays within the bound of samples."""
        return self.counts[KEPT_RAYS : KEPT_RAYS + 1]

    @cached_property
    def rendered(self) -> Bool[Tensor, " rays"]:
        """Whether each ray is within the bound of samples."""
        return torch.arange(len(self.opacity), device=self.opacity.device) < self.kept

    def terms(self, batch: RayBatch, options: TermOptions) -> RayTerms:
        """Return the terms normal, mask and eikonal; they are computed together, once.

        Args:
            batch: all rays, rendered or not.
            options: how terms are computed.
        """
        if options not in self._terms:
            compared = self._compared(batch, options)
            self._terms[options] = ray_terms(self.opacity, self.normal, self.gradients, self.samples.ends, compared)
        return self._terms[options]

    def view_losses(
        self, batch: RayBatch, options: TermOptions, views: int, normal: float, mask: float
    ) -> Float[Tensor, " views"]:
        """Return the loss of each view by its normals and its mask.

        Args:
            batch: all rays, rendered or not.
            options: how terms are computed.
            views: number of views.
            normal: weight of the normal term.
            mask: weight of the mask term.
        """
        return view_losses_on_device(self.opacity, self.normal, self._compared(batch, options), views, normal, mask)

    def only_rendered(self, batch: RayBatch) -> RayBatch:
        """Return the batch with rays that were not rendered outside the mask, without normals, depth and weight."""
        rendered = self.rendered
        return replace(
            batch,
            mask=batch.mask & rendered,
            known=batch.known & rendered,
            distance=torch.where(rendered, batch.distance, 0),
            weights=torch.where(rendered, batch.weights, 0),
        )

    def _compared(self, batch: RayBatch, options: TermOptions) -> ObservedRays:
        norm, scale = norm_of(options)
        return ObservedRays(
            kept=self.kept,
            normals=self.observed,
            mask=batch.mask,
            known=batch.known,
            weights=batch.weights if options.balanced else None,
            least_opacity=LEAST_OPACITY if options.rendered_normals == "direction" else None,
            norm=norm,
            scale=scale,
        )


def renders_on_device(model: NormalsModel, rays: RaysToRender, search: StrideSearch, options: RenderOptions) -> bool:
    """Return whether the GPU kernels render these rays: exact gradients, all rays in this process, not too many."""
    directions = rays.batch.directions
    exact = options.gradient_method == "ad" and not rays.shared
    count = len(directions)
    fits = directions.is_cuda and count > 0 and search.room(count)[1] <= MOST_POINTS
    return exact and fits and model.sdf.fits_gpu(directions)


def render_on_device(
    model: NormalsModel, rays_to_render: RaysToRender, search: StrideSearch, options: RenderOptions
) -> tuple[DeviceRays, Float[Tensor, " rays"]]:
    """March rays through the occupancy grid and composite their samples; also return distances.

    Args:
        model: model to render, from its own poses.
        rays_to_render: rays, and the random numbers that place their samples.
        search: how samples are found.
        options: rendering options.
    """
    batch = rays_to_render.batch
    rays, observed = placed_rays(batch.view, batch.directions, batch.normals, model.poses(), search.radius)
    sharpness = sharpness_on_device(model.deviation.parameter, *model.deviation.bounds())
    network = model.sdf.network()

    def field(points: Tensor, number: Tensor, faults: Tensor) -> Tensor:
        return model.sdf.on_gpu(points, number, faults, sloped=False, network=network)[0]

    with torch.no_grad():
        jitter, noise = _drawn(rays_to_render, search)
        placed = (field, sharpness, rays, batch.mask)
        samples, counts = find_samples(search, model.grid.occupied, *placed, jitter=jitter, noise=noise)
        if options.unseen > 0 or options.alpha_threshold > 0:
            values = field(samples.points, samples.ends, counts[FAULTS : FAULTS + 1])
            thresholds = {"least_light": options.unseen, "least_alpha": options.alpha_threshold}
            samples = visible_on_device(samples, rays, values, sharpness, counts, **thresholds)
    samples = samples.at(rays.origins, rays.directions)
    faults = counts[FAULTS : FAULTS + 1]
    values, slopes = model.sdf.on_gpu(samples.points, samples.ends, faults, sloped=True, network=network)
    gradients = cast("Tensor", slopes)
    opacity, distance, normal = blend_on_device(values, gradients, sharpness, samples)
    rendered = DeviceRays(
        opacity=opacity,
        normal=normal,
        gradients=gradients,
        observed=observed,
        samples=samples,
        counts=counts,
        _terms={},
    )
    return rendered, distance


def _drawn(rays_to_render: RaysToRender, search: StrideSearch) -> tuple[Tensor, Tensor | None]:
    """Return the random numbers that place the samples of all rays."""
    count = len(rays_to_render.batch)
    if not search.empty_samples:
        return rays_to_render.jitter(count), None
    return rays_to_render.jitter_and_noise(count, search.empty_samples + 1)
