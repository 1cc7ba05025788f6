"""Adaptive density control: where the view-space gradient is large, small Gaussians are cloned and large ones split."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.geometry import quaternion_to_matrix
from fieldwatch.recon.pipelines.splats.densification.pruning import oversized, transparent
from fieldwatch.recon.pipelines.splats.densification.record import GrowthRecord
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians, Rows, refuse_not_finite
from fieldwatch.recon.render import DensificationStatistics

CHILDREN = 2
"""Gaussians that take the place of one that is split."""
SHRINK = 1.6
"""A child's standard deviations are its parent's divided by this (Kerbl 2023, section 5.2)."""


@dataclass(frozen=True, kw_only=True)
class DensityControl:
    """Thresholds of 3DGS (Kerbl 2023, section 5.2 and its published settings).

    Attributes:
        pull: mean gradient on the image, in normalised device coordinates, from which a Gaussian grows.
        split_above: standard deviation, in shares of the yardstick, above which it is split instead of cloned.
        split_radius: radius on the image, pixels (three standard deviations), from which on a Gaussian is split whether
            it pulls or not; None splits none for its size alone.
        least_opacity: a Gaussian below it is pruned.
        largest: standard deviation, in shares of the yardstick, above which it is pruned; None prunes none for that.
        largest_radius: radius on the image, pixels, above which it is pruned; None prunes none. 3DGS says 20, but its
            code forgets the radii before it looks at them.
        large_after: finished updates after which the two rules of size hold.
        twins: "kept" gives clones their original's opacity (3DGS), so that the pair is more opaque than it was;
            "shared" gives both 1 - sqrt(1 - opacity), which blends to the same (Rota Bulò 2024).
        cap: Gaussians there may be at most; None for no limit.

    Raises:
        InputError: a threshold out of bounds.
    """

    pull: float = 2e-4
    split_above: float = 0.01
    split_radius: float | None = None
    least_opacity: float = 0.005
    largest: float | None = 0.1
    largest_radius: float | None = None
    large_after: int = 3000
    twins: Literal["kept", "shared"] = "kept"
    cap: int | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        sizes = (self.pull, self.split_above, self.largest_radius or 1.0)
        sizes += tuple(1.0 if size is None else size for size in (self.split_radius, self.largest))
        if not (all(0 < size < math.inf for size in sizes) and 0 <= self.least_opacity < 1):
            raise InputError(
                f"density control by pull {self.pull}, split_above {self.split_above}, split_radius "
                f"{self.split_radius}, largest {self.largest}, largest_radius {self.largest_radius}, least_opacity "
                f"{self.least_opacity}: wanted are finite numbers above 0, and an opacity from 0 up to 1"
            )
        if self.cap is not None and self.cap < 1:
            raise InputError(f"the cap is {self.cap} Gaussians: it must be 1 or more, or None for no limit")


@torch.no_grad()
def grow(  # noqa: PLR0913  what grows, by which rules, and the facts of this step
    gaussians: Gaussians,
    statistics: DensificationStatistics,
    control: DensityControl,
    *,
    step: int,
    yardstick: float | Float[Tensor, " n"],
    cap: float | None = None,
    generator: torch.Generator | None = None,
) -> GrowthRecord:
    """Clone, split and prune once; survivors keep their order, then come clones, then children.

    The statistics start anew.

    Where the cap leaves no room for all candidates, those with the strongest pull grow; of equals the first ones.
    More Gaussians than the cap are never there, not even in passing; what is above it already stays.

    Args:
        gaussians: changed; their optimizers follow. Call it after the optimizer's step.
        statistics: what the steps since the last growth showed.
        control: thresholds.
        step: 0-based, the one that ended.
        yardstick: what sizes are shares of, world units: one for all, or one for each, see `yardsticks`.
        cap: a further limit, as `run.growth_cap` gives it.
        generator: on the CPU, for the places of children; None is torch's own.

    Raises:
        NotFiniteError: a parameter or a sum of the statistics is not finite; nothing was changed.
        ValueError: the statistics are of other Gaussians, a yardstick is not above 0, or none would be left.
    """
    _check(gaussians, statistics, yardstick)
    before = len(gaussians)
    late = step + 1 > control.large_after
    growing = statistics.mean_gradient() >= control.pull
    large = oversized(gaussians, control.split_above * yardstick)
    wide = statistics.radii > (control.split_radius or math.inf)
    growing = growing | wide
    large = large | wide
    doomed = transparent(gaussians, control.least_opacity)
    clear = int(doomed.sum())
    if late and control.largest is not None:  # too large even when split
        doomed |= oversized(gaussians, control.largest * SHRINK * yardstick)
    candidates = growing & ~doomed
    limit = min(limit for limit in (control.cap, cap, math.inf) if limit is not None)
    chosen = strongest(statistics.mean_gradient(), candidates, limit - (before - int(doomed.sum())))
    if late:  # too large and not to be split
        doomed |= _too_large(gaussians, statistics, control, yardstick) & ~(chosen & large)
        chosen &= ~doomed
    cloned = (chosen & ~large).nonzero()[:, 0]
    split_up = (chosen & large).nonzero()[:, 0]
    added = _joined(_twins(gaussians, cloned, control.twins), _children(gaussians, split_up, generator))
    kept = (~doomed & ~(chosen & large)).nonzero()[:, 0]
    if len(kept) < before or len(added.means):
        gaussians.rearrange(kept, added)
    restart(statistics, len(gaussians))
    return GrowthRecord(
        before=before,
        after=len(gaussians),
        cloned=len(cloned),
        split=len(split_up),
        children=CHILDREN * len(split_up),
        pruned=int(doomed.sum()),
        too_large=int(doomed.sum()) - clear,
        held_back=int((candidates & ~chosen & ~doomed).sum()),
    )


@torch.no_grad()
def clone(gaussians: Gaussians, rows: Int[Tensor, " rows"], opacity: Literal["kept", "shared"] = "kept") -> None:
    """Put a twin of every chosen Gaussian behind all others; the next steps pull the two apart."""
    gaussians.rearrange(_all(gaussians), _twins(gaussians, rows, opacity))


@torch.no_grad()
def split(gaussians: Gaussians, rows: Int[Tensor, " rows"], generator: torch.Generator | None = None) -> None:
    """Replace every chosen Gaussian by two, 1.6 times smaller, drawn from its own distribution, behind all others."""
    added = _children(gaussians, rows, generator)
    kept = torch.ones(len(gaussians), dtype=torch.bool)
    kept = kept.to(rows.device).index_fill_(0, rows, value=False)
    gaussians.rearrange(kept.nonzero()[:, 0], added)


def strongest(pulls: Tensor, candidates: Bool[Tensor, " n"], room: float) -> Bool[Tensor, " n"]:
    """Of the candidates those with the largest pulls, as many as there is room for; of equals the first ones."""
    rows = candidates.nonzero()[:, 0]
    if len(rows) <= room:
        return candidates.clone()
    order = pulls[rows].argsort(descending=True, stable=True)[: max(math.floor(room), 0)]
    return torch.zeros_like(candidates).index_fill_(0, rows[order], value=True)


def restart(statistics: DensificationStatistics, count: int) -> None:
    """Set statistics to zero, for another number of Gaussians."""
    statistics.load_state_dict({name: values.new_zeros(count) for name, values in statistics.state_dict().items()})


def _check(gaussians: Gaussians, statistics: DensificationStatistics, yardstick: float | Float[Tensor, " n"]) -> None:
    lengths = torch.as_tensor(yardstick)
    if not bool(((lengths > 0) & lengths.isfinite()).all()):
        raise ValueError(
            f"expected finite yardsticks above 0, got {float(lengths.min())} to {float(lengths.max())}: thresholds of "
            "size are shares of them; give the extent of the cameras, or what `yardsticks` returns"
        )
    if len(statistics.gradients) != len(gaussians):
        raise ValueError(
            f"expected densification statistics of {len(gaussians)} Gaussians, got those of "
            f"{len(statistics.gradients)}: give every growth and prune the statistics, or restart them after the "
            "Gaussians changed"
        )
    gaussians.refuse_not_finite()
    refuse_not_finite("the view-space gradient", statistics.gradients)


def _too_large(
    gaussians: Gaussians,
    statistics: DensificationStatistics,
    control: DensityControl,
    yardstick: float | Float[Tensor, " n"],
) -> Bool[Tensor, " n"]:
    found = torch.zeros(len(gaussians), dtype=torch.bool, device=gaussians.means.device)
    if control.largest is not None:
        found |= oversized(gaussians, control.largest * yardstick)
    return found if control.largest_radius is None else found | (statistics.radii > control.largest_radius)


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
