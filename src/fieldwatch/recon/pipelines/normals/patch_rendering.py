"""Rendering of pixel patches of a signed distance field with directional finite differences (SuperNormal)."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.pipelines.normals.batches import RayBatch
from fieldwatch.recon.pipelines.normals.config import RenderOptions
from fieldwatch.recon.pipelines.normals.model import NormalsModel
from fieldwatch.recon.render import (
    BoundedRays,
    DistanceField,
    PackedSamples,
    composite,
    gradient_dfd,
    plane_distances,
    section_alpha,
    transmittance,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Patches:
    """Square patches of rays. Each is marched along its central ray; the other rays are sampled on the same planes.

    Attributes:
        rays: rays of all pixels, grouped by patch, row by row.
        axes: optical axis of each patch's camera.
        side: side of a patch in pixels, odd and at least 3.
    """

    rays: BoundedRays
    axes: Float[Tensor, "patches 3"]
    side: int

    @classmethod
    def of(cls, rays: BoundedRays, batch: RayBatch, poses: Float[Tensor, "views 4 4"]) -> "Patches":
        """Create the patches of a ray batch.

        Args:
            rays: rays of the batch, in the frame of the field.
            batch: batch sampled in patches.
            poses: ``world_from_camera`` of all views that the batch indexes.

        Raises:
            ValueError: the batch does not consist of odd patches of at least 3 x 3.
        """
        area = batch.patch**2
        if batch.patch < 3 or batch.patch % 2 == 0 or len(rays) % area:
            raise ValueError(
                "directional differences need whole patches with an odd side of at least 3, got "
                f"{len(rays)} rays in patches of {batch.patch} x {batch.patch}; sample with RaySource(patch=3)"
            )
        return cls(rays=rays, axes=poses[batch.view[area // 2 :: area], :3, 2].detach(), side=batch.patch)

    def __len__(self) -> int:
        """Return the number of patches."""
        return len(self.axes)

    @property
    def area(self) -> int:
        """Number of pixels in a patch."""
        return self.side**2

    @property
    def central(self) -> BoundedRays:
        """Central rays of the patches, along which samples are marched."""
        parts = {name: getattr(self.rays, name) for name in ("origins", "directions", "near", "far")}
        return BoundedRays(**{name: part[self.area // 2 :: self.area] for name, part in parts.items()})

    def first(self, count: int) -> "Patches":
        """Return the first ``count`` patches."""
        parts = {name: getattr(self.rays, name) for name in ("origins", "directions", "near", "far")}
        cut = BoundedRays(**{name: part[: count * self.area] for name, part in parts.items()})
        return Patches(rays=cut, axes=self.axes[:count], side=self.side)

    @torch.no_grad()
    def on_planes(self, distances: Float[Tensor, " n"], patch: Tensor) -> Float[Tensor, "n side side"]:
        """Return the distances at which all rays of a patch meet the plane through a point of its central ray.

        A camera motion does not change these distances, so they carry no gradient.

        Args:
            distances: distances along central rays.
            patch: patch index of each distance.
        """
        directions = self.rays.directions.view(-1, self.side, self.side, 3)[patch]
        half = self.side // 2
        return plane_distances(distances, directions[:, half, half], directions, self.axes[patch])

    def points(self, distances: Float[Tensor, "n side side"], patch: Tensor) -> Float[Tensor, "n side side 3"]:
        """Return the points at given distances along all rays of patches; gradients flow to the poses.

        Args:
            distances: distances as returned by `on_planes`.
            patch: patch index of each row of distances.
        """
        shape = (-1, self.side, self.side, 3)
        origins, directions = (
            part.reshape(shape).index_select(0, patch) for part in (self.rays.origins, self.rays.directions)
        )
        return origins + distances[..., None] * directions


@torch.no_grad()
def visible_patch_samples(
    field: DistanceField, patches: Patches, samples: PackedSamples, sharpness: float, options: RenderOptions
) -> PackedSamples:
    """Drop samples whose transmittance or opacity is low on all pixels of their patch. Computes no gradients.

    Incomplete samples are dropped first: where a pixel's part of the plane lies outside the field's box, differences to
    it are undefined. This occurs only at the rim of the scene's sphere.

    Args:
        field: signed distance field.
        patches: patches that the samples belong to.
        samples: samples of the central rays.
        sharpness: sharpness s of the surface.
        options: thresholds of transmittance and opacity.
    """
    samples = _whole(patches, samples)
    if not len(samples) or (options.unseen == 0 and options.alpha_threshold == 0):
        return samples
    ends = samples.sections()
    points = patches.points(patches.on_planes(ends.distances, ends.ray_index), ends.ray_index)
    values = field(points.view(-1, 3)).view(-1, patches.area)
    alpha = section_alpha(values[ends.start], values[ends.end], sharpness)
    order, pixel = _by_pixel(samples, patches.area)
    # Filled through the permutation `order`, so that it is in the order of sections again.
    reaching = torch.empty_like(alpha).view(-1)
    # Accumulate transmittance along each pixel's ray, then scatter it back into the order of the patch samples.
    reaching[order] = transmittance(alpha.view(-1)[order], pixel, len(patches.rays))
    lit = (reaching.view_as(alpha) >= options.unseen) & (alpha >= options.alpha_threshold)
    # A patch is kept or dropped as a whole: differences need all of its pixels.
    return samples.selected(lit.any(-1))


def blend_patches(
    model: NormalsModel, patches: Patches, samples: PackedSamples
) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays 3"], Float[Tensor, " rays"], Float[Tensor, "sections 3"]]:
    """Composite the samples of patches into opacity, normal and distance, and return midpoint gradients.

    The field is evaluated once per pixel at each end of a section; gradients are differences of these values
    (`gradient_dfd`). Differences across the ray are taken on the planes of both ends and averaged, so that they apply
    to the midpoint of the section, like the difference along the ray. Their error is second order in the step.

    Args:
        model: model with the field and its sharpness.
        patches: all patches that were marched.
        samples: complete samples of their central rays (`visible_patch_samples`).

    Returns:
        Per ray, grouped by patch: opacity, sum of weight times gradient, sum of weight times distance. Per section and
        pixel: the gradients.
    """
    side = patches.side
    area = patches.area
    rays = len(patches.rays)
    ends = samples.sections()
    distances = patches.on_planes(ends.distances, ends.ray_index)
    points = patches.points(distances, ends.ray_index)
    values = model.sdf(points.view(-1, 3)).view(-1, side, side)
    gradients = _middle_gradients(values, points, ends.start, ends.end)
    start, end = (values.index_select(0, at).view(-1) for at in (ends.start, ends.end))
    # The opacity of a section applies to its midpoint, as in NeuS.
    middles = 0.5 * (distances[ends.start] + distances[ends.end]).view(-1)
    # `composite` expects samples packed by ray; so far they are packed by patch sample.
    order, pixel = _by_pixel(samples, area)
    alpha = section_alpha(start, end, model.deviation())
    normals = gradients.view(-1, 3)
    composited = composite(alpha[order], pixel, rays, middles[order], normals[order])
    return composited.opacity, composited.values[0], composited.depth, normals


def pixel_samples(patches: Patches, samples: PackedSamples) -> PackedSamples:
    """Return the samples of all rays of patches, given the samples of the central rays."""
    order, pixel = _by_pixel(samples, patches.area)
    start, end = (patches.on_planes(at, samples.ray_index).view(-1)[order] for at in (samples.t_start, samples.t_end))
    return PackedSamples(t_start=start, t_end=end, ray_index=pixel, n_rays=len(patches.rays))


def _whole(patches: Patches, samples: PackedSamples) -> PackedSamples:
    """Keep the samples whose two ends are inside the field's box on all pixels of the patch."""
    inside = torch.ones(len(samples), dtype=torch.bool, device=samples.ray_index.device)
    for distances in (samples.t_start, samples.t_end):
        points = patches.points(patches.on_planes(distances, samples.ray_index), samples.ray_index)
        inside &= (points.abs() <= 1).flatten(1).all(-1)
    return samples if bool(inside.all()) else samples.selected(inside)


