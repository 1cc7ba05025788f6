"""What patches of rays see of a signed distance field: gradients by directional finite differences (SuperNormal)."""

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
    """Squares of rays, each marched along its central ray; the others have their samples on the same planes.

    Attributes:
        rays: of all pixels, a patch's one after the other, row by row.
        axes: of each patch, the optical axis of its camera.
        side: pixels of a patch each way, odd, 3 or more.
    """

    rays: BoundedRays
    axes: Float[Tensor, "patches 3"]
    side: int

    @classmethod
    def of(cls, rays: BoundedRays, batch: RayBatch, poses: Float[Tensor, "views 4 4"]) -> "Patches":
        """Return the patches of a batch.

        Args:
            rays: of the batch, in the frame of the field.
            batch: drawn in patches.
            poses: `world_from_camera` of all views that the batch's numbers mean.

        Raises:
            ValueError: a batch that does not come in patches of 3 x 3 or more, odd.
        """
        area = batch.patch**2
        if batch.patch < 3 or batch.patch % 2 == 0 or len(rays) % area:
            raise ValueError(
                f"{len(rays)} rays in patches of {batch.patch} x {batch.patch}: directional differences want whole "
                "patches of 3 x 3 or more, odd; draw them so (RaySource(patch=3))"
            )
        return cls(rays=rays, axes=poses[batch.view[area // 2 :: area], :3, 2].detach(), side=batch.patch)

    def __len__(self) -> int:
        """Count the patches."""
        return len(self.axes)

    @property
    def area(self) -> int:
        """Pixels of a patch."""
        return self.side**2

    @property
    def central(self) -> BoundedRays:
        """The rays through the middles of the patches: those to march along."""
        parts = {name: getattr(self.rays, name) for name in ("origins", "directions", "near", "far")}
        return BoundedRays(**{name: part[self.area // 2 :: self.area] for name, part in parts.items()})

    def first(self, count: int) -> "Patches":
        """Return the first patches."""
        parts = {name: getattr(self.rays, name) for name in ("origins", "directions", "near", "far")}
        cut = BoundedRays(**{name: part[: count * self.area] for name, part in parts.items()})
        return Patches(rays=cut, axes=self.axes[:count], side=self.side)

    @torch.no_grad()
    def on_planes(self, distances: Float[Tensor, " n"], patch: Tensor) -> Float[Tensor, "n side side"]:
        """Return where all rays of patches meet the planes on which places of their central rays lie.

        A motion of the camera leaves these distances as they are: no gradient.

        Args:
            distances: along central rays.
            patch: of each.
        """
        directions = self.rays.directions.view(-1, self.side, self.side, 3)[patch]
        half = self.side // 2
        return plane_distances(distances, directions[:, half, half], directions, self.axes[patch])

    def points(self, distances: Float[Tensor, "n side side"], patch: Tensor) -> Float[Tensor, "n side side 3"]:
        """Return the points at distances along all rays of patches; gradients flow to the poses.

        Args:
            distances: as of `on_planes`.
            patch: of each.
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
    """Leave out samples that no light reaches on any pixel of their patch; nothing is trained for it.

    First those go that are not whole: where a pixel's part of the plane lies outside the field's box, neither it nor
    its neighbours have differences. That is at the rim of the scene's sphere only.

    Args:
        field: signed distances.
        patches: whose samples they are.
        samples: of the central rays.
        sharpness: s of the surface.
        options: thresholds of light and opacity.
    """
    samples = _whole(patches, samples)
    if not len(samples) or (options.unseen == 0 and options.alpha_threshold == 0):
        return samples
    ends = samples.sections()
    points = patches.points(patches.on_planes(ends.distances, ends.ray_index), ends.ray_index)
    values = field(points.view(-1, 3)).view(-1, patches.area)
    alpha = section_alpha(values[ends.start], values[ends.end], sharpness)
    order, pixel = _by_pixel(samples, patches.area)
    reaching = torch.empty_like(alpha).view(-1)
    # Light is followed along each pixel's ray, and brought back to where the samples of patches stand.
    reaching[order] = transmittance(alpha.view(-1)[order], pixel, len(patches.rays))
    lit = (reaching.view_as(alpha) >= options.unseen) & (alpha >= options.alpha_threshold)
    # A patch is kept or left out as a whole: differences need all of its pixels.
    return samples.selected(lit.any(-1))


def blend_patches(
    model: NormalsModel, patches: Patches, samples: PackedSamples
) -> tuple[Float[Tensor, " rays"], Float[Tensor, "rays 3"], Float[Tensor, " rays"], Float[Tensor, "sections 3"]]:
    """Blend samples of patches to opacity, normal and distance; also return the gradients in the sections' middles.

    The field is only evaluated, once at each end of a section and pixel; the gradients are differences of those values
    (`gradient_dfd`). Across the ray they are taken on the planes of both ends and averaged, so that they stand in the
    middle, where the difference along the ray does: the error is one of second order in the step.

    Args:
        model: its field and how sharp it is.
        patches: all that were marched.
        samples: of their central rays, whole (`seen_patches`).

    Returns:
        Per ray, a patch's one after the other: opacity, sum of weight times gradient, sum of weight times distance.
        Per section and pixel: the gradients.
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
    middles = 0.5 * (distances[ends.start] + distances[ends.end]).view(-1)
    # `composite` wants the samples of a ray one after the other; so far they lie sample by sample.
    order, pixel = _by_pixel(samples, area)
    alpha = section_alpha(start, end, model.deviation())
    normals = gradients.view(-1, 3)
    composited = composite(alpha[order], pixel, rays, middles[order], normals[order])
    return composited.opacity, composited.values[0], composited.depth, normals


def pixel_samples(patches: Patches, samples: PackedSamples) -> PackedSamples:
    """Return the samples of every ray of patches, from those of the central ones."""
    order, pixel = _by_pixel(samples, patches.area)
    start, end = (patches.on_planes(at, samples.ray_index).view(-1)[order] for at in (samples.t_start, samples.t_end))
    return PackedSamples(t_start=start, t_end=end, ray_index=pixel, n_rays=len(patches.rays))


def _whole(patches: Patches, samples: PackedSamples) -> PackedSamples:
    """Keep the samples whose both ends are in the field's box on all pixels of the patch."""
    inside = torch.ones(len(samples), dtype=torch.bool, device=samples.ray_index.device)
    for distances in (samples.t_start, samples.t_end):
        points = patches.points(patches.on_planes(distances, samples.ray_index), samples.ray_index)
        inside &= (points.abs() <= 1).flatten(1).all(-1)
    return samples if bool(inside.all()) else samples.selected(inside)


def _by_pixel(samples: PackedSamples, area: int) -> tuple[Tensor, Tensor]:
    """Order of (sample, pixel) pairs that are packed by sample, once they are packed by pixel; and each one's ray."""
    pixel = (samples.ray_index[:, None] * area + torch.arange(area, device=samples.ray_index.device)).view(-1)
    sorted_pixel, order = torch.sort(pixel, stable=True)
    return order, sorted_pixel


def _middle_gradients(
    values: Float[Tensor, "ends side side"],
    points: Float[Tensor, "ends side side 3"],
    start: Tensor,
    end: Tensor,
) -> Float[Tensor, "sections side side 3"]:
    """Gradients in the middles of sections; they turn with a camera as little as the field itself does.

    `gradient_dfd` holds the places of a patch for fixed. When poses are learned they are not: a turn of the camera
    changes every difference as if the field had turned the other way, by -w x g. So the part of each value that comes
    from its pixel's motion relative to the others', g . dx, is taken off: 0, but with that gradient.
    """
    ends = [at.index_select(0, rows) for at in (values, points) for rows in (start, end)]
    gradients = _both_ways(*ends)
    # Poses are fixed now: there is nothing to take off.
    if not points.requires_grad:
        return gradients
    # One slope for the patch, so that what is taken off is linear in the motion of its pixels.
    slope = gradients.detach().mean((1, 2), keepdim=True)
    motion = [(slope * (point - point.detach())).sum(-1) for point in ends[2:]]
    return gradients - _both_ways(motion[0], motion[1], *ends[2:])


def _both_ways(first: Tensor, second: Tensor, first_points: Tensor, second_points: Tensor) -> Tensor:
    there = gradient_dfd(first, second, first_points, second_points)
    # `gradient_dfd` stands at the first end: from both ends, the mean stands in the middle.
    return 0.5 * (there + gradient_dfd(second, first, second_points, first_points))
