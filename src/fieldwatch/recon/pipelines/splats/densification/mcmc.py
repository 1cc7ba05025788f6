"""Densification by MCMC: dead Gaussians are relocated to living ones, new ones are added up to a cap, noise explores.

From the formulas of "3D Gaussian Splatting as Markov Chain Monte Carlo" (Kheradmand 2024).
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

_MAX_OPACITY = 1 - 1e-6  # the logit of an opacity that rounds to 1 in single precision is infinite


@dataclass(frozen=True, kw_only=True)
class McmcOptions:
    """Settings of densification by MCMC; the defaults are the paper's.

    Attributes:
        cap: Gaussians there may be at most.
        share: of the Gaussians that are added at once.
        dead: an opacity up to which a Gaussian counts as dead.
        noise: strength of the noise on the means, in units of their learning rate.
        steepness: how sharply the noise ends where a Gaussian becomes opaque.
        opacity_weight: weight of the term `mean_opacity`.
        scale_weight: weight of the term `mean_scale`.

    Raises:
        InputError: a setting out of bounds.
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
                f"MCMC with cap {self.cap}, dead {self.dead} and share, noise, steepness, weights {not_negative}: "
                "wanted are a cap of 1 or more, an opacity between 0 and 1, and finite numbers of 0 or more"
            )


@torch.no_grad()
def relocate_and_add(
    gaussians: Gaussians,
    options: McmcOptions,
    *,
    cap: float | None = None,
    generator: torch.Generator | None = None,
) -> DensificationRecord:
    """Relocate the dead Gaussians, then add copies of living ones, up to the cap. Nothing is ever pruned.

    Args:
        gaussians: changed; their optimizers follow. Call it after the optimizer's step.
        options: cap, rate of growth, and what counts as dead.
        cap: a further limit, as `run.growth_cap` gives it.
        generator: on the CPU; None is torch's own.

    Raises:
        NotFiniteError: a parameter is not finite; nothing was changed.
        ValueError: all Gaussians are dead.
    """
    gaussians.refuse_not_finite()
    before = len(gaussians)
    relocated = relocate(gaussians, options.dead, generator)
    wanted = int(options.share * before)
    room = max(math.floor(min(options.cap, math.inf if cap is None else cap)) - before, 0)
    added = min(wanted, room)
    add_copies(gaussians, added, options.dead, generator)
    return DensificationRecord(
        before=before, after=len(gaussians), relocated=relocated, drawn=added, held_back=wanted - added
    )


@torch.no_grad()
def relocate(gaussians: Gaussians, dead: float = 0.005, generator: torch.Generator | None = None) -> int:
    """Move Gaussians of an opacity below `dead` onto living ones, sampled by opacity; the moments of both are cleared.

    Returns:
        How many moved.

    Raises:
        ValueError: all are dead.
        NotFiniteError: an opacity is not finite.
    """
    refuse_not_finite("opacity_logits", gaussians.opacity_logits)
    is_dead = transparent(gaussians, dead)
    if not bool(is_dead.any()):
        return 0
    if bool(is_dead.all()):
        raise ValueError(
            f"all {len(gaussians)} Gaussians have an opacity below {dead}: there is no living one to move them to; "
            "lower the weight of the opacity term, or check that the photos and the cameras belong together"
        )
    dead_rows = is_dead.nonzero()[:, 0]
    sources = _sample_by_opacity(gaussians, ~is_dead, len(dead_rows), generator)
    # First the sources get the opacity and scale that they share with their copies, then these are copied.
    _rescale_for_copies(gaussians, sources, dead)
    for name, rows in gaussians.rows(sources)._asdict().items():
        parameter = gaussians.get_parameter(name)
        # In place: the number of rows stays, so the optimizers need no new parameter.
        parameter[dead_rows] = rows
        clear_moments(gaussians.optimizers, parameter, torch.cat([dead_rows, sources]))
    return len(dead_rows)


