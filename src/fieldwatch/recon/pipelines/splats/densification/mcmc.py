"""MCMC densification: relocate dead Gaussians, add copies of living ones up to a cap, and add exploration noise.

Implemented from the formulas of "3D Gaussian Splatting as Markov Chain Monte Carlo" (Kheradmand 2024).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.geometry import quaternion_to_matrix
from fieldwatch.recon.pipelines.splats.densification.pruning import transparent
from fieldwatch.recon.pipelines.splats.densification.record import DensificationRecord
from fieldwatch.recon.pipelines.splats.densification.relocation import (
    MAX_COPIES,
    relocated_opacity,
    relocated_scale_factor,
)
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians, refuse_not_finite
from fieldwatch.recon.pipelines.splats.optimizer_state import clear_moments
from fieldwatch.recon.transfers import upload

_MAX_OPACITY = 1 - 1e-6  # the logit of an opacity that rounds to 1 in single precision is infinite


@dataclass(frozen=True, kw_only=True)
class McmcOptions:
    """Settings of MCMC densification; the defaults are the paper's.

    Attributes:
        cap: maximum number of Gaussians.
        share: number of Gaussians added per densification, as a fraction of the current number.
        dead: opacity below which a Gaussian is dead.
        noise: strength of the noise on the means, in units of their learning rate.
        steepness: slope of the sigmoid that reduces the noise of opaque Gaussians.
        opacity_weight: weight of the term `mean_opacity`.
        scale_weight: weight of the term `mean_scale`.

    Raises:
        InputError: A setting is out of bounds.
    """

    cap: int = 1_000_000
    share: float = 0.05
    dead: float = 0.005
    noise: float = 5e5
    steepness: float = 100.0
    opacity_weight: float = 0.01
    scale_weight: float = 0.01

    def __post_init__(self) -> None:
        """Check the bounds."""
        not_negative = (self.share, self.noise, self.steepness, self.opacity_weight, self.scale_weight)
        if not (self.cap >= 1 and 0 < self.dead < 1 and all(0 <= value < math.inf for value in not_negative)):
            raise InputError(
                "MCMC options must have a cap of 1 or more, dead between 0 and 1, and share, noise, steepness and "
                f"weights finite and not negative, got cap {self.cap}, dead {self.dead} and {not_negative}"
            )


@torch.no_grad()
def relocate_and_add(
    gaussians: Gaussians,
    options: McmcOptions,
    *,
    cap: float | None = None,
    generator: torch.Generator | None = None,
) -> DensificationRecord:
    """Relocate the dead Gaussians, then add copies of living ones up to the cap. None is pruned.

    Args:
        gaussians: Gaussians, modified in place together with their optimizers. Call this after the optimizer's step.
        options: cap, fraction of added Gaussians, and the opacity below which a Gaussian is dead.
        cap: additional limit on the number of Gaussians, such as `run.growth_cap`.
        generator: CPU generator; None uses torch's default.

    Raises:
        NotFiniteError: A parameter is not finite; nothing was changed.
        ValueError: All Gaussians are dead.
    """
    gaussians.refuse_not_finite()
    before = len(gaussians)
    relocated = relocate(gaussians, options.dead, generator)
    candidates = int(options.share * before)
    room = max(math.floor(min(options.cap, math.inf if cap is None else cap)) - before, 0)
    added = min(candidates, room)
    add_copies(gaussians, added, options.dead, generator)
    return DensificationRecord(
        before=before, after=len(gaussians), relocated=relocated, drawn=added, held_back=candidates - added
    )


@torch.no_grad()
def relocate(gaussians: Gaussians, dead: float = 0.005, generator: torch.Generator | None = None) -> int:
    """Move dead Gaussians onto living ones, sampled in proportion to opacity, and clear the moments of both.

    Returns:
        The number of relocated Gaussians.

    Raises:
        ValueError: All Gaussians have an opacity below `dead`.
        NotFiniteError: An opacity is not finite.
    """
    refuse_not_finite("opacity_logits", gaussians.opacity_logits)
    is_dead = transparent(gaussians, dead)
    if not bool(is_dead.any()):
        return 0
    if bool(is_dead.all()):
        raise ValueError(
            f"all {len(gaussians)} Gaussians have an opacity below {dead}, so there is none to relocate them to; "
            "lower the weight of the opacity term, or check that the photos and the cameras belong together"
        )
    dead_rows = is_dead.nonzero()[:, 0]
    sources = _sample_by_opacity(gaussians, ~is_dead, len(dead_rows), generator)
    # Before copying: the sources get the opacity and scale that they share with their copies.
    _rescale_for_copies(gaussians, sources, dead)
    for name, rows in gaussians.rows(sources)._asdict().items():
        parameter = gaussians.get_parameter(name)
        # In place: the number of rows does not change, so the optimizers keep their parameters.
        parameter[dead_rows] = rows
        clear_moments(gaussians.optimizers, parameter, torch.cat([dead_rows, sources]))
    return len(dead_rows)


@torch.no_grad()
def add_copies(gaussians: Gaussians, count: int, dead: float = 0.005, generator: torch.Generator | None = None) -> None:
    """Append copies of Gaussians, sampled in proportion to opacity, and clear the moments of the originals."""
    if count < 1:
        return
    # No Gaussian is dead after `relocate`, so all are candidates, including those just relocated.
    candidates = torch.ones(len(gaussians), dtype=torch.bool, device=gaussians.means.device)
    sources = _sample_by_opacity(gaussians, candidates, count, generator)
    _rescale_for_copies(gaussians, sources, dead)
    for name in gaussians.rows()._fields:
        clear_moments(gaussians.optimizers, gaussians.get_parameter(name), sources)
    gaussians.rearrange(torch.arange(len(gaussians), device=sources.device), gaussians.rows(sources))


@torch.no_grad()
def add_sgld_noise(
    gaussians: Gaussians, options: McmcOptions, rate: float, generator: torch.Generator | None = None
) -> None:
    """Add Langevin noise to the means (eq. 8): covariance times N(0, I), strongest for transparent Gaussians.

    Args:
        gaussians: Gaussians, modified in place. Call this after the optimizer's step.
        options: strength of the noise and its dependence on opacity.
        rate: learning rate of the means at this step.
        generator: CPU generator; None uses torch's default.
    """
    noise = upload(torch.randn(len(gaussians), 3, generator=generator), gaussians.means.device).to(gaussians.means)
    axes = quaternion_to_matrix(gaussians.quaternions)
    # Covariance R S S^T R^T times the noise, without forming the matrix.
    in_axes = (noise[:, None, :] @ axes)[:, 0] * gaussians.scales.square()
    # The authors' sigmoid(100 (1 - opacity - 0.995)): 0.5 at the opacity `dead`, near 0 for opaque Gaussians.
    strength = torch.sigmoid(-options.steepness * (gaussians.opacities - options.dead))
    gaussians.means.add_(strength[:, None] * (axes @ in_axes[:, :, None])[:, :, 0], alpha=options.noise * rate)


def mean_opacity(gaussians: Gaussians) -> Float[Tensor, ""]:
    """Return the mean opacity: a loss term that makes unneeded Gaussians transparent."""
    return gaussians.opacities.mean()


def mean_scale(gaussians: Gaussians) -> Float[Tensor, ""]:
    """Return the mean standard deviation, world units: a loss term that keeps unobserved Gaussians from expanding."""
    return gaussians.scales.mean()


def _sample_by_opacity(
    gaussians: Gaussians, living: Bool[Tensor, " n"], count: int, generator: torch.Generator | None
) -> Int[Tensor, " count"]:
    """Sample living rows with replacement, in proportion to opacity."""
    # Inverse transform sampling, because `torch.multinomial` is limited to 2^24 rows. In double precision, since a
    # float32 cumulative sum over millions of opacities would lose the small ones.
    sums = torch.where(living, gaussians.opacities.double(), 0.0).cumsum(0)
    positions = torch.rand(count, generator=generator, dtype=torch.float64).to(sums) * sums[-1]
    # If a position rounds up to the total, the search ends past the last living row; the clamp corrects that.
    last = living.nonzero()[-1, 0]
    # `right` skips dead rows, whose cumulative sum equals that of the row before.
    return torch.searchsorted(sums, positions, right=True).clamp_max(last)


def _rescale_for_copies(gaussians: Gaussians, sources: Int[Tensor, " count"], dead: float) -> None:
    """Set opacity and scale of the sources so that each and its copies together render like the original (eq. 9)."""
    # Unique rows, because an indexed `+=` does not accumulate over duplicate indices.
    originals, copies = sources.unique(return_counts=True)
    # N of eq. 9 includes the original.
    copies = (copies + 1).clamp_max(MAX_COPIES)
    opacities = gaussians.opacities[originals].double().clamp_max(_MAX_OPACITY)
    # Copies must not start dead, or the next densification would relocate them again.
    shared = relocated_opacity(opacities, copies).clamp_min(dead)
    gaussians.opacity_logits[originals] = torch.logit(shared).to(gaussians.opacity_logits)
    factors = relocated_scale_factor(opacities, copies)
    gaussians.log_scales[originals] += factors.log()[:, None].to(gaussians.log_scales)
