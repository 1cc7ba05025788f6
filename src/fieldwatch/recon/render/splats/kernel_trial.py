"""A trial of our own GPU kernels: a small image and its gradients, compared with those of torch's operations."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fieldwatch.recon.render.splats.small_kernels import activated, add_statistics, flatness
from fieldwatch.recon.render.splats.view import View

CLOSE = 1e-3
"""Largest difference relative to the largest value; both are in single precision."""
_COUNT = 24
_SIZE = (35, 29)


def difference(rasterize: Callable[..., Any]) -> str | None:
    """Render a few Gaussians with both backends on the current GPU, and return what differs, in words; None if nothing.

    Args:
        rasterize: the function `rasterize`.
    """
    ours = _results(rasterize, "kernels") | _small_results(by_kernels=True)
    wanted = _results(rasterize, "batched") | _small_results(by_kernels=False)
    gaps = {name: float((ours[name] - value).abs().max() / value.abs().max()) for name, value in wanted.items()}
    wrong = [f"{name} by {gap:.1%}" for name, gap in gaps.items() if not gap <= CLOSE]
    return f"our GPU kernels differ from torch's operations in {', '.join(wrong)}" if wrong else None


def _results(rasterize: Callable[..., Any], backend: str) -> dict[str, Tensor]:
    device = torch.device("cuda")
    chance = torch.Generator().manual_seed(0)
    parts = {
        "means": torch.rand(_COUNT, 3, generator=chance) + torch.tensor([-0.5, -0.5, 1.0]),
        "quaternions": torch.randn(_COUNT, 4, generator=chance),
        "scales": 0.05 + 0.1 * torch.rand(_COUNT, 3, generator=chance),
        "opacities": 0.2 + 0.6 * torch.rand(_COUNT, generator=chance),
        "dc": torch.rand(_COUNT, 1, 3, generator=chance),
        "rest": 0.1 * torch.randn(_COUNT, 15, 3, generator=chance),
    }
    leaves = {name: part.to(device).requires_grad_() for name, part in parts.items()}
    width, height = _SIZE
    pose = torch.eye(4, device=device)
    view = View(camera_from_world=pose, fx=30.0, fy=30.0, cx=17.0, cy=15.0, width=width, height=height)
    *shape, dc, rest = leaves.values()
    output = rasterize(*shape, view, spherical_harmonics=(dc, rest), depth="planar", normals=True, backend=backend)
    maps = {name: getattr(output, name) for name in ("features", "alpha", "depth", "normals")}
    # A weight per column, so that the gradients of neighboring pixels differ.
    weights = torch.linspace(0.5, 1.5, width, device=device)
    sums = [(value * (weights[:, None] if value.dim() == 3 else weights)).sum() for value in maps.values()]
    gradients = torch.autograd.grad(sums, list(leaves.values()))
    named = {f"the gradient of {name}": part for name, part in zip(leaves, gradients, strict=True)}
    return {name: value.detach() for name, value in maps.items()} | named


def _small_results(*, by_kernels: bool) -> dict[str, Tensor]:
    """Return activations, their gradients, and densification statistics, by our kernels or by torch."""
    device = torch.device("cuda")
    chance = torch.Generator().manual_seed(1)
    log_scales = torch.randn(_COUNT, 3, generator=chance).to(device).requires_grad_()
    logits = torch.randn(_COUNT, generator=chance).to(device).requires_grad_()
    scales, opacities = activated(log_scales, logits) if by_kernels else (log_scales.exp(), logits.sigmoid())
    weights = torch.linspace(0.5, 1.5, _COUNT, device=device)
    gradients = torch.autograd.grad(
        [(weights[:, None] * scales).sum(), (weights * opacities).sum()], [log_scales, logits]
    )
    by_position = torch.randn(_COUNT, 2, generator=chance).to(device)
    visible = (torch.rand(_COUNT, generator=chance) < 0.5).to(device)
    radii = torch.rand(_COUNT, generator=chance).to(device)
    before = torch.rand(3, _COUNT, generator=chance).to(device)
    sums = (before[0], before[1], before[2])
    half = (7.0, 5.0)
    if by_kernels:
        add_statistics(by_position, half, visible, radii, sums=sums)
    else:
        lengths = (by_position * torch.tensor(half, device=device)).square().sum(1).sqrt()
        sums = (sums[0] + lengths * visible, sums[1] + visible, torch.maximum(sums[2], radii))
    axes = (0.1 + torch.rand(_COUNT, 3, generator=chance)).to(device).requires_grad_()
    flat = flatness(axes, visible, 0.5) if by_kernels else 0.5 * (axes.amin(1) * visible).sum() / visible.sum()
    (by_axes,) = torch.autograd.grad(flat, axes)
    names = ("scales", "opacities", "the gradient of log scales", "the gradient of logits")
    named: dict[str, Tensor] = dict(zip(names, (scales.detach(), opacities.detach(), *gradients), strict=True))
    named |= {"flatness": flat.detach(), "the gradient of flatness": by_axes}
    return named | dict(zip(("summed gradients", "counts", "radii"), sums, strict=True))
