"""Rays that got no samples: how many, samples for them all the same, and when the grid has collapsed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.render.sdf.samples import BoundedRays, PackedSamples


@dataclass(frozen=True, kw_only=True, eq=False)
class FilledSamples:
    """Samples of all rays.

    Attributes:
        samples: those there were and the new ones.
        filled: number of rays that had none and got some.
        missed: number of rays that have none because they miss the scene (their `near` is their `far`).
    """

    samples: PackedSamples
    filled: int
    missed: int


@torch.no_grad()
def fill_empty(
    samples: PackedSamples, rays: BoundedRays, count: int = 64, *, noise: Float[Tensor, "rays _"] | None = None
) -> FilledSamples:
    """Give rays without samples `count` stratified ones, so that a lost surface has gradients to come back by.

    The `count` + 1 ends of the sections lie in as many equal parts of [near, far], one in each; the sections follow on
    one another.

    Args:
        samples: as the grid gave them.
        rays: those rays.
        count: samples for each ray that has none.
        noise: where in its part each end lies, in [0, 1), with a column for each of the `count` + 1 ends; None is the
            middle.

    Raises:
        ValueError: no samples asked for, rays of another number, or noise of another width.
    """
    if count < 1 or samples.n_rays != len(rays) or (noise is not None and noise.shape != (len(rays), count + 1)):
        raise ValueError(
            f"fill_empty got {count} samples a ray, {len(rays)} rays, samples of {samples.n_rays} rays and noise of "
            f"{None if noise is None else tuple(noise.shape)}: wanted 1 or more, the same rays, (rays, count + 1)"
        )
    empty = samples.counts == 0
    meets = rays.far > rays.near
    filled_rays = torch.nonzero(empty & meets)[:, 0]
    fraction = torch.arange(count + 1, device=filled_rays.device) + (0.5 if noise is None else noise[filled_rays])
    near = rays.near[filled_rays, None]
    far = rays.far[filled_rays, None]
    ends = near + (far - near) * fraction / (count + 1)
    ray_index = torch.cat([samples.ray_index, filled_rays.repeat_interleave(count)])
    # Stable: the samples of a ray stay in their order from front to back.
    order = torch.sort(ray_index, stable=True).indices
    merged = PackedSamples(
        t_start=torch.cat([samples.t_start, ends[:, :-1].reshape(-1)])[order],
        t_end=torch.cat([samples.t_end, ends[:, 1:].reshape(-1)])[order],
        ray_index=ray_index[order],
        n_rays=samples.n_rays,
    )
    return FilledSamples(samples=merged, filled=len(filled_rays), missed=int((empty & ~meets).sum()))


def empty_share(samples: PackedSamples, mask: Bool[Tensor, " rays"]) -> Float[Tensor, ""]:
    """Share of the rays inside the mask that have no samples: 0 is healthy; 0 where the mask is empty.

    Raises:
        ValueError: a mask of another number of rays.
    """
    if len(mask) != samples.n_rays:
        raise ValueError(f"a mask of {len(mask)} rays for samples of {samples.n_rays} rays: cut both to the same rays")
    return ((samples.counts == 0) & mask).sum() / mask.sum().clamp_min(1)


class CollapseDetector:
    """Tells a collapsed grid from a bad batch: too many in-mask rays without samples, several steps in a row.

    Args:
        share: of the in-mask rays without samples (`empty_share`), above which a step counts as bad.
        patience: bad steps in a row that make a collapse.

    Attributes:
        bad_steps: bad steps up to now, in a row.
        collapses: how often there was one.

    Raises:
        ValueError: a share outside [0, 1), or a patience below 1.
    """

    def __init__(self, share: float = 0.5, patience: int = 20) -> None:
        if not (0 <= share < 1 and patience >= 1):
            raise ValueError(f"a collapse is a share in [0, 1) over 1 or more steps, got {share} over {patience} steps")
        self.share = share
        self.patience = patience
        self.bad_steps = self.collapses = 0

    def observe(self, share: float) -> bool:
        """Take in a step; True if the grid has collapsed: rebuild it. The count begins anew then."""
        self.bad_steps = self.bad_steps + 1 if share > self.share else 0
        if self.bad_steps < self.patience:
            return False
        self.bad_steps = 0
        self.collapses += 1
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, for a checkpoint."""
        return {"bad_steps": self.bad_steps, "collapses": self.collapses}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over the counts of a checkpoint."""
        self.bad_steps = int(state["bad_steps"])
        self.collapses = int(state["collapses"])
