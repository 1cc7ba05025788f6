"""Marching through a grid in native kernels."""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int64, UInt8
from torch import Tensor

from fieldwatch.recon.render.native import call
from fieldwatch.recon.render.sdf.cells import Cells
from fieldwatch.recon.render.sdf.samples import BoundedRays, PackedSamples

_MOST_NUMBER = 2**30  # of a sample along its ray, which the kernel counts in 32 bits


def marches_natively(
    cells: Cells, bits: UInt8[Tensor, "2 bytes"], rays: BoundedRays, first: Tensor, longest: int
) -> bool:
    """Whether the kernel takes these; what does not fit together fails in torch."""
    floats = (rays.origins, rays.directions, rays.far, first)
    if any(part.dtype != torch.float32 or part.device.type != "cpu" for part in floats):
        return False
    number = len(rays)
    fits = [tuple(part.shape) for part in floats] == [(number, 3), (number, 3), (number,), (number,)]
    return fits and bits.shape[1] == _bytes(cells.resolution) and longest < _MOST_NUMBER


def native_march(  # noqa: PLR0913  a grid and its tables; rays and their samples; how far to look
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
    """Find the samples that `march_reference` finds, to the bit.

    Args:
        cells: of the grid.
        bits: of the cells that are occupied and of those that are or have a neighbour that is, as `native_maps` has it.
        rays: with their `far`.
        first: where sample 0 of each ray begins.
        counts: samples to look at.
        step: length of a sample.
        stride: samples that are looked up together.
        max_samples: limit of samples.
        chunk: samples that are looked at together, but for a ray's more.
    """
    box = torch.tensor([*cells.low, *(1 / edge for edge in cells.edges)], dtype=torch.float32)
    lines = [marched.detach().contiguous() for marched in (rays.origins, rays.directions, first, rays.far, counts)]
    parts: list[PackedSamples] = []
    remaining = max_samples
    for begin, end in _groups(counts + stride, chunk):
        grid = (step, stride, cells.resolution + 2, box, bits[0], bits[1])
        marched = _marched([line[begin:end] for line in lines], grid, remaining)
        parts.append(marched)
        if marched.n_rays < end - begin:
            break
        remaining = None if remaining is None else remaining - len(marched)
    if len(parts) == 1:
        return parts[0]
    return _joined(parts, first)


def native_maps(
    occupied: Bool[Tensor, "size size size"],
) -> tuple[Bool[Tensor, "rim rim rim"], Bool[Tensor, "rim rim rim"], UInt8[Tensor, "2 bytes"]]:
    """Make a cubic table with empty cells around, the same with all neighbours of its cells, and the bits of both."""
    size = len(occupied) + 2
    rimmed, scratch, near = (occupied.new_empty(size, size, size) for _ in range(3))
    bits = occupied.new_empty(2, _bytes(len(occupied)), dtype=torch.uint8)
    threads = torch.get_num_threads()
    call("fw_rim", len(occupied), occupied.contiguous(), threads, rimmed, scratch, near, bits[0], bits[1])
    return rimmed, near, bits


def _bytes(resolution: int) -> int:
    """Bytes for the bits of a rimmed table."""
    return -(-((resolution + 2) ** 3) // 8)


def _groups(room: Int64[Tensor, " rays"], chunk: int) -> list[tuple[int, int]]:
    """First rays and ends of groups that need `chunk` places each, or one ray's."""
    group = (room.cumsum(0) - 1) // chunk
    ends = torch.unique_consecutive(group, return_counts=True)[1].cumsum(0).tolist()
    return list(zip([0, *ends], ends, strict=False))


def _marched(lines: list[Tensor], grid: tuple[Any, ...], max_samples: int | None) -> PackedSamples:
    """Samples of a group of rays, as many as have at most `max_samples`."""
    counts = lines[-1]
    first = lines[2]
    step, stride, *_ = grid
    room_ends = (counts + stride).cumsum(0)
    begin = room_ends - counts - stride
    found_counts = torch.empty_like(counts)
    threads = torch.get_num_threads()
    numbers = torch.empty(int(room_ends[-1]), dtype=torch.int32)
    call("fw_march", len(counts), *lines, *grid, threads, begin, numbers, found_counts)
    ends = found_counts.cumsum(0)
    # Whole rays only: as many as stay within the bound.
    n_rays = len(counts) if max_samples is None else int((ends <= max_samples).sum())
    total = int(ends[n_rays - 1]) if n_rays else 0
    start = first.new_empty(total)
    end = first.new_empty(total)
    ray_index = counts.new_empty(total)
    offsets = (begin, numbers, found_counts, ends - found_counts)
    call("fw_march_samples", n_rays, first, step, *offsets, threads, start, end, ray_index)
    return PackedSamples(t_start=start, t_end=end, ray_index=ray_index, n_rays=n_rays)


def _joined(parts: list[PackedSamples], like: Tensor) -> PackedSamples:
    """Samples of groups of rays, one after the other."""
    before = 0
    rays = [like.new_empty(0, dtype=torch.int64)]
    for part in parts:
        rays.append(part.ray_index + before)
        before += part.n_rays
    start, end = (
        torch.cat([like.new_empty(0), *(getattr(part, name) for part in parts)]) for name in ("t_start", "t_end")
    )
    return PackedSamples(t_start=start, t_end=end, ray_index=torch.cat(rays), n_rays=before)
