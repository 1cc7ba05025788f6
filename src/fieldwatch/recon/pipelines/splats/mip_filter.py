"""Mip-Splatting's 3D filter, which limits Gaussians to the photos' sampling rate (Yu 2024, section 5.1)."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.render import View

VARIANCE = 0.2
"""Variance of the filter, in squared pixels of the photo with the highest sampling rate (s in the paper)."""
_NEAR = 0.2  # world units; a Gaussian nearer to a camera does not count as visible
_MARGIN = 0.15  # fraction of the photo's size by which a visible Gaussian may be outside, as in the paper's code


@torch.no_grad()
def filter_widths(means: Float[Tensor, "n 3"], views: Sequence[View]) -> Float[Tensor, " n"]:
    """Return the filter's standard deviation for every Gaussian: sqrt(0.2) / max(focal length / depth).

    A Gaussian that is visible in no view gets the widest filter of all visible ones.

    Args:
        means: centers of the Gaussians, world units.
        views: training cameras.

    Raises:
        ValueError: There are no cameras.
    """
    if not views:
        raise ValueError("the 3D filter depends on the sampling rate, but there are no cameras: give at least one")
    finest = means.new_zeros(len(means))  # highest sampling rate of the photos, pixels per world unit
    for view in views:
        pose = view.camera_from_world.to(means)
        x, y, depth = (means @ pose[:3, :3].T + pose[:3, 3]).unbind(-1)
        # Avoids a division by zero behind the camera; `depth > _NEAR` excludes these rows below.
        safe = depth.clamp_min(_NEAR)
        across = view.fx * x / safe + view.cx
        down = view.fy * y / safe + view.cy
        inside = (across >= -_MARGIN * view.width) & (across <= (1 + _MARGIN) * view.width)
        inside &= (down >= -_MARGIN * view.height) & (down <= (1 + _MARGIN) * view.height)
        # The sampling rate at the center is focal length / depth; the maximum over the photos counts.
        rate = max(view.fx, view.fy) / safe
        finest = torch.where(inside & (depth > _NEAR), torch.maximum(finest, rate), finest)
    visible = finest > 0
    coarsest = torch.where(visible, finest, torch.full_like(finest, torch.inf)).amin()
    rates = torch.where(visible, finest, coarsest)
    # Infinite if no Gaussian is visible in any view: apply no filter.
    return torch.where(rates.isfinite(), VARIANCE**0.5 / rates, torch.zeros_like(rates))


class MipFilter:
    """Filter widths of all Gaussians, constant until `update` and stored in checkpoints.

    Args:
        views: training cameras.
        means: centers of the Gaussians, world units.
    """

    def __init__(self, views: Sequence[View], means: Float[Tensor, "n 3"]) -> None:
        self._views = tuple(views)
        self.widths = filter_widths(means, self._views)

    def update(self, means: Float[Tensor, "n 3"]) -> None:
        """Recompute the widths after Gaussians moved or their number changed."""
        self.widths = filter_widths(means, self._views)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the widths, for a checkpoint."""
        return {"widths": self.widths}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore stored widths of any number of Gaussians."""
        self.widths = state["widths"].to(self.widths.device).clone()
