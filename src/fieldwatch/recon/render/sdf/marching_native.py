"""Ray marching through an occupancy grid in native kernels."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from fieldwatch.recon.render.native import call
from fieldwatch.recon.render.sdf.cells import Cells
from fieldwatch.recon.render.sdf.samples import BoundedRays, PackedSamples

_MOST_NUMBER = 2**30  # largest sample number along a ray; the kernel counts in 32 bits


def marches_natively(
    cells: Cells, bits: UInt8[Tensor, "2 bytes"], rays: BoundedRays, first: Tensor, longest: int
) -> bool:
    """Return whether the kernel supports these inputs; the torch implementation reports mismatched shapes."""
    # Double precision, for example in gradient checks, runs in torch.
    floats = (rays.origins, rays.directions, rays.far, first)
    if any(part.dtype != torch.float32 or part.device.type != "cpu" for part in floats):
        return False
    number = len(rays)
    fits = [tuple(part.shape) for part in floats] == [(number, 3), (number, 3), (number,), (number,)]
    return fits and bits.shape[1] == _bytes(cells.resolution) and longest < _MOST_NUMBER


def native_march(  # noqa: PLR0913  a grid and its tables; rays and their samples; limits
    cells: Cells,
    bits: UInt8[Tensor, "2 bytes"],
    rays: BoundedRays,
    first: Float[Tensor, " rays"],
    counts: Int64[Tensor, " rays"],
    *,
    step: float,
    stride: int,
    max_samples: int | None,
    chunk: int,
) -> PackedSamples:
    """Find the samples of `march_reference`, bitwise equal.

    Args:
        cells: cells of the grid.
        bits: packed maps of the occupied and of the dilated cells, from `native_maps`.
        rays: rays with their bounds.
        first: distance where sample 0 of each ray starts.
        counts: number of candidate samples per ray.
        step: length of a sample.
        stride: number of samples in a stretch that is looked up at once.
        max_samples: limit of the number of samples.
        chunk: number of candidate samples per group of rays; a single ray may have more.
    """
    box = torch.tensor([*cells.low, *(1 / edge for edge in cells.edges)], dtype=torch.float32)
    lines = [marched.detach().contiguous() for marched in (rays.origins, rays.directions, first, rays.far, counts)]
    parts: list[PackedSamples] = []
    remaining = max_samples
    for begin, end in _groups(counts + stride, chunk):
        grid = (step, stride, cells.resolution + 2, box, bits[0], bits[1])
        marched = _marched([line[begin:end] for line in lines], grid, remaining)
        parts.append(marched)
        # The limit was reached within this group: the rest of the rays is dropped.
        if marched.n_rays < end - begin:
            break
        remaining = None if remaining is None else remaining - len(marched)
    if len(parts) == 1:
        return parts[0]
    return _joined(parts, first)


def native_maps(
    occupied: Bool[Tensor, "size size size"],
) -> tuple[Bool[Tensor, "rim rim rim"], Bool[Tensor, "rim rim rim"], UInt8[Tensor, "2 bytes"]]:
    """Return a cubic table padded with empty cells, the same dilated by one cell, and the packed bits of both."""
    size = len(occupied) + 2
    rimmed, scratch, near = (occupied.new_empty(size, size, size) for _ in range(3))
    bits = occupied.new_empty(2, _bytes(len(occupied)), dtype=torch.uint8)
    threads = torch.get_num_threads()
    call("fw_rim", len(occupied), occupied.contiguous(), threads, rimmed, scratch, near, bits[0], bits[1])
    return rimmed, near, bits


def _bytes(resolution: int) -> int:
    """Return the number of bytes for the bits of a padded table."""
    return -(-((resolution + 2) ** 3) // 8)


def _groups(room: Int64[Tensor, " rays"], chunk: int) -> list[tuple[int, int]]:
    """Return first and end rays of groups with about `chunk` candidate samples, at least one ray each."""
    group = (room.cumsum(0) - 1) // chunk
    ends = torch.unique_consecutive(group, return_counts=True)[1].cumsum(0).tolist()
    return list(zip([0, *ends], ends, strict=False))


def _marched(lines: list[Tensor], grid: tuple[Any, ...], max_samples: int | None) -> PackedSamples:
    """March a group of rays; keep the first rays that have at most `max_samples` in total."""
    counts = lines[-1]
    first = lines[2]
    step, stride, *_ = grid
    # One stride more per ray, because the last stretch may extend beyond the candidates.
    room_ends = (counts + stride).cumsum(0)
    begin = room_ends - counts - stride
    found_counts = torch.empty_like(counts)
    threads = torch.get_num_threads()
    # Room for all candidates plus one stretch per ray: the kernel writes whole stretches.
    numbers = torch.empty(int(room_ends[-1]), dtype=torch.int32)
    call("fw_march", len(counts), *lines, *grid, threads, begin, numbers, found_counts)
    ends = found_counts.cumsum(0)
    # Whole rays only, as many as stay within the limit.
    n_rays = len(counts) if max_samples is None else int((ends <= max_samples).sum())
    total = int(ends[n_rays - 1]) if n_rays else 0
    start = first.new_empty(total)
    end = first.new_empty(total)
    ray_index = counts.new_empty(total)
    offsets = (begin, numbers, found_counts, ends - found_counts)
    call("fw_march_samples", n_rays, first, step, *offsets, threads, start, end, ray_index)
    return PackedSamples(t_start=start, t_end=end, ray_index=ray_index, n_rays=n_rays)


def _joined(parts: list[PackedSamples], like: Tensor) -> PackedSamples:
    """Concatenate the samples of groups of rays."""
    before = 0
    rays = [like.new_empty(0, dtype=torch.int64)]
    for part in parts:
        rays.append(part.ray_index + before)
        before += part.n_rays
    start, end = (
        torch.cat([like.new_empty(0), *(getattr(part, name) for part in parts)]) for name in ("t_start", "t_end")
    )
    return PackedSamples(t_start=start, t_end=end, ray_index=torch.cat(rays), n_rays=before)
