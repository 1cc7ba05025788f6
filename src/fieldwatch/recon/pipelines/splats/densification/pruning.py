"""Pruning of Gaussians, and resets of their opacities."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch.recon.pipelines.splats.gaussians import Gaussians, refuse_not_finite
from fieldwatch.recon.pipelines.splats.optimizer_state import clear_moments
from fieldwatch.recon.render import DensificationStatistics


@torch.no_grad()
def transparent(gaussians: Gaussians, least: float) -> Bool[Tensor, " n"]:
    """Tell which Gaussians have an opacity below `least`."""
    return gaussians.opacities < least


@torch.no_grad()
def oversized(gaussians: Gaussians, largest: float | Float[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Tell which Gaussians have a standard deviation above `largest`, world units; one for all, or one for each."""
    return gaussians.scales.amax(1) > largest


def prune(
    gaussians: Gaussians, pruned: Bool[Tensor, " n"], statistics: DensificationStatistics | None = None
) -> Int[Tensor, " surviving"]:
    """Remove Gaussians, their moments, and their rows of the statistics.

    Args:
        gaussians: changed.
        pruned: which ones go.
        statistics: changed alike, where one is given.

    Returns:
        The old row numbers of those that stay, ascending; `new_row_numbers` turns them into new ones.

    Raises:
        ValueError: none would be left.
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
    """Remove all Gaussians with an opacity below `least`, as SuGaR does at 9000 (Guédon 2024, section 4.1).

    Returns:
        The old row numbers of those that stay, ascending.

    Raises:
        ValueError: none would be left.
        NotFiniteError: a value is not finite.
    """
    gaussians.refuse_not_finite()
    return prune(gaussians, transparent(gaussians, least), statistics)


def new_row_numbers(surviving: Int[Tensor, " surviving"], before: int) -> Int[Tensor, " before"]:
    """Return the new row number of every old one, -1 for those that went.

    `new_row_numbers(surviving, n)[neighbours]` moves indices.
    """
    numbers = surviving.new_full((before,), -1)
    numbers[surviving] = torch.arange(len(surviving), device=surviving.device, dtype=surviving.dtype)
    return numbers


@torch.no_grad()
def reset_opacity(gaussians: Gaussians, ceiling: float = 0.01) -> int:
    """Set opacities above `ceiling` to it, and clear the moments of all (Kerbl 2023, section 5.2).

    Returns:
        How many were lowered.

    Raises:
        ValueError: a ceiling outside 0 .. 1.
        NotFiniteError: an opacity is not finite.
    """
    if not 0 < ceiling < 1:
        raise ValueError(f"opacities were to be reset to {ceiling}: it must lie between 0 and 1, 0.01 is customary")
    refuse_not_finite("opacity_logits", gaussians.opacity_logits)
    logit = math.log(ceiling / (1 - ceiling))
    lowered = int((gaussians.opacity_logits > logit).sum())
    gaussians.opacity_logits.clamp_max_(logit)
    # Old moments would carry the opacities on from the reset value in the direction of before.
    clear_moments(gaussians.optimizers, gaussians.opacity_logits)
    return lowered
