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
from fieldwatch.recon.pipelines.splats.densification.record import DensificationRecord
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians, Rows, refuse_not_finite
from fieldwatch.recon.render import DensificationStatistics

CHILDREN = 2
"""Gaussians that replace one that is split."""
SHRINK = 1.6
"""A child's standard deviations are its parent's divided by this (Kerbl 2023, section 5.2)."""


@dataclass(frozen=True, kw_only=True)
class DensificationThresholds:
    """Thresholds of 3DGS (Kerbl 2023, section 5.2 and its published settings).

    Attributes:
        gradient: mean view-space gradient, in normalised device coordinates, from which a Gaussian is cloned or split.
        split_above: standard deviation, in shares of the reference length, above which it is split instead of cloned.
        split_radius: radius on the image, pixels (three standard deviations), from which on a Gaussian is split
            whatever its gradient; None splits none for its size alone.
        least_opacity: a Gaussian below it is pruned.
        largest_scale: standard deviation, in shares of the reference length, above which it is pruned; None prunes none
            for that.
        largest_radius: radius on the image, pixels, above which it is pruned; None prunes none. 3DGS says 20, but its
            code resets the radii before it reads them.
        large_after: finished updates after which the two rules of size hold.
        clone_opacity: "kept" gives clones their original's opacity (3DGS), so that the pair is more opaque than it was;
            "shared" gives both 1 - sqrt(1 - opacity), which blends to the same (Rota Bulò 2024).
        cap: Gaussians there may be at most; None for no limit.

    Raises:
        InputError: a threshold out of bounds.
    """

    gradient: float = 2e-4
    split_above: float = 0.01
    split_radius: float | None = None
    least_opacity: float = 0.005
    largest_scale: float | None = 0.1
    largest_radius: float | None = None
    large_after: int = 3000
    clone_opacity: Literal["kept", "shared"] = "kept"
    cap: int | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        sizes = (self.gradient, self.split_above, self.largest_radius or 1.0)
        sizes += tuple(1.0 if size is None else size for size in (self.split_radius, self.largest_scale))
        if not (all(0 < size < math.inf for size in sizes) and 0 <= self.least_opacity < 1):
            raise InputError(
                f"density control by gradient {self.gradient}, split_above {self.split_above}, split_radius "
                f"{self.split_radius}, largest_scale {self.largest_scale}, largest_radius {self.largest_radius}, "
                f"least_opacity {self.least_opacity}: wanted are finite numbers above 0, and an opacity from 0 up to 1"
            )
        if self.cap is not None and self.cap < 1:
            raise InputError(f"the cap is {self.cap} Gaussians: it must be 1 or more, or None for no limit")


@torch.no_grad()
def densify(  # noqa: PLR0913  what is densified, by which rules, and the facts of this step
    gaussians: Gaussians,
    statistics: DensificationStatistics,
    thresholds: DensificationThresholds,
    *,
    step: int,
    reference_length: float | Float[Tensor, " n"],
    cap: float | None = None,
    generator: torch.Generator | None = None,
) -> DensificationRecord:
    """Clone, split and prune once; survivors keep their order, then come clones, then children.

    The statistics start anew.

    Where the cap leaves no room for all candidates, those with the largest gradients are taken; of equals the first.
    More Gaussians than the cap are never there, not even in passing; what is above it already stays.

    Args:
        gaussians: changed; their optimizers follow. Call it after the optimizer's step.
        statistics: of the steps since the last densification.
        thresholds: which Gaussians are cloned, split and pruned.
        step: 0-based, the one that ended.
        reference_length: what sizes are shares of, world units: one for all, or one for each, see `reference_lengths`.
        cap: a further limit, as `run.growth_cap` gives it.
        generator: on the CPU, for the positions of children; None is torch's own.

    Raises:
        NotFiniteError: a parameter or a sum of the statistics is not finite; nothing was changed.
        ValueError: the statistics are of other Gaussians, a reference length is not above 0, or none would be left.
    """
    _check(gaussians, statistics, reference_length)
    before = len(gaussians)
    late = step + 1 > thresholds.large_after
    large_gradient = statistics.mean_gradient() >= thresholds.gradient
    large_scale = oversized(gaussians, thresholds.split_above * reference_length)
    wide = statistics.radii > (thresholds.split_radius or math.inf)
    # A Gaussian that is rendered too wide is a candidate whatever its gradient, and always split, never cloned.
    large_gradient = large_gradient | wide
    large_scale = large_scale | wide
    pruned = transparent(gaussians, thresholds.least_opacity)
    transparent_count = int(pruned.sum())
    if late and thresholds.largest_scale is not None:  # too large even when split
        pruned |= oversized(gaussians, thresholds.largest_scale * SHRINK * reference_length)
    candidates = large_gradient & ~pruned
    limit = min(limit for limit in (thresholds.cap, cap, math.inf) if limit is not None)
    # Each clone and each split adds one Gaussian; rows that are pruned make room for them.
    chosen = strongest_candidates(statistics.mean_gradient(), candidates, limit - (before - int(pruned.sum())))
    if late:  # too large and not to be split
        pruned |= _too_large(gaussians, statistics, thresholds, reference_length) & ~(chosen & large_scale)
        chosen &= ~pruned
    cloned_rows = (chosen & ~large_scale).nonzero()[:, 0]
    split_rows = (chosen & large_scale).nonzero()[:, 0]
    # First: with shared opacities it lowers those of the originals in place, which `rearrange` copies.
    clones = _clones(gaussians, cloned_rows, thresholds.clone_opacity)
    added = _concatenated(clones, _children(gaussians, split_rows, generator))
    surviving = (~pruned & ~(chosen & large_scale)).nonzero()[:, 0]
    # `rearrange` copies every parameter with its moments, so it is skipped where nothing changes.
    if len(surviving) < before or len(added.means):
        gaussians.rearrange(surviving, added)
    reset_statistics(statistics, len(gaussians))
    return DensificationRecord(
        before=before,
        after=len(gaussians),
        cloned=len(cloned_rows),
        split=len(split_rows),
        children=CHILDREN * len(split_rows),
        pruned=int(pruned.sum()),
        too_large=int(pruned.sum()) - transparent_count,
        held_back=int((candidates & ~chosen & ~pruned).sum()),
    )


