"""Ray marching: samples in the occupied cells of a grid."""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from fieldwatch.recon.render.native import native_available
from fieldwatch.recon.render.sdf.cells import Cells, dilated, padded
from fieldwatch.recon.render.sdf.marching_native import marches_natively, native_maps, native_march
from fieldwatch.recon.render.sdf.samples import BoundedRays, PackedSamples

_STRIDE = 1.9  # length of a stretch of steps in cells: its ends are less than one cell from its midpoint


class OccupancyMaps(NamedTuple):
    """Occupied cells, and the same dilated by one cell, both padded.

    `bits` packs both maps with eight cells per byte for the native kernel; None if that is not available.
    """

    occupied: Bool[Tensor, "x y z"]
    dilated: Bool[Tensor, "x y z"]
    bits: UInt8[Tensor, "2 bytes"] | None = None


def build_maps(occupied: Bool[Tensor, "x y z"]) -> OccupancyMaps:
    """Build the maps of a table of occupied cells."""
    # The native kernel supports cubic tables only.
    cubic = len(set(occupied.shape)) == 1 and len(occupied) > 0
    if cubic and occupied.device.type == "cpu" and native_available()[0]:
        return OccupancyMaps(*native_maps(occupied))
    return build_maps_reference(occupied)


def build_maps_reference(occupied: Bool[Tensor, "x y z"]) -> OccupancyMaps:
    """Build the maps in plain torch, on any device."""
    edge = padded(occupied)
    return OccupancyMaps(edge, dilated(edge))


def geometric_step(index: int, total: int, first: float = 1e-2, last: float = 1e-3) -> float:
    """Return the distance between samples at a training step, interpolated geometrically (PMNI).

    Args:
        index: training step; the distance is constant from `total` on.
        total: number of training steps.
        first: distance at step 0.
        last: distance at step `total`.

    Raises:
        ValueError: a distance or `total` is not positive, or `index` is negative.
    """
    if not (first > 0 and last > 0 and total > 0 and index >= 0):
        raise ValueError(
            f"first, last and total must be greater than 0 and index at least 0, got {first}, {last}, {total} and "
            f"{index}"
        )
    return first * (last / first) ** min(index / total, 1.0)


class _Lattice(NamedTuple):
    """Candidate samples of rays: sample k extends from `first` + k step to `first` + (k + 1) step."""

    rays: BoundedRays
    first: Float[Tensor, " rays"]
    step: float

    def counts(self) -> Int64[Tensor, " rays"]:
        """Return the number of samples with a midpoint before `far`; rounding may add one."""
        return ((self.rays.far - self.first) / self.step + 0.5).ceil().clamp_min(0).long()

    def at(self, ray: Int64[Tensor, " n"], number: Tensor) -> Float[Tensor, " n"]:
        return self.first.index_select(0, ray) + number * self.step

    def points(self, ray: Int64[Tensor, " n"], distances: Float[Tensor, " n"]) -> tuple[Tensor, Tensor, Tensor]:
        x, y, z = (
            origin.index_select(0, ray) + distances * direction.index_select(0, ray)
            for origin, direction in zip(self.rays.origins.unbind(-1), self.rays.directions.unbind(-1), strict=True)
        )
        return x, y, z


@torch.no_grad()
def march(  # noqa: PLR0913 (a grid and its cells; rays; four settings)
    cells: Cells,
    maps: OccupancyMaps,
    rays: BoundedRays,
    step: float,
    *,
    jitter: Float[Tensor, " rays"] | None,
    max_samples: int | None,
    chunk: int,
) -> PackedSamples:
    """March through occupied cells; see `OccupancyGrid.march`.

    Stretches of many steps are first looked up in the dilated map. Only stretches near an occupied cell are looked up
    step by step, so the result equals a lookup of every step.
    """
    _check(rays, step, jitter, chunk)
    lattice = _Lattice(rays, _first(rays, step, jitter), step)
    counts = lattice.counts()
    stride = _stride(cells, step)
    # The largest sample number must fit the 32-bit counters of the kernel; this is one host read.
    longest = stride + (int(counts.max()) if len(rays) else 0)
    if maps.bits is not None and marches_natively(cells, maps.bits, rays, lattice.first, longest):
        return native_march(
            cells,
            maps.bits,
            rays,
            lattice.first,
            counts,
            step=step,
            stride=stride,
            max_samples=max_samples,
            chunk=chunk,
        )
    return march_reference(cells, maps, rays, step, jitter=jitter, max_samples=max_samples, chunk=chunk)


