"""Pruning of Gaussians and opacity resets."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch.recon.pipelines.splats.gaussians import Gaussians, refuse_not_finite
from fieldwatch.recon.pipelines.splats.optimizer_state import clear_moments
from fieldwatch.recon.render import DensificationStatistics


@torch.no_grad()
def transparent(gaussians: Gaussians, least: float) -> Bool[Tensor, " n"]:
    """Return a mask of the Gaussians with an opacity below `least`."""
    return gaussians.opacities < least


@torch.no_grad()
def oversized(gaussians: Gaussians, largest: float | Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Return a mask of the Gaussians with a standard deviation above `largest`, world units, a scalar or per row."""
    return gaussians.scales.amax(1) > largest


def prune(
    gaussians: Gaussians, pruned: Bool[Tensor, " n"], statistics: DensificationStatistics | None = None
) -> Int[Tensor, " surviving"]:
    """Remove Gaussians, their optimizer moments, and their rows of the densification statistics.

    Args:
        gaussians: Gaussians, modified in place.
        pruned: mask of the Gaussians to remove.
        statistics: densification statistics, modified in place; None if there are none.

    Returns:
        The old row numbers of the surviving Gaussians, ascending; `new_row_numbers` maps old numbers to new ones.

    Raises:
        ValueError: No Gaussian would survive.
    """
    surviving = (~pruned).nonzero()[:, 0]
    if len(surviving) < len(pruned):
        gaussians.rearrange(surviving)
        if statistics is not None:
            statistics.load_state_dict({name: values[surviving] for name, values in statistics.state_dict().items()})
    return surviving


def prune_opacity(
    gaussians: Gaussians, least: float = 0.5, statistics: DensificationStatistics | None = None
) -> Int[Tensor, " surviving"]:
    """Remove all Gaussians with an opacity below `least`, as SuGaR does at iteration 9000 (Guédon 2024, section 4.1).

    Returns:
        The old row numbers of the surviving Gaussians, ascending.

    Raises:
        ValueError: No Gaussian would survive.
        NotFiniteError: A parameter is not finite.
    """
    # Comparisons with NaN are false, so a broken Gaussian would survive unnoticed.
    gaussians.refuse_not_finite()
    return prune(gaussians, transparent(gaussians, least), statistics)


def new_row_numbers(surviving: Int[Tensor, " surviving"], before: int) -> Int[Tensor, " before"]:
    """Return the new row number of every old row, -1 for removed rows.

    `new_row_numbers(surviving, n)[neighbors]` remaps a table of indices.
    """
    # Scatter: row `surviving[i]` becomes row i.
    numbers = surviving.new_full((before,), -1)
    numbers[surviving] = torch.arange(len(surviving), device=surviving.device, dtype=surviving.dtype)
    return numbers


@torch.no_grad()
def reset_opacity(gaussians: Gaussians, ceiling: float = 0.01) -> int:
    """Clamp opacities to at most `ceiling` and clear the optimizer moments of all opacities (Kerbl 2023, section 5.2).

    Returns:
        The number of opacities that were lowered.

    Raises:
        ValueError: The ceiling is outside (0, 1).
        NotFiniteError: An opacity is not finite.
    """
    if not 0 < ceiling < 1:
        raise ValueError(f"ceiling of the opacity reset must be between 0 and 1, got {ceiling}; 3DGS uses 0.01")
    refuse_not_finite("opacity_logits", gaussians.opacity_logits)
    # Compared as logits, which avoids a sigmoid and its inverse over all rows.
    logit = math.log(ceiling / (1 - ceiling))
    lowered = int((gaussians.opacity_logits > logit).sum())
    gaussians.opacity_logits.clamp_max_(logit)
    # Otherwise the old momentum would keep moving the reset opacities in their previous direction.
    clear_moments(gaussians.optimizers, gaussians.opacity_logits)
    return lowered
