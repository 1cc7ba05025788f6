"""Samples along rays, packed: each ray has as many as it needs, one ray's after the other's."""

from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class BoundedRays:
    """Rays and the part of each that may meet the scene.

    Attributes:
        origins: in the frame of the field.
        directions: of length 1.
        near: distance from the origin where the part begins, 0 or more.
        far: where it ends; equal to `near` for a ray that misses the scene.
    """

    origins: Float[Tensor, "rays 3"]
    directions: Float[Tensor, "rays 3"]
    near: Float[Tensor, " rays"]
    far: Float[Tensor, " rays"]

    def __len__(self) -> int:
        return len(self.origins)

    @classmethod
    def in_sphere(
        cls, origins: Float[Tensor, "rays 3"], directions: Float[Tensor, "rays 3"], radius: float = 1.0
    ) -> Self:
        """Bound rays by a sphere around the origin: the chord, from the camera on if that is inside.

        Never NaN while poses move: a ray that misses has an empty part at the place where it passes closest.

        Raises:
            ValueError: the radius is not positive.
        """
        if not radius > 0:
            raise ValueError(f"rays are bounded by a sphere of radius {radius}: it must be above 0")
        with torch.no_grad():
            # Distance to the point nearest to the center, and the half chord around it.
            middle = -(origins * directions).sum(-1)
            passes = (origins + middle[:, None] * directions).square().sum(-1)
            half = (radius**2 - passes).clamp_min(0).sqrt()
            near = (middle - half).clamp_min(0)
            far = (middle + half).clamp_min(0)
        return cls(origins=origins, directions=directions, near=near, far=far)

    @classmethod
    def in_box(
        cls,
        origins: Float[Tensor, "rays 3"],
        directions: Float[Tensor, "rays 3"],
        low: tuple[float, float, float] = (-1.0, -1.0, -1.0),
        high: tuple[float, float, float] = (1.0, 1.0, 1.0),
    ) -> Self:
        """Bound rays by a box with sides along the axes (Kay & Kajiya 1986), from the camera on if that is inside.

        Raises:
            ValueError: the box has no volume.
        """
        if not all(a < b for a, b in zip(low, high, strict=True)):
            raise ValueError(f"rays are bounded by a box from {low} to {high}: each low must be below its high")
        with torch.no_grad():
            moves = directions != 0
            # A ray parallel to a slab never crosses its sides: it is inside it everywhere or nowhere.
            divisor = torch.where(moves, directions, 1)
            ends = [(origins.new_tensor(corner) - origins) / divisor for corner in (low, high)]
            inside_slab = (ends[0] <= 0) & (ends[1] >= 0)  # of an axis along which the ray does not move
            enter = torch.where(moves, torch.minimum(*ends), torch.where(inside_slab, -torch.inf, torch.inf))
            leave = torch.where(moves, torch.maximum(*ends), torch.where(inside_slab, torch.inf, -torch.inf))
            near = enter.amax(-1).clamp_min(0)
            far = leave.amin(-1)
            met = near < far
            zero = torch.zeros_like(near)
        return cls(
            origins=origins, directions=directions, near=torch.where(met, near, zero), far=torch.where(met, far, zero)
        )


