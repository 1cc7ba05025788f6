"""Ray samples on a GPU, found by kernels without a read by the host (`gpu/sdf_march.cu`)."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int32
from torch import Tensor

from fieldwatch.recon.render.sdf.cells import Cells
from fieldwatch.recon.render.sdf.samples import BoundedRays
from fieldwatch.recon.render.sdf_gpu.compositing import opacities
from fieldwatch.recon.render.sdf_gpu.field import OUTSIDE
from fieldwatch.recon.render.sdf_gpu.samples import MARCH, RAY_THREADS, DeviceSamples

_THREADS = 128

# Places in the counts of a march, as in the kernels.
KEPT_RAYS, STRIDES, STARVED, MASKED, FILLED, FAULTS, SECTIONS = range(7)
BAD_RAY = 2
"""Fault bit of a ray that is not finite: BAD_RAY in the kernels."""


def raise_device_faults(faults: int) -> None:
    """Raise an error for the fault bits of the kernels.

    Raises:
        ValueError: a ray is not finite, or a sample is outside the box of the field.
    """
    if faults & BAD_RAY:
        raise ValueError("a ray is not finite: check the poses and intrinsics it was made from")
    if faults & OUTSIDE:
        raise ValueError(
            "samples are outside the field's box [-1, 1]: clip the rays to the box, or scale the scene into it"
        )


@dataclass(frozen=True, kw_only=True)
class StrideSearch:
    """How strides of rays are searched for the surface.

    Attributes:
        cells: cells of the occupancy grid.
        step: length of a section.
        parts: sections in a stride.
        most: most sections in total: trailing rays that would exceed it get none.
        radius: radius of the sphere that bounds the rays.
        slack: distance by which the field may fall within half a stride.
        visible_range: distance from the surface at which it is visible, in units of 1 / s.
        empty_samples: stratified samples of rays in the mask that have no others.
    """

    cells: Cells
    step: float
    parts: int
    most: int
    radius: float
    slack: float
    visible_range: float
    empty_samples: int

    @property
    def strides(self) -> int:
        """Most strides along a ray: its chord by the length of a stride, and one for rounding."""
        return math.ceil(2 * self.radius / (self.step * self.parts) + 0.5) + 1

    def room(self, rays: int) -> tuple[int, int]:
        """Return the most sections and the most ends of rays."""
        filled = rays * self.empty_samples
        strides = min(max(self.most // self.parts, 1), rays * self.strides)
        return strides * self.parts + filled, strides * (self.parts + 1) + (filled + rays if filled else 0)


def find_samples(  # noqa: PLR0913, PLR0917  a grid and a field, rays and their random numbers, and how they are searched
    search: StrideSearch,
    occupied: Bool[Tensor, "x y z"],
    field: Any,
    sharpness: Float[Tensor, ""],
    rays: BoundedRays,
    mask: Bool[Tensor, " rays"],
    *,
    jitter: Float[Tensor, " rays"] | None,
    noise: Float[Tensor, "rays _"] | None,
) -> tuple[DeviceSamples, Int32[Tensor, "7"]]:
    """Return sections in occupied cells whose strides are close to the surface, and what was counted.

    Rays in the mask without any get stratified samples.

    Args:
        search: how strides are searched.
        occupied: occupied cells.
        field: returns signed distances, of points, their number on the device, and fault bits to add to.
        sharpness: s of the surface, which widens the search.
        rays: rays with their bounds, at least one.
        mask: rays on the object.
        jitter: shift of the sections of each ray, in steps; None shifts none.
        noise: position of each end of the stratified samples in its stratum; None uses the middle.

    Returns:
        The samples, and counts at the places KEPT_RAYS to SECTIONS of this module.
    """
    count = len(rays)
    most = search.strides
    bound = max(search.most // search.parts, 1)
    stride = search.step * search.parts
    lines = [part.detach().contiguous() for part in (rays.origins, rays.directions, rays.near, rays.far)]
    device = lines[0].device

    def flags(*shape: int) -> Tensor:
        return torch.empty(shape, dtype=torch.int32, device=device)

    counts = torch.zeros(7, dtype=torch.int32, device=device)
    found = flags(count * most)
    box = (*search.cells.low, *(1 / edge for edge in search.cells.edges))
    grid = (search.cells.resolution, *box, occupied)
    blocks = -(-count * most // _THREADS)
    MARCH.launch("march_flags", blocks, count, most, stride, *grid, *lines, jitter, found, counts)
    strides = found.cumsum(0, dtype=torch.int32)
    # No more strides than candidates: small steps have few.
    room = min(bound, count * most)
    stride_ray, stride_number = (flags(room) for _ in range(2))
    middles = torch.empty(room, 3, device=device)
    listed = (strides, stride_ray, stride_number, middles, counts)
    MARCH.launch("march_strides", blocks, count, most, bound, stride, *lines, jitter, *listed)
    near = None
    if search.parts > 1:
        near = field(middles, counts[STRIDES : STRIDES + 1], counts[FAULTS : FAULTS + 1])
    reach = (near, search.slack, search.visible_range, sharpness.detach(), counts)
    kept = flags(2, room)
    MARCH.launch("march_near", -(-room // _THREADS), room, search.parts, stride_ray, stride_number, *reach, kept)
    sums = kept.cumsum(1, dtype=torch.int32)
    per_ray = flags(2, count)
    sizes = (count, most, bound, room, search.parts, search.empty_samples)
    MARCH.launch("march_rays", -(-count // _THREADS), *sizes, mask, *lines[2:], strides, sums, per_ray, counts)
    ray_sums = per_ray.cumsum(1, dtype=torch.int32)
    samples = DeviceSamples.with_room(ray_sums, *search.room(count))
    filled_ends = count * (search.empty_samples + 1) if search.empty_samples else 0
    written = (samples.section_ray, samples.first_end, samples.end_ray, samples.end_section, samples.distance)
    MARCH.launch(
        "march_sections",
        -(-(room * search.parts + filled_ends) // _THREADS),
        *(count, most, room, search.parts, search.empty_samples, stride, *lines, jitter, noise),
        *(strides, sums, stride_ray, stride_number, ray_sums, counts, *written, samples.points),
    )
    return samples, counts


def visible_on_device(  # noqa: PLR0913  samples, what they are judged by, and thresholds
    samples: DeviceSamples,
    rays: BoundedRays,
    values: Float[Tensor, " end_room"],
    sharpness: Float[Tensor, ""],
    counts: Int32[Tensor, "7"],
    *,
    least_light: float,
    least_alpha: float,
) -> DeviceSamples:
    """Return the sections that light reaches and that are not clear, and count them.

    Args:
        samples: samples of the rays.
        rays: rays of the samples.
        values: signed distances at the ends.
        sharpness: s of the surface.
        counts: counts of `find_samples`.
        least_light: smallest transmittance in front of a section.
        least_alpha: smallest opacity of a section.
    """
    count = len(rays)
    room = len(samples.section_ray)
    alpha, clear = opacities(values, samples.first_end, samples.sections, sharpness.detach())
    flags = torch.empty(2, room, dtype=torch.int32, device=values.device)
    light = (least_light, least_alpha, samples.ray_sums, samples.first_end, alpha, clear)
    MARCH.launch("march_visible", -(-count // RAY_THREADS), count, room, *light, flags)
    sums = flags.cumsum(1, dtype=torch.int32)
    kept = DeviceSamples.with_room(torch.empty_like(samples.ray_sums), room, len(samples.distance))
    lines = (rays.origins.detach().contiguous(), rays.directions.detach().contiguous())
    old = (samples.sections, samples.ray_sums, sums, *lines, samples.section_ray, samples.first_end, samples.distance)
    new = (kept.ray_sums, kept.section_ray, kept.first_end, kept.end_ray, kept.end_section, kept.distance, kept.points)
    MARCH.launch("march_kept", -(-max(room, count) // _THREADS), count, room, *old, *new, counts)
    return kept


class StepNumbers(NamedTuple):
    """What a step records of its samples."""

    samples_per_ray: Float[Tensor, ""]
    rays: Float[Tensor, ""]
    filled: Float[Tensor, ""]
    starved: Float[Tensor, ""]


def step_numbers(counts: Int32[Tensor, "batches 7"]) -> StepNumbers:
    """Return the numbers to record of the counts of a step's marches: rays and filled rays are sums.

    Rays without samples count as a share of those in the mask.
    """
    numbers = torch.empty(4, device=counts.device)
    MARCH.launch("march_numbers", 1, *counts.shape, counts.contiguous(), numbers)
    return StepNumbers(*numbers.unbind())