@torch.no_grad()
def clone(gaussians: Gaussians, rows: Int[Tensor, " rows"], opacity: Literal["kept", "shared"] = "kept") -> None:
    """Append a clone of every chosen Gaussian; the next steps move the two apart."""
    gaussians.rearrange(_all_rows(gaussians), _clones(gaussians, rows, opacity))


@torch.no_grad()
def split(gaussians: Gaussians, rows: Int[Tensor, " rows"], generator: torch.Generator | None = None) -> None:
    """Replace every chosen Gaussian by two, 1.6 times smaller, sampled from its own distribution, behind all others."""
    added = _children(gaussians, rows, generator)
    unsplit = torch.ones(len(gaussians), dtype=torch.bool)
    unsplit = unsplit.to(rows.device).index_fill_(0, rows, value=False)
    gaussians.rearrange(unsplit.nonzero()[:, 0], added)


def strongest_candidates(gradients: Tensor, candidates: Bool[Tensor, " n"], room: float) -> Bool[Tensor, " n"]:
    """Of the candidates those with the largest gradients, as many as there is room for; of equals the first ones."""
    rows = candidates.nonzero()[:, 0]
    if len(rows) <= room:
        return candidates.clone()
    # Stable: among equal gradients the result must not depend on the sorting algorithm, or runs would not repeat.
    order = gradients[rows].argsort(descending=True, stable=True)[: max(math.floor(room), 0)]
    return torch.zeros_like(candidates).index_fill_(0, rows[order], value=True)


def reset_statistics(statistics: DensificationStatistics, count: int) -> None:
    """Set statistics to zero, for another number of Gaussians."""
    statistics.load_state_dict({name: values.new_zeros(count) for name, values in statistics.state_dict().items()})


def _check(
    gaussians: Gaussians, statistics: DensificationStatistics, reference_length: float | Float[Tensor, " n"]
) -> None:
    lengths = torch.as_tensor(reference_length)
    if not bool(((lengths > 0) & lengths.isfinite()).all()):
        raise ValueError(
            f"expected finite reference lengths above 0, got {float(lengths.min())} to {float(lengths.max())}: "
            "thresholds of size are shares of them; give the extent of the cameras, or what `reference_lengths` returns"
        )
    if len(statistics.gradients) != len(gaussians):
        raise ValueError(
            f"expected densification statistics of {len(gaussians)} Gaussians, got those of "
            f"{len(statistics.gradients)}: pass the statistics to every densification and prune, or reset them after "
            "the Gaussians changed"
        )
    gaussians.refuse_not_finite()
    refuse_not_finite("the view-space gradient", statistics.gradients)


def _too_large(
    gaussians: Gaussians,
    statistics: DensificationStatistics,
    thresholds: DensificationThresholds,
    reference_length: float | Float[Tensor, " n"],
) -> Bool[Tensor, " n"]:
    too_large = torch.zeros(len(gaussians), dtype=torch.bool, device=gaussians.means.device)
    if thresholds.largest_scale is not None:
        too_large |= oversized(gaussians, thresholds.largest_scale * reference_length)
    if thresholds.largest_radius is not None:
        too_large |= statistics.radii > thresholds.largest_radius
    return too_large


def _clones(gaussians: Gaussians, rows: Int[Tensor, " rows"], opacity: Literal["kept", "shared"]) -> Rows:
    """Copies of some Gaussians; shared opacities are lowered in the originals, too."""
    if opacity == "shared" and len(rows):
        # 1 - sqrt(1 - sigmoid(x)), as a logit: log(sqrt(1 + e^x) - 1), with 1 + e^x = e^softplus(x)
        half = torch.nn.functional.softplus(gaussians.opacity_logits[rows].double()) / 2
        gaussians.opacity_logits[rows] = torch.log(torch.expm1(half)).to(gaussians.opacity_logits)
    return gaussians.rows(rows)


def _children(gaussians: Gaussians, rows: Int[Tensor, " rows"], generator: torch.Generator | None) -> Rows:
    """Two children of every chosen Gaussian: first one of each, then the other of each."""
    parents = gaussians.rows(rows.repeat(CHILDREN))
    # Sampled on the CPU: the numbers are the same on every device.
    samples = torch.randn(len(parents.means), 3, generator=generator).to(parents.means)
    offsets = (samples * parents.log_scales.exp())[:, :, None]
    means = parents.means + (quaternion_to_matrix(parents.quaternions) @ offsets)[:, :, 0]
    return parents._replace(means=means, log_scales=parents.log_scales - math.log(SHRINK))


def _concatenated(first: Rows, second: Rows) -> Rows:
    return Rows(*(torch.cat(pair) for pair in zip(first, second, strict=True)))


def _all_rows(gaussians: Gaussians) -> Int[Tensor, " n"]:
    return torch.arange(len(gaussians), device=gaussians.means.device)