class Sections(NamedTuple):
    """The ends of all samples, each once where one sample begins where the one before it ends.

    Attributes:
        distances: of the ends, along their rays.
        ray_index: whose ray.
        start: per sample, which end it begins at.
        end: per sample, which end it ends at.
    """

    distances: Float[Tensor, " ends"]
    ray_index: Int64[Tensor, " ends"]
    start: Int64[Tensor, " samples"]
    end: Int64[Tensor, " samples"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedSamples:
    """Sections of rays, sorted by ray and along each ray.

    Attributes:
        t_start: distance from the ray's origin where a section begins.
        t_end: where it ends.
        ray_index: of the ray, rising.
        n_rays: number of rays, those without samples included.
    """

    t_start: Float[Tensor, " samples"]
    t_end: Float[Tensor, " samples"]
    ray_index: Int64[Tensor, " samples"]
    n_rays: int

    def __len__(self) -> int:
        return len(self.ray_index)

    @property
    def midpoints(self) -> Float[Tensor, " samples"]:
        """Distance of the middle of each section."""
        return 0.5 * (self.t_start + self.t_end)

    @property
    def counts(self) -> Int64[Tensor, " rays"]:
        """Samples of each ray."""
        return torch.bincount(self.ray_index, minlength=self.n_rays)

    @property
    def per_ray(self) -> float:
        """Mean number of samples of a ray; 0 where there is no ray."""
        return len(self) / max(self.n_rays, 1)

    def sections(self) -> Sections:
        """The ends at which a field is to be evaluated: about half as many as two for each sample."""
        shares_start = torch.zeros(len(self), dtype=torch.bool, device=self.ray_index.device)
        shares_start[1:] = (self.ray_index[1:] == self.ray_index[:-1]) & (self.t_start[1:] == self.t_end[:-1])
        row = torch.arange(len(self), device=self.ray_index.device)
        start = row + (~shares_start).cumsum(0) - 1  # each run of samples has one end more than samples
        ends = len(self) + int((~shares_start).sum())
        distances = self.t_start.new_empty(ends)
        rays = self.ray_index.new_empty(ends)
        for place, distance in ((start, self.t_start), (start + 1, self.t_end)):
            distances[place] = distance
            rays[place] = self.ray_index
        return Sections(distances, rays, start, start + 1)

    def selected(self, mask: Bool[Tensor, " samples"]) -> "PackedSamples":
        """The samples that are kept, of as many rays as before."""
        return PackedSamples(
            t_start=self.t_start[mask], t_end=self.t_end[mask], ray_index=self.ray_index[mask], n_rays=self.n_rays
        )

    def subdivided(self, parts: int) -> "PackedSamples":
        """Every sample cut into so many of equal length, that follow on one another.

        Raises:
            ValueError: fewer than 1 part.
        """
        if parts < 1:
            raise ValueError(f"samples cannot be cut into {parts} parts: give 1 or more")
        share = torch.arange(parts + 1, device=self.t_start.device) / parts
        ends = torch.lerp(self.t_start[:, None], self.t_end[:, None], share)
        return PackedSamples(
            t_start=ends[:, :-1].reshape(-1),
            t_end=ends[:, 1:].reshape(-1),
            ray_index=self.ray_index.repeat_interleave(parts),
            n_rays=self.n_rays,
        )

    def clipped(self, far: Float[Tensor, " rays"]) -> "PackedSamples":
        """What of the samples lies before a distance of each ray: those beyond are left out, the one across is cut."""
        end = far.index_select(0, self.ray_index)
        cut = PackedSamples(
            t_start=self.t_start,
            t_end=torch.minimum(self.t_end, end),
            ray_index=self.ray_index,
            n_rays=self.n_rays,
        )
        return cut.selected(cut.t_start < cut.t_end)

    def first_rays(self, max_samples: int) -> "PackedSamples":
        """The first rays, as many as have at most `max_samples` samples together; `n_rays` says how many those are."""
        rays = int((self.counts.cumsum(0) <= max_samples).sum())
        sample_count = int((self.ray_index < rays).sum())
        return PackedSamples(
            t_start=self.t_start[:sample_count],
            t_end=self.t_end[:sample_count],
            ray_index=self.ray_index[:sample_count],
            n_rays=rays,
        )


def points_along(
    rays: BoundedRays, distances: Float[Tensor, " samples"], ray_index: Int64[Tensor, " samples"]
) -> Float[Tensor, "samples 3"]:
    """Points at distances along rays; gradients flow into the rays (poses) and the distances."""
    return rays.origins.index_select(0, ray_index) + distances[:, None] * rays.directions.index_select(0, ray_index)
