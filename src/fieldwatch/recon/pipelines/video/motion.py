"""Motion between two images, interpolation along it, and the filters and pyramids that this takes."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional


@torch.no_grad()
def interpolate(
    before: Float[Tensor, "pairs 3 height width"],
    after: Float[Tensor, "pairs 3 height width"],
    *,
    share: float = 0.5,
    window: float = 2.0,
) -> Float[Tensor, "pairs 3 height width"]:
    """Blend two images along the motion between them, at ``share`` of the way from the first to the second."""
    flow = midway_flow(before, after, share=share, window=window)
    return (1 - share) * warp(before, -share * flow) + share * warp(after, (1 - share) * flow)


@torch.no_grad()
def midway_flow(
    before: Float[Tensor, "pairs 3 height width"],
    after: Float[Tensor, "pairs 3 height width"],
    *,
    share: float = 0.5,
    window: float = 2.0,
    rounds: int = 6,
) -> Float[Tensor, "pairs 2 height width"]:
    """Return the motion (dx, dy) in pixels from the first to the second image, on the grid of an intermediate time.

    Lucas and Kanade (1981), coarse to fine, in the symmetric form: v minimizes, per Gaussian window,
    w |after(p + (1 - share) v) - before(p - share v)|^2, where w decreases where the images disagree; a 3 x 3 median
    after every round removes outliers.

    Args:
        before: first image of each pair, in [0, 1].
        after: second image of each pair, in [0, 1].
        share: time of the grid; 0 is that of the first image, 1 that of the second.
        window: standard deviation of the window in pixels.
        rounds: number of refinements per level.
    """
    # Zero motion at the coarsest level, enlarged to its size below.
    flow = torch.zeros(before.shape[0], 2, 1, 1, dtype=before.dtype, device=before.device)
    for first, second in reversed(pyramid((before, after))):
        flow = enlarge(flow, first.shape[-2:])
        for _ in range(rounds):
            moved = warp(first, -share * flow), warp(second, (1 - share) * flow)
            flow = median_filter(flow + _refinement(*moved, share=share, window=window))
    return flow


def warp(
    pictures: Float[Tensor, "pictures channels height width"],
    flow: Float[Tensor, "pictures 2 height width"],
    *,
    mode: Literal["bilinear", "bicubic"] = "bilinear",
) -> Float[Tensor, "pictures channels height width"]:
    """Sample images at p + flow(p); positions beyond the border are clamped to it."""
    height, width = pictures.shape[-2:]
    rows = torch.arange(height, dtype=flow.dtype, device=flow.device)[:, None]
    columns = torch.arange(width, dtype=flow.dtype, device=flow.device)
    # With align_corners, -1 and 1 are the centers of the outer pixels, which are width - 1 apart.
    x = (columns + flow[:, 0]) * (2 / max(width - 1, 1)) - 1
    y = (rows + flow[:, 1]) * (2 / max(height - 1, 1)) - 1
    at = torch.stack([x, y], dim=-1)
    return functional.grid_sample(pictures, at, mode=mode, padding_mode="border", align_corners=True)


def pyramid(
    pictures: Sequence[Float[Tensor, "pairs 3 height width"]],
) -> list[tuple[Float[Tensor, "pairs 3 rows columns"], ...]]:
    """Return images at full size, half, quarter, ... while the shorter side has at least 16 pixels."""
    levels = [tuple(pictures)]
    # Halving a side of 32 leaves 16 pixels, enough for a window.
    while min(levels[-1][0].shape[-2:]) >= 32 and len(levels) < 6:
        # Blurred before subsampling, to avoid aliasing.
        levels.append(tuple(functional.avg_pool2d(blur(picture, 0.7), 2, ceil_mode=True) for picture in levels[-1]))
    return levels


def enlarge(flow: Float[Tensor, "pairs 2 rows columns"], size: torch.Size) -> Float[Tensor, "pairs 2 height width"]:
    """Return a flow on the next larger level of a pyramid."""
    larger = functional.interpolate(flow, tuple(size), mode="bilinear", align_corners=False)
    # Flow is in pixels, which are half as large in the larger image.
    return larger * 2


def _refinement(first: Tensor, second: Tensor, *, share: float, window: float) -> Tensor:
    """Return the flow update that solves the 2 x 2 normal equations of every window, limited to 2 pixels."""
    # Derivative of after(p + (1 - share) v) - before(p - share v) with respect to v: both images move.
    gradients = [share * a + (1 - share) * b for a, b in zip(gradient(first), gradient(second), strict=True)]
    gx, gy = gradients
    error = second - first
    # Iteratively reweighted least squares for the norm sqrt(|e|^2 + 0.01) reduces the influence of occluded pixels.
    weight = (error.square().sum(1, keepdim=True) + 0.01).rsqrt()
    products = [(weight * p.sum(1, keepdim=True)) for p in (gx * gx, gx * gy, gy * gy, gx * error, gy * error)]
    xx, xy, yy, xe, ye = blur(torch.cat(products, dim=1), window).split(1, dim=1)
    # A window without texture keeps its flow instead of dividing by 0.
    xx = xx + 1e-3
    yy = yy + 1e-3
    # Cramer's rule for the 2 x 2 system.
    determinant = xx * yy - xy * xy
    change = torch.cat([xy * ye - yy * xe, xy * xe - xx * ye], dim=1) / determinant
    # The linearization holds for a pixel or two; longer motions were estimated at coarser levels.
    return change.clamp(-2, 2)


def gradient(
    picture: Float[Tensor, "pictures channels height width"],
) -> tuple[
    Float[Tensor, "pictures channels height width"],
    Float[Tensor, "pictures channels height width"],
]:
    """Return the derivatives along x and y: central differences, at the border one-sided with half the slope."""
    padded = functional.pad(picture, (1, 1, 1, 1), mode="replicate")
    dx = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2
    dy = (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2
    return dx, dy


def blur(
    picture: Float[Tensor, "pictures channels height width"], deviation: float
) -> Float[Tensor, "pictures channels height width"]:
    """Blur every channel with a Gaussian, replicating border pixels."""
    # Beyond 3 standard deviations a Gaussian is negligible.
    reach = math.ceil(3 * deviation)
    offsets = torch.arange(-reach, reach + 1, dtype=picture.dtype, device=picture.device)
    taps = torch.exp(-((offsets / deviation) ** 2) / 2)
    taps = (taps / taps.sum()).expand(picture.shape[1], 1, 1, -1)
    rows = functional.pad(picture, (reach, reach, 0, 0), mode="replicate")
    rows = functional.conv2d(rows, taps, groups=picture.shape[1])
    columns = functional.pad(rows, (0, 0, reach, reach), mode="replicate")
    return functional.conv2d(columns, taps.transpose(2, 3), groups=picture.shape[1])


def median_filter(flow: Float[Tensor, "pairs 2 height width"]) -> Float[Tensor, "pairs 2 height width"]:
    """Return the median of 3 x 3 pixels around each pixel, of both axes by themselves."""
    pairs, axes, height, width = flow.shape
    padded = functional.pad(flow, (1, 1, 1, 1), mode="replicate").reshape(pairs * axes, 1, height + 2, width + 2)
    windows = functional.unfold(padded, 3)
    return windows.median(dim=1).values.reshape(pairs, axes, height, width)
