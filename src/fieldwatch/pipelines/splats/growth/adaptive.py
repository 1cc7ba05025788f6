"""Adaptive density control: where the image pulls hard, small Gaussians are cloned and large ones split."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from fieldwatch.geometry import quaternion_to_matrix
from fieldwatch.pipelines.splats.gaussians import Gaussians, Rows, refuse_not_finite
from fieldwatch.pipelines.splats.growth.pruning import oversized, transparent
from fieldwatch.pipelines.splats.growth.record import GrowthRecord
from fieldwatch.render import ScreenTally

CHILDREN = 2
"""Gaussians that take the place of one that is split."""
SHRINK = 1.6
"""A child's standard deviations are its parent's divided by this (Kerbl 2023, section 5.2)."""


@dataclass(frozen=True, kw_only=True)
class DensityControl:
    """Thresholds of 3DGS (Kerbl 2023, section 5.2 and its published settings).

    Attributes:
        pull: mean gradient on the image, in normalised device coordinates, from which a Gaussian grows.
        split_above: standard deviation, in shares of the extent, above which it is split instead of cloned.
        split_radius: radius on the image, pixels (three standard deviations), from which on a Gaussian is split whether
            it pulls or not; None splits none for its size alone.
        least_opacity: a Gaussian below it is pruned.
        largest: standard deviation, in shares of the extent, above which it is pruned.
        largest_radius: radius on the image, pixels, above which it is pruned; None prunes none. 3DGS says 20, but its
            code forgets the radii before it looks at them.
        large_after: finished updates after which the two rules of size hold.
        twins: "kept" gives clones their original's opacity (3DGS), so that the pair is more opaque than it was;
            "shared" gives both 1 - sqrt(1 - opacity), which blends to the same (Rota Bulò 2024).
        cap: Gaussians there may be at most; None for no limit.

    Raises:
        ValueError: a threshold out of bounds.
    """

    pull: float = 2e-4
    split_above: float = 0.01
    split_radius: float | None = None
    least_opacity: float = 0.005
    largest: float = 0.1
    largest_radius: float | None = None
    large_after: int = 3000
    twins: Literal["kept", "shared"] = "kept"
    cap: int | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        sizes = (self.pull, self.split_above, self.largest, self.largest_radius or 1.0)
        sizes += (1.0 if self.split_radius is None else self.split_radius,)
        if not (all(0 < size < math.inf for size in sizes) and 0 <= self.least_opacity < 1):
            raise ValueError(
                f"density control by pull {self.pull}, split_above {self.split_above}, split_radius "
                f"{self.split_radius}, largest {self.largest}, largest_radius {self.largest_radius}, least_opacity "
                f"{self.least_opacity}: wanted are finite numbers above 0, and an opacity from 0 up to 1"
            )
        if self.cap is not None and self.cap < 1:
            raise ValueError(f"the cap is {self.cap} Gaussians: it must be 1 or more, or None for no limit")


@torch.no_grad()
def grow(  # noqa: PLR0913  what grows, by which rules, and the facts of this step
    gaussians: Gaussians,
    tally: ScreenTally,
    control: DensityControl,
    *,
    step: int,
    extent: float,
    cap: float | None = None,
    generator: torch.Generator | None = None,
) -> GrowthRecord:
    """Clone, split and prune once; survivors keep their order, then come clones, then children. The tally starts anew.

    Where the cap leaves no room for all candidates, those with the strongest pull grow; of equals the first ones.
    More Gaussians than the cap are never there, not even in passing; what is above it already stays.

    Args:
        gaussians: changed; their optimizers follow. Call it after the optimizer's step.
        tally: what the steps since the last growth showed.
        control: thresholds.
        step: 0-based, the one that ended.
        extent: of the scene, world units.
        cap: a further limit, as `run.growth_cap` gives it.
        generator: on the CPU, for the places of children; None is torch's own.

    Raises:
        NotFiniteError: a parameter or a sum of the tally is not finite; nothing was changed.
        ValueError: the tally is of another number of Gaussians, the extent is not above 0, or none would be left.
    """
    _check(gaussians, tally, extent)
    before, late = len(gaussians), step + 1 > control.large_after
    growing = tally.mean_pull() >= control.pull
    large = oversized(gaussians, control.split_above * extent)
    if control.split_radius is not None:
        wide = tally.radii > control.split_radius
        growing, large = growing | wide, large | wide
    doomed = transparent(gaussians, control.least_opacity)
    if late:  # too large even when split, or too large and not to be split
        doomed |= oversized(gaussians, control.largest * extent * SHRINK)
    candidates = growing & ~doomed
    limit = min(math.inf if control.cap is None else control.cap, math.inf if cap is None else cap)
    chosen = strongest(tally.mean_pull(), candidates, limit - (before - int(doomed.sum())))
    if late:
        doomed |= _too_large(gaussians, tally, control, extent) & ~(chosen & large)
        chosen &= ~doomed
    cloned, split_up = (chosen & ~large).nonzero()[:, 0], (chosen & large).nonzero()[:, 0]
    added = _joined(_twins(gaussians, cloned, control.twins), _children(gaussians, split_up, generator))
    kept = (~doomed & ~(chosen & large)).nonzero()[:, 0]
    if len(kept) < before or len(added.means):
        gaussians.rearrange(kept, added)
    restart(tally, len(gaussians))
    return GrowthRecord(
        before=before,
        after=len(gaussians),
        cloned=len(cloned),
        split=len(split_up),
        children=CHILDREN * len(split_up),
        pruned=int(doomed.sum()),
        held_back=int((candidates & ~chosen & ~doomed).sum()),
    )


@torch.no_grad()
def clone(gaussians: Gaussians, rows: Int[Tensor, " rows"], opacity: Literal["kept", "shared"] = "kept") -> None:
    """Put a twin of every chosen Gaussian behind all others; the next steps pull the two apart."""
    gaussians.rearrange(_all(gaussians), _twins(gaussians, rows, opacity))


@torch.no_grad()
def split(gaussians: Gaussians, rows: Int[Tensor, " rows"], generator: torch.Generator | None = None) -> None:
    """Replace every chosen Gaussian by two, 1.6 times smaller, drawn from its own distribution, behind all others."""
    added, kept = _children(gaussians, rows, generator), torch.ones(len(gaussians), dtype=torch.bool)
    kept = kept.to(rows.device).index_fill_(0, rows, value=False)
    gaussians.rearrange(kept.nonzero()[:, 0], added)


def strongest(pulls: Tensor, candidates: Bool[Tensor, " n"], room: float) -> Bool[Tensor, " n"]:
    """Of the candidates those with the largest pulls, as many as there is room for; of equals the first ones."""
    rows = candidates.nonzero()[:, 0]
    if len(rows) <= room:
        return candidates.clone()
    order = pulls[rows].argsort(descending=True, stable=True)[: max(math.floor(room), 0)]
    return torch.zeros_like(candidates).index_fill_(0, rows[order], value=True)


def restart(tally: ScreenTally, count: int) -> None:
    """Set a tally to zero, for another number of Gaussians."""
    tally.load_state_dict({name: values.new_zeros(count) for name, values in tally.state_dict().items()})


def _check(gaussians: Gaussians, tally: ScreenTally, extent: float) -> None:
    if not 0 < extent < math.inf:
        raise ValueError(f"the scene's extent is {extent}: thresholds of size are shares of it, so it must be above 0")
    if len(tally.pulls) != len(gaussians):
        raise ValueError(
            f"the tally is of {len(tally.pulls)} Gaussians, there are {len(gaussians)}: give every growth and prune "
            "the tally, or restart it after the Gaussians changed"
        )
    gaussians.refuse_not_finite()
    refuse_not_finite("the tally's pull", tally.pulls)


def _too_large(gaussians: Gaussians, tally: ScreenTally, control: DensityControl, extent: float) -> Bool[Tensor, " n"]:
    in_world = oversized(gaussians, control.largest * extent)
    return in_world if control.largest_radius is None else in_world | (tally.radii > control.largest_radius)


def _twins(gaussians: Gaussians, rows: Int[Tensor, " rows"], opacity: Literal["kept", "shared"]) -> Rows:
    """Twins of some Gaussians; with shared opacities these are lowered on both sides."""
    if opacity == "shared" and len(rows):
        # 1 - sqrt(1 - sigmoid(x)), as a logit: log(sqrt(1 + e^x) - 1), with 1 + e^x = e^softplus(x)
        half = torch.nn.functional.softplus(gaussians.opacity_logits[rows].double()) / 2
        gaussians.opacity_logits[rows] = torch.log(torch.expm1(half)).to(gaussians.opacity_logits)
    return gaussians.rows(rows)


def _children(gaussians: Gaussians, rows: Int[Tensor, " rows"], generator: torch.Generator | None) -> Rows:
    """Two children of every chosen Gaussian: first one of each, then the other of each."""
    parents = gaussians.rows(rows.repeat(CHILDREN))
    draws = torch.randn(len(parents.means), 3, generator=generator).to(parents.means)
    offsets = (draws * parents.log_scales.exp())[:, :, None]
    places = parents.means + (quaternion_to_matrix(parents.quaternions) @ offsets)[:, :, 0]
    return parents._replace(means=places, log_scales=parents.log_scales - math.log(SHRINK))


def _joined(one: Rows, other: Rows) -> Rows:
    return Rows(*(torch.cat(parts) for parts in zip(one, other, strict=True)))


def _all(gaussians: Gaussians) -> Int[Tensor, " n"]:
    return torch.arange(len(gaussians), device=gaussians.means.device)
