"""Adaptive density control: Gaussians with a large view-space gradient are cloned if small and split if large."""

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
"""Number of Gaussians that replace a split one."""
SHRINK = 1.6
"""Ratio of a parent's standard deviations to its children's (Kerbl 2023, section 5.2)."""


@dataclass(frozen=True, kw_only=True)
class DensificationThresholds:
    """Thresholds of adaptive density control; defaults from 3DGS (Kerbl 2023, section 5.2 and its published settings).

    Attributes:
        gradient: mean view-space gradient, in normalized device coordinates, from which a Gaussian is cloned or split.
        split_above: standard deviation, as a fraction of the reference length, above which a Gaussian is split instead
            of cloned.
        split_radius: radius on the image, in pixels (three standard deviations), above which a Gaussian is split
            regardless of its gradient; None disables this.
        least_opacity: opacity below which a Gaussian is pruned.
        largest_scale: standard deviation, as a fraction of the reference length, above which a Gaussian is pruned; None
            disables this.
        largest_radius: radius on the image, in pixels, above which a Gaussian is pruned; None disables this. 3DGS sets
            20, but its code resets the radii before it reads them.
        large_after: number of finished updates after which `largest_scale` and `largest_radius` apply.
        clone_opacity: "kept" copies the original's opacity (3DGS), so that the pair is more opaque than before;
            "shared" sets both to 1 - sqrt(1 - opacity), which blends to the original's opacity (Rota Bulò 2024).
        cap: maximum number of Gaussians; None for no limit.

    Raises:
        InputError: A threshold is out of bounds.
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
                "densification thresholds must be finite numbers above 0 and least_opacity at least 0 and less than 1, "
                f"got gradient {self.gradient}, split_above {self.split_above}, split_radius {self.split_radius}, "
                f"largest_scale {self.largest_scale}, largest_radius {self.largest_radius}, "
                f"least_opacity {self.least_opacity}"
            )
        if self.cap is not None and self.cap < 1:
            raise InputError(f"cap must be 1 or more Gaussians, or None for no limit, got {self.cap}")


@torch.no_grad()
def densify(  # noqa: PLR0913  parameters, thresholds and the state of one step
    gaussians: Gaussians,
    statistics: DensificationStatistics,
    thresholds: DensificationThresholds,
    *,
    step: int,
    reference_length: float | Float[Tensor, " n"],
    cap: float | None = None,
    generator: torch.Generator | None = None,
) -> DensificationRecord:
    """Clone, split and prune Gaussians, and reset the statistics.

    Surviving Gaussians keep their order; clones and then children are appended.

    If the cap leaves no room for all candidates, those with the largest gradients are chosen; ties go to the first
    rows. The number of Gaussians never exceeds the cap, not even temporarily. If it exceeds the cap already, none is
    removed for that.

    Args:
        gaussians: Gaussians, modified in place together with their optimizers. Call this after the optimizer's step.
        statistics: view-space gradients and radii since the last densification.
        thresholds: thresholds for cloning, splitting and pruning.
        step: index of the finished step, 0-based.
        reference_length: length that size thresholds are fractions of, world units: one for all Gaussians or one each,
            see `reference_lengths`.
        cap: additional limit on the number of Gaussians, such as `run.growth_cap`.
        generator: CPU generator for the positions of children; None uses torch's default.

    Raises:
        NotFiniteError: A parameter or a statistic is not finite; nothing was changed.
        ValueError: The statistics belong to another number of Gaussians, a reference length is not positive, or no
            Gaussian would survive.
    """
    _check(gaussians, statistics, reference_length)
    before = len(gaussians)
    late = step + 1 > thresholds.large_after
    # Mean over the views in which a Gaussian was visible, as in 3DGS.
    large_gradient = statistics.mean_gradient() >= thresholds.gradient
    large_scale = oversized(gaussians, thresholds.split_above * reference_length)
    # Without a threshold, no Gaussian is wide.
    wide = statistics.radii > (thresholds.split_radius or math.inf)
    # A Gaussian that is rendered too wide is a candidate regardless of its gradient, and always split, never cloned.
    large_gradient = large_gradient | wide
    large_scale = large_scale | wide
    pruned = transparent(gaussians, thresholds.least_opacity)
    transparent_count = int(pruned.sum())
    if late and thresholds.largest_scale is not None:  # too large even when split
        pruned |= oversized(gaussians, thresholds.largest_scale * SHRINK * reference_length)
    candidates = large_gradient & ~pruned
    # The stricter of the configured cap and the one that a memory rule requested during the run.
    limit = min(limit for limit in (thresholds.cap, cap, math.inf) if limit is not None)
    # Each clone and each split adds one Gaussian; rows that are pruned make room for them.
    chosen = strongest_candidates(statistics.mean_gradient(), candidates, limit - (before - int(pruned.sum())))
    if late:  # too large and not to be split
        pruned |= _too_large(gaussians, statistics, thresholds, reference_length) & ~(chosen & large_scale)
        chosen &= ~pruned
    cloned_rows = (chosen & ~large_scale).nonzero()[:, 0]
    split_rows = (chosen & large_scale).nonzero()[:, 0]
    # Before `rearrange`: with shared opacities, `_clones` lowers the originals' opacities in place.
    clones = _clones(gaussians, cloned_rows, thresholds.clone_opacity)
    added = _concatenated(clones, _children(gaussians, split_rows, generator))
    surviving = (~pruned & ~(chosen & large_scale)).nonzero()[:, 0]
    # `rearrange` copies every parameter and its moments: skipped if nothing changes.
    if len(surviving) < before or len(added.means):
        gaussians.rearrange(surviving, added)
    # Old statistics belong to old rows and to the image before the densification.
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
    """Append a clone of each chosen Gaussian; the next updates move the two apart."""
    gaussians.rearrange(_all_rows(gaussians), _clones(gaussians, rows, opacity))


@torch.no_grad()
def split(gaussians: Gaussians, rows: Int[Tensor, " rows"], generator: torch.Generator | None = None) -> None:
    """Replace each chosen Gaussian by two that are 1.6 times smaller, sampled from its distribution and appended."""
    added = _children(gaussians, rows, generator)
    unsplit = torch.ones(len(gaussians), dtype=torch.bool)
    unsplit = unsplit.to(rows.device).index_fill_(0, rows, value=False)
    gaussians.rearrange(unsplit.nonzero()[:, 0], added)


def strongest_candidates(gradients: Tensor, candidates: Bool[Tensor, " n"], room: float) -> Bool[Tensor, " n"]:
    """Return a mask of the at most `room` candidates with the largest gradients; ties go to the first rows."""
    rows = candidates.nonzero()[:, 0]
    if len(rows) <= room:
        return candidates.clone()
    # A stable sort, so that ties do not depend on the sorting algorithm and runs are reproducible.
    order = gradients[rows].argsort(descending=True, stable=True)[: max(math.floor(room), 0)]
    return torch.zeros_like(candidates).index_fill_(0, rows[order], value=True)


def reset_statistics(statistics: DensificationStatistics, count: int) -> None:
    """Set the statistics to zero, for a possibly different number of Gaussians."""
    statistics.load_state_dict({name: values.new_zeros(count) for name, values in statistics.state_dict().items()})


def _check(
    gaussians: Gaussians, statistics: DensificationStatistics, reference_length: float | Float[Tensor, " n"]
) -> None:
    lengths = torch.as_tensor(reference_length)
    if not bool(((lengths > 0) & lengths.isfinite()).all()):
        raise ValueError(
            f"expected finite reference lengths above 0, got {float(lengths.min())} to {float(lengths.max())}: pass "
            "the extent of the cameras or the result of `reference_lengths`"
        )
    if len(statistics.gradients) != len(gaussians):
        raise ValueError(
            f"expected densification statistics of {len(gaussians)} Gaussians, got {len(statistics.gradients)}: pass "
            "the statistics to every densification and prune, or reset them whenever the number of Gaussians changes"
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
    """Return copies of the given rows; shared opacities are also lowered in the originals."""
    if opacity == "shared" and len(rows):
        # 1 - sqrt(1 - sigmoid(x)), as a logit: log(sqrt(1 + e^x) - 1), with 1 + e^x = e^softplus(x)
        half = torch.nn.functional.softplus(gaussians.opacity_logits[rows].double()) / 2
        gaussians.opacity_logits[rows] = torch.log(torch.expm1(half)).to(gaussians.opacity_logits)
    return gaussians.rows(rows)


def _children(gaussians: Gaussians, rows: Int[Tensor, " rows"], generator: torch.Generator | None) -> Rows:
    """Return two children per row: the first child of all rows, then the second of all rows."""
    parents = gaussians.rows(rows.repeat(CHILDREN))
    # Sampled on the CPU, so that the numbers do not depend on the device.
    # Children are sampled from the parent's distribution (Kerbl 2023, section 5.2).
    samples = torch.randn(len(parents.means), 3, generator=generator).to(parents.means)
    offsets = (samples * parents.log_scales.exp())[:, :, None]
    means = parents.means + (quaternion_to_matrix(parents.quaternions) @ offsets)[:, :, 0]
    # Rotation, opacity and colors are inherited from the parent.
    return parents._replace(means=means, log_scales=parents.log_scales - math.log(SHRINK))


def _concatenated(first: Rows, second: Rows) -> Rows:
    return Rows(*(torch.cat(pair) for pair in zip(first, second, strict=True)))


def _all_rows(gaussians: Gaussians) -> Int[Tensor, " n"]:
    return torch.arange(len(gaussians), device=gaussians.means.device)
