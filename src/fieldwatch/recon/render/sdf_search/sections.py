"""The visible sections of rays: what makes them visible, and the kernel that finds them."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from fieldwatch.recon.render.native import call
from fieldwatch.recon.render.sdf.samples import BoundedRays, PackedSamples
from fieldwatch.recon.render.sdf_field import HashSdf
from fieldwatch.recon.render.sdf_field_native import field_arguments

FAINT = 3.4e-4
"""Opacity above that of a section that is 8 / s in front of the surface, or farther: S(-8), rounded up."""
_FAINT_FROM = 8.0  # FAINT in native/search.c, in units of 1 / s


@dataclass(frozen=True, kw_only=True)
class SectionSearch:
    """Which sections of rays are visible, and what may be assumed about the field in looking for them.

    Attributes:
        parts: number of sections that a stride is divided into.
        slope: largest slope of the field along a ray.
        reach: distance at the midpoint of a stride up to which it may hold the blurred surface; with one part it is
            not looked at.
        dark: distance at the midpoint of a stride below which nothing is visible behind it.
        sharpness: inverse width s of the surface.
        unseen: transmittance below which a section is not visible.
        alpha_threshold: opacity below which a section is not visible.
    """

    parts: int
    slope: float
    reach: float
    dark: float
    sharpness: float
    unseen: float
    alpha_threshold: float


class VisibleSections(NamedTuple):
    """Sections that a search found.

    Attributes:
        samples: the visible sections.
        reached: rays that meet the surface: a stride may hold it, or it is dark behind one.
        evaluated: number of places at which the field was evaluated.
    """

    samples: PackedSamples
    reached: Bool[Tensor, " rays"]
    evaluated: int


def searches_natively(sdf: HashSdf, rays: BoundedRays, strides: PackedSamples) -> bool:
    """Return whether the kernel supports a field, rays and their strides."""
    floats = (rays.origins, rays.directions, rays.far, strides.t_start, strides.t_end)
    return all(part.dtype == torch.float32 for part in floats) and sdf.fits_cpu(rays.origins)


@torch.no_grad()
def visible_sections(sdf: HashSdf, rays: BoundedRays, strides: PackedSamples, search: SectionSearch) -> VisibleSections:
    """Return the visible sections of rays, given the strides in which they may be.

    A stride is clipped at the end of its ray and, if it may hold the surface, divided into sections. Those of a ray
    whose opacity is not below the threshold, and in front of which is enough light, are visible. A ray is walked from
    front to back and left where it is dark. The slope spares evaluations in front of the surface; if the field is
    nowhere steeper along a ray, the result is that of evaluating every section.

    Args:
        sdf: field that `searches_natively` accepts.
        rays: rays, of which the first may have strides.
        strides: strides, sorted by ray and by distance.
        search: which sections are visible.

    Raises:
        ValueError: a place is outside the box of the field.
    """
    n_rays = strides.n_rays
    # Faint sections are left out only if none of them is wanted.
    limit = _FAINT_FROM / search.sharpness if search.alpha_threshold >= FAINT else math.inf
    limits = torch.tensor(
        [search.slope, search.reach, search.dark, limit, search.unseen, search.alpha_threshold], dtype=torch.float32
    )
    lines = [line.detach().contiguous() for line in (rays.origins, rays.directions, rays.far)]
    start, end, ray_index = (part.contiguous() for part in (strides.t_start, strides.t_end, strides.ray_index))
    threads = torch.get_num_threads()
    field = field_arguments(sdf.encoding, sdf.network(), sdf.sharpness)
    memory = start.new_empty(call("fw_search_memory", sdf.encoding.features, sdf.last.in_features, threads))
    bounds = ray_index.new_empty(n_rays + 1)
    numbers = torch.empty(len(strides) * search.parts, dtype=torch.int32)
    found = ray_index.new_empty(n_rays)
    reached = torch.empty(n_rays, dtype=torch.bool)
    counts = ray_index.new_empty(2)
    call(
        "fw_search",
        *(n_rays, *lines, len(strides), start, end, ray_index, search.parts, limits, search.sharpness),
        *(*field, threads, memory, bounds, numbers, found, reached, counts),
    )
    outside, evaluated = counts.tolist()
    if outside:
        raise ValueError(f"{outside} places on rays are outside the field's box [-1, 1]: clip the rays to the box")
    ends = found.cumsum(0)
    total = int(ends[-1]) if n_rays else 0
    t_start = start.new_empty(total)
    t_end = start.new_empty(total)
    of_ray = ray_index.new_empty(total)
    call(
        "fw_search_sections",
        *(n_rays, lines[2], start, end, search.parts, bounds, numbers, found, ends - found, t_start, t_end, of_ray),
    )
    samples = PackedSamples(t_start=t_start, t_end=t_end, ray_index=of_ray, n_rays=n_rays)
    return VisibleSections(samples, reached, evaluated)
