"""Rays without samples: their fraction, fallback samples, and detection of a collapsed occupancy grid."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.render.sdf.samples import BoundedRays, PackedSamples


@dataclass(frozen=True, kw_only=True, eq=False)
class FilledSamples:
    """Samples including the fallback samples of empty rays.

    Attributes:
        samples: previous and added samples.
        filled: number of rays that got fallback samples.
        missed: number of rays without samples because they miss the scene (`near` equals `far`).
    """

    samples: PackedSamples
    filled: int
    missed: int


@torch.no_grad()
def fill_empty(
    samples: PackedSamples, rays: BoundedRays, count: int = 64, *, noise: Float[Tensor, "rays _"] | None = None
) -> FilledSamples:
    """Add stratified samples to rays without any, so that a lost surface gets gradients and can recover.

    The interval [near, far] is divided into `count` + 1 equal parts with one section end in each; the sections are
    adjacent.

    Args:
        samples: samples from the grid.
        rays: rays of the samples.
        count: number of samples per empty ray.
        noise: position of each of the `count` + 1 ends in its part, in [0, 1); None uses the middle.

    Raises:
        ValueError: `count` is below 1, or the number of rays or the shape of the noise does not match.
    """
    if count < 1 or samples.n_rays != len(rays) or (noise is not None and noise.shape != (len(rays), count + 1)):
        raise ValueError(
            "fill_empty needs count >= 1, samples of the same rays and noise of shape (rays, count + 1), got count "
            f"{count}, {len(rays)} rays, samples of {samples.n_rays} rays and noise of shape "
            f"{None if noise is None else tuple(noise.shape)}"
        )
    # Rays that miss the scene stay empty: their interval has no length.
    empty = samples.counts == 0
    meets = rays.far > rays.near
    filled_rays = torch.nonzero(empty & meets)[:, 0]
    missed = int((empty & ~meets).sum())
    if not len(filled_rays):  # as in most steps: nothing to merge
        return FilledSamples(samples=samples, filled=0, missed=missed)
    fraction = torch.arange(count + 1, device=filled_rays.device) + (0.5 if noise is None else noise[filled_rays])
    near = rays.near[filled_rays, None]
    far = rays.far[filled_rays, None]
    ends = near + (far - near) * fraction / (count + 1)
    added = PackedSamples(
        t_start=ends[:, :-1].reshape(-1),
        t_end=ends[:, 1:].reshape(-1),
        ray_index=filled_rays.repeat_interleave(count),
        n_rays=samples.n_rays,
    )
    return FilledSamples(samples=samples.merged(added), filled=len(filled_rays), missed=missed)


def empty_share(samples: PackedSamples, mask: Bool[Tensor, " rays"]) -> Float[Tensor, ""]:
    """Return the fraction of rays inside the mask without samples; 0 for an empty mask. Healthy grids have 0.

    Raises:
        ValueError: the mask has another number of rays.
    """
    if len(mask) != samples.n_rays:
        raise ValueError(f"the mask must have one entry for each of the {samples.n_rays} rays, got {len(mask)}")
    # The clamp gives 0 for an empty mask instead of NaN.
    return ((samples.counts == 0) & mask).sum() / mask.sum().clamp_min(1)


class CollapseDetector:
    """Detects a collapsed grid: too many rays inside the mask have no samples for several consecutive steps.

    Args:
        share: fraction of rays inside the mask without samples (`empty_share`) above which a step is bad.
        patience: number of consecutive bad steps that count as a collapse.

    Attributes:
        bad_steps: current number of consecutive bad steps.
        collapses: number of collapses so far.

    Raises:
        ValueError: `share` is outside [0, 1), or `patience` is below 1.
    """

    def __init__(self, share: float = 0.5, patience: int = 20) -> None:
        if not (0 <= share < 1 and patience >= 1):
            raise ValueError(f"share must be in [0, 1) and patience at least 1 step, got {share} and {patience}")
        self.share = share
        self.patience = patience
        self.bad_steps = self.collapses = 0

    def observe(self, share: float) -> bool:
        """Record a step; return True, and reset the count, if the grid has collapsed and should be rebuilt."""
        self.bad_steps = self.bad_steps + 1 if share > self.share else 0
        if self.bad_steps < self.patience:
            return False
        self.bad_steps = 0
        self.collapses += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the counts for a checkpoint."""
        return {"bad_steps": self.bad_steps, "collapses": self.collapses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the counts from a checkpoint."""
        self.bad_steps = int(state["bad_steps"])
        self.collapses = int(state["collapses"])
