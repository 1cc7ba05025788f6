"""Growth as sampling: dead Gaussians move onto living ones, more are drawn up to a cap, noise explores.

From the formulas of "3D Gaussian Splatting as Markov Chain Monte Carlo" (Kheradmand 2024).
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.geometry import quaternion_to_matrix
from fieldwatch.recon.pipelines.splats.densification.pruning import transparent
from fieldwatch.recon.pipelines.splats.densification.record import GrowthRecord
from fieldwatch.recon.pipelines.splats.densification.relocation import MOST_COPIES, shared_opacity, shared_scale
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians, refuse_not_finite
from fieldwatch.recon.pipelines.splats.optimizer_state import forget

_MOST_OPAQUE = 1 - 1e-6  # above it the logit of a single is infinite


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of MCMC growth; the defaults are the paper's.

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
        rest = (self.share, self.noise, self.steepness, self.opacity_weight, self.scale_weight)
        if not (self.cap >= 1 and 0 < self.dead < 1 and all(0 <= value < math.inf for value in rest)):
            raise InputError(
                f"MCMC growth with cap {self.cap}, dead {self.dead} and share, noise, steepness, weights {rest}: "
                "wanted are a cap of 1 or more, an opacity between 0 and 1, and finite numbers of 0 or more"
            )


@torch.no_grad()
def resample(
    gaussians: Gaussians,
    sampling: Sampling,
    *,
    cap: float | None = None,
    generator: torch.Generator | None = None,
) -> GrowthRecord:
    """Relocate the dead, then draw new Gaussians on living ones, up to the cap. Nothing is ever pruned.

    Args:
        gaussians: changed; their optimizers follow. Call it after the optimizer's step.
        sampling: settings.
        cap: a further limit, as `run.growth_cap` gives it.
        generator: on the CPU; None is torch's own.

    Raises:
        NotFiniteError: a parameter is not finite; nothing was changed.
        ValueError: all Gaussians are dead.
    """
    gaussians.refuse_not_finite()
    before = len(gaussians)
    relocated = relocate(gaussians, sampling.dead, generator)
    wanted = int(sampling.share * before)
    room = max(math.floor(min(sampling.cap, math.inf if cap is None else cap)) - before, 0)
    drawn = min(wanted, room)
    draw(gaussians, drawn, sampling.dead, generator)
    return GrowthRecord(before=before, after=len(gaussians), relocated=relocated, drawn=drawn, held_back=wanted - drawn)


@torch.no_grad()
def relocate(gaussians: Gaussians, dead: float = 0.005, generator: torch.Generator | None = None) -> int:
    """Move Gaussians of an opacity below `dead` onto living ones, drawn by opacity; both forget their moments.

    Returns:
        How many moved.

    Raises:
        ValueError: all are dead.
        NotFiniteError: an opacity is not finite.
    """
    refuse_not_finite("opacity_logits", gaussians.opacity_logits)
    gone = transparent(gaussians, dead)
    if not bool(gone.any()):
        return 0
    if bool(gone.all()):
        raise ValueError(
            f"all {len(gaussians)} Gaussians have an opacity below {dead}: there is no living one to move them to; "
            "lower the weight of the opacity term, or check that the photos and the cameras belong together"
        )
    moving = gone.nonzero()[:, 0]
    sources = _drawn_by_opacity(gaussians, ~gone, len(moving), generator)
    _share_out(gaussians, sources, dead)
    for name, rows in gaussians.rows(sources)._asdict().items():
        parameter = gaussians.get_parameter(name)
        parameter[moving] = rows
        forget(gaussians.optimizers, parameter, torch.cat([moving, sources]))
    return len(moving)


@torch.no_grad()
def draw(gaussians: Gaussians, count: int, dead: float = 0.005, generator: torch.Generator | None = None) -> None:
    """Add Gaussians in the places of living ones, drawn by opacity; those forget their moments, too."""
    if count < 1:
        return
    everybody = torch.ones(len(gaussians), dtype=torch.bool, device=gaussians.means.device)
    sources = _drawn_by_opacity(gaussians, everybody, count, generator)
    _share_out(gaussians, sources, dead)
    for name in gaussians.rows()._fields:
        forget(gaussians.optimizers, gaussians.get_parameter(name), sources)
    gaussians.rearrange(torch.arange(len(gaussians), device=sources.device), gaussians.rows(sources))


@torch.no_grad()
def add_sgld_noise(
    gaussians: Gaussians, sampling: Sampling, rate: float, generator: torch.Generator | None = None
) -> None:
    """Add the noise of Langevin dynamics to the means (eq. 8): N(0, I) by the covariance, most for the transparent.

    Args:
        gaussians: changed. Call it after the optimizer's step.
        sampling: settings.
        rate: learning rate of the means at this step.
        generator: on the CPU; None is torch's own.
    """
    draws = torch.randn(len(gaussians), 3, generator=generator).to(gaussians.means)
    axes = quaternion_to_matrix(gaussians.quaternions)
    own = (draws[:, None, :] @ axes)[:, 0] * gaussians.scales.square()
    loose = torch.sigmoid(-sampling.steepness * (gaussians.opacities - sampling.dead))
    gaussians.means.add_(loose[:, None] * (axes @ own[:, :, None])[:, :, 0], alpha=sampling.noise * rate)


def mean_opacity(gaussians: Gaussians) -> Float[Tensor, ""]:
    """Mean opacity: the term that lets Gaussians die where they are not needed."""
    return gaussians.opacities.mean()


def mean_scale(gaussians: Gaussians) -> Float[Tensor, ""]:
    """Mean standard deviation, world units: the term that keeps Gaussians from growing where nothing holds them."""
    return gaussians.scales.mean()


def _drawn_by_opacity(
    gaussians: Gaussians, living: Tensor, count: int, generator: torch.Generator | None
) -> Int[Tensor, " count"]:
    """Row numbers, drawn with replacement; by the sums of opacities, as `multinomial` stops at 2^24 rows."""
    sums = torch.where(living, gaussians.opacities.double(), 0.0).cumsum(0)
    places = torch.rand(count, generator=generator, dtype=torch.float64).to(sums) * sums[-1]
    last = living.nonzero()[-1, 0]
    return torch.searchsorted(sums, places, right=True).clamp_max(last)


def _share_out(gaussians: Gaussians, sources: Int[Tensor, " count"], dead: float) -> None:
    """Give Gaussians the opacity and the size with which they and their copies look like one."""
    found, copies = sources.unique(return_counts=True)
    copies = (copies + 1).clamp_max(MOST_COPIES)
    opacities = gaussians.opacities[found].double().clamp_max(_MOST_OPAQUE)
    fewer = shared_opacity(opacities, copies).clamp_min(dead)
    gaussians.opacity_logits[found] = torch.logit(fewer).to(gaussians.opacity_logits)
    gaussians.log_scales[found] += shared_scale(opacities, copies).log()[:, None].to(gaussians.log_scales)