@torch.no_grad()
def march_reference(  # noqa: PLR0913 (as above)
    cells: Cells,
    maps: OccupancyMaps,
    rays: BoundedRays,
    step: float,
    *,
    jitter: Float[Tensor, " rays"] | None,
    max_samples: int | None,
    chunk: int,
) -> PackedSamples:
    """March in plain torch, on any device and in any precision; bitwise equal to the native kernel."""
    first = _first(rays, step, jitter)
    lattice = _Lattice(rays, first, step)
    samples_found: list[tuple[Tensor, Tensor]] = []
    sample_count = 0
    for part in _parts(lattice.counts(), chunk):
        ray, number = _occupied(cells, maps, lattice, part)
        samples_found.append((ray, number))
        sample_count += len(ray)
        if max_samples is not None and sample_count > max_samples:
            break
    ray, number = (
        (torch.cat(parts) for parts in zip(*samples_found, strict=True))
        if samples_found
        else (_none(first), _none(first))
    )
    packed = PackedSamples(
        t_start=lattice.at(ray, number), t_end=lattice.at(ray, number + 1), ray_index=ray, n_rays=len(rays)
    )
    # The loop stops at the first group beyond the limit: drop the rays that exceed it.
    return packed if max_samples is None or sample_count <= max_samples else packed.first_rays(max_samples)


def _first(rays: BoundedRays, step: float, jitter: Tensor | None) -> Float[Tensor, " rays"]:
    return rays.near.detach() + step * (torch.zeros_like(rays.near) if jitter is None else jitter)


def _stride(cells: Cells, step: float) -> int:
    """Return the number of steps in a stretch that is looked up at once."""
    return max(int(_STRIDE * min(cells.edges) / step), 1)


def _check(rays: BoundedRays, step: float, jitter: Tensor | None, chunk: int) -> None:
    if not (step > 0 and math.isfinite(step) and chunk > 0):
        raise ValueError(f"the step and the chunk must be finite and greater than 0, got {step} and {chunk}")
    inputs = [rays.origins, rays.directions, rays.near[:, None], rays.far[:, None]]
    inputs += [] if jitter is None else [jitter[:, None]]
    if not bool(torch.isfinite(torch.cat(inputs, -1)).all()):
        raise ValueError("a ray is not finite: check the poses and intrinsics it was made from")


def _none(like: Tensor) -> Int64[Tensor, "none"]:
    return torch.empty(0, dtype=torch.int64, device=like.device)


def _parts(counts: Int64[Tensor, " rays"], chunk: int) -> Iterator[Int64[Tensor, " part"]]:
    """Yield groups of rays with at most about `chunk` candidate samples, at least one ray each."""
    used = torch.nonzero(counts)[:, 0]
    # Grouped by the running total of samples, so that each group looks up about `chunk` of them.
    group = (counts[used].cumsum(0) - 1) // chunk
    yield from used.split(torch.unique_consecutive(group, return_counts=True)[1].tolist())


def _occupied(
    cells: Cells, maps: OccupancyMaps, lattice: _Lattice, rays: Int64[Tensor, " part"]
) -> tuple[Int64[Tensor, " samples"], Int64[Tensor, " samples"]]:
    """Return rays and numbers of the samples with a midpoint in an occupied cell and before `far`."""
    counts = lattice.counts()[rays]
    stride = _stride(cells, lattice.step)
    stretches = -(-counts // stride)
    row = torch.repeat_interleave(stretches)
    # First sample of the stretch: its number within the ray times its length.
    begin = (torch.arange(len(row), device=row.device) - (stretches.cumsum(0) - stretches)[row]) * stride
    ray = rays[row]
    middle = lattice.at(ray, begin + 0.5 * stride)
    near = cells.lookup(maps.dilated, lattice.points(ray, middle))
    kept = torch.nonzero(near)[:, 0]  # once: the host waits for their number
    ray = ray[kept]
    begin = begin[kept]
    number = (begin[:, None] + torch.arange(stride, device=begin.device)).view(-1)
    # Expand the stretches near occupied cells into single steps.
    ray = ray.repeat_interleave(stride)
    middle = lattice.at(ray, number + 0.5)
    occupied = cells.lookup(maps.occupied, lattice.points(ray, middle)) & (middle < lattice.rays.far[ray])
    kept = torch.nonzero(occupied)[:, 0]
    return ray[kept], number[kept]