def _by_pixel(samples: PackedSamples, area: int) -> tuple[Tensor, Tensor]:
    """Return the permutation from samples packed by patch sample to samples packed by pixel, and the ray of each."""
    pixel = (samples.ray_index[:, None] * area + torch.arange(area, device=samples.ray_index.device)).view(-1)
    sorted_pixel, order = torch.sort(pixel, stable=True)
    return order, sorted_pixel


def _middle_gradients(
    values: Float[Tensor, "ends side side"],
    points: Float[Tensor, "ends side side 3"],
    start: Tensor,
    end: Tensor,
) -> Float[Tensor, "sections side side 3"]:
    """Return the gradients at section midpoints, including their dependence on the camera motion.

    `gradient_dfd` treats the points of a patch as constants. When poses are optimized they are not: a rotation of the
    camera would change every difference as if the field rotated the opposite way, by -w x g. So the part of each value
    that is due to the relative motion of the pixels, g . dx, is subtracted: its value is 0, but its gradient corrects
    the difference.
    """
    ends = [at.index_select(0, rows) for at in (values, points) for rows in (start, end)]
    gradients = _both_ways(*ends)
    # With fixed poses there is nothing to subtract.
    if not points.requires_grad:
        return gradients
    # A single slope per patch makes the subtracted part linear in the motion of its pixels.
    slope = gradients.detach().mean((1, 2), keepdim=True)
    motion = [(slope * (point - point.detach())).sum(-1) for point in ends[2:]]
    return gradients - _both_ways(motion[0], motion[1], *ends[2:])


def _both_ways(first: Tensor, second: Tensor, first_points: Tensor, second_points: Tensor) -> Tensor:
    forward = gradient_dfd(first, second, first_points, second_points)
    # `gradient_dfd` applies to the first end; the mean from both ends applies to the midpoint.
    return 0.5 * (forward + gradient_dfd(second, first, second_points, first_points))
