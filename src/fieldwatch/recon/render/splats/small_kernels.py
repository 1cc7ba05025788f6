"""What a step computes per Gaussian beside the image by our own GPU kernels: activations, densification statistics."""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from fieldwatch.recon.render.splats.kernels import PROJECTION, row_blocks


class _Shapes(torch.autograd.Function):
    """Map log scales and opacity logits to scales and opacities."""

    @staticmethod
    def forward(ctx: Any, log_scales: Tensor, logits: Tensor) -> Any:
        log_scales = log_scales.contiguous()
        logits = logits.contiguous()
        scales = torch.empty_like(log_scales)
        opacities = torch.empty_like(logits)
        count = len(logits)
        PROJECTION.launch("shapes_forward", row_blocks(4 * count), count, log_scales, logits, scales, opacities)
        ctx.save_for_backward(scales, opacities)
        ctx.set_materialize_grads(False)
        return scales, opacities

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        scales, opacities = ctx.saved_tensors
        upstream = [None if part is None else part.contiguous() for part in gradients]
        results = (torch.empty_like(scales), torch.empty_like(opacities))
        count = len(opacities)
        PROJECTION.launch("shapes_backward", row_blocks(4 * count), count, scales, opacities, *upstream, *results)
        return results


def activated(
    log_scales: Float[Tensor, "n 3"], logits: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "n 3"], Float[Tensor, " n"]]:
    """Return the scales and opacities of Gaussians on a GPU, from log scales and opacity logits."""
    return _Shapes.apply(log_scales, logits)


def add_statistics(
    gradient: Float[Tensor, "n 2"],
    half: tuple[float, float],
    visible: Bool[Tensor, " n"],
    radii: Float[Tensor, " n"],
    *,
    sums: tuple[Float[Tensor, " n"], Float[Tensor, " n"], Float[Tensor, " n"]],
) -> None:
    """Add a view's statistics of Gaussians on a GPU in place, see `DensificationStatistics`.

    Args:
        gradient: gradient of the image positions, per pixel.
        half: half the width and the height of the image.
        visible: mask of the visible Gaussians.
        radii: their radii in pixels.
        sums: gradients, counts and radii so far.
    """
    count = len(radii)
    parts = (visible, gradient.contiguous(), radii)
    PROJECTION.launch("add_statistics", row_blocks(count), count, *half, *parts, *sums)


class _Flatness(torch.autograd.Function):
    """Mean smallest scale of the visible Gaussians, times a factor."""

    @staticmethod
    def forward(ctx: Any, scales: Tensor, visible: Tensor, factor: float) -> Tensor:
        scales = scales.contiguous()
        count = len(scales)
        blocks = max(row_blocks(count), 1)
        sums = scales.new_empty(blocks, 2)
        result = scales.new_empty(2)
        PROJECTION.launch("flatness_sums", blocks, count, scales, visible, sums)
        PROJECTION.launch("flatness_mean", 1, blocks, factor, sums, result)
        ctx.save_for_backward(scales, visible, result)
        return result[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]  once_differentiable's own type
        scales, visible, result = ctx.saved_tensors
        by_scales = torch.empty_like(scales)
        count = len(scales)
        given = (scales, visible, result, gradients[0].contiguous())
        PROJECTION.launch("flatness_backward", row_blocks(count), count, *given, by_scales)
        return by_scales, None, None


def flatness(scales: Float[Tensor, "n 3"], visible: Bool[Tensor, " n"], factor: float) -> Float[Tensor, ""]:
    """Return the mean smallest scale of the visible Gaussians on a GPU, times a factor; 0 if none is visible.

    Args:
        scales: scales of all Gaussians.
        visible: mask of the visible ones.
        factor: number to multiply with.
    """
    return _Flatness.apply(scales, visible, factor)