@torch.no_grad()
def add_copies(gaussians: Gaussians, count: int, dead: float = 0.005, generator: torch.Generator | None = None) -> None:
    """Append copies of living Gaussians, sampled by opacity; the moments of the originals are cleared, too."""
    if count < 1:
        return
    # After `relocate` none is dead any more; those it has just moved may be copied, too.
    everybody = torch.ones(len(gaussians), dtype=torch.bool, device=gaussians.means.device)
    sources = _sample_by_opacity(gaussians, everybody, count, generator)
    _rescale_for_copies(gaussians, sources, dead)
    for name in gaussians.rows()._fields:
        clear_moments(gaussians.optimizers, gaussians.get_parameter(name), sources)
    gaussians.rearrange(torch.arange(len(gaussians), device=sources.device), gaussians.rows(sources))


@torch.no_grad()
def add_sgld_noise(
    gaussians: Gaussians, options: McmcOptions, rate: float, generator: torch.Generator | None = None
) -> None:
    """Add the noise of Langevin dynamics to the means (eq. 8): N(0, I) by the covariance, most for the transparent.

    Args:
        gaussians: changed. Call it after the optimizer's step.
        options: strength of the noise, and where it ends.
        rate: learning rate of the means at this step.
        generator: on the CPU; None is torch's own.
    """
    noise = torch.randn(len(gaussians), 3, generator=generator).to(gaussians.means)
    axes = quaternion_to_matrix(gaussians.quaternions)
    # The covariance R S S^T R^T times the noise, without forming the matrix.
    in_axes = (noise[:, None, :] @ axes)[:, 0] * gaussians.scales.square()
    # The authors' sigmoid(100 (1 - opacity - 0.995)): one half at the bound of death, next to 0 if opaque.
    strength = torch.sigmoid(-options.steepness * (gaussians.opacities - options.dead))
    gaussians.means.add_(strength[:, None] * (axes @ in_axes[:, :, None])[:, :, 0], alpha=options.noise * rate)


def mean_opacity(gaussians: Gaussians) -> Float[Tensor, ""]:
    """Mean opacity: the term that lets Gaussians die where they are not needed."""
    return gaussians.opacities.mean()


def mean_scale(gaussians: Gaussians) -> Float[Tensor, ""]:
    """Mean standard deviation, world units: the term that keeps Gaussians from growing where no photo limits them."""
    return gaussians.scales.mean()


def _sample_by_opacity(
    gaussians: Gaussians, living: Bool[Tensor, " n"], count: int, generator: torch.Generator | None
) -> Int[Tensor, " count"]:
    """Row numbers, sampled with replacement; by the sums of opacities, as `multinomial` stops at 2^24 rows."""
    # In double precision: a float32 sum over millions of opacities would lose the small ones.
    sums = torch.where(living, gaussians.opacities.double(), 0.0).cumsum(0)
    positions = torch.rand(count, generator=generator, dtype=torch.float64).to(sums) * sums[-1]
    # Where a position rounds up to the whole sum, the search ends behind the last living row.
    last = living.nonzero()[-1, 0]
    # `right` skips dead rows, whose sums equal those of the row before.
    return torch.searchsorted(sums, positions, right=True).clamp_max(last)


def _rescale_for_copies(gaussians: Gaussians, sources: Int[Tensor, " count"], dead: float) -> None:
    """Give Gaussians the opacity and the scale with which they and their copies look like one (eq. 9)."""
    # Each row once: with repeated rows, the `+=` below would count only one of them.
    originals, copies = sources.unique(return_counts=True)
    # N of eq. 9 counts the original.
    copies = (copies + 1).clamp_max(MAX_COPIES)
    opacities = gaussians.opacities[originals].double().clamp_max(_MAX_OPACITY)
    # No copy starts dead, or the next densification would relocate it again.
    shared = relocated_opacity(opacities, copies).clamp_min(dead)
    gaussians.opacity_logits[originals] = torch.logit(shared).to(gaussians.opacity_logits)
    factors = relocated_scale_factor(opacities, copies)
    gaussians.log_scales[originals] += factors.log()[:, None].to(gaussians.log_scales)
