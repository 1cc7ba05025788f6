"""Mip-Splatting's 3D filter: no Gaussian finer than what the photos can show of it (Yu 2024, section 5.1)."""

from collections.abc import Mapping, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.render import View

VARIANCE = 0.2
"""Variance of the filter, in squared pixels of the photo that shows a Gaussian largest (the paper's s)."""
_NEAR = 0.2  # world units: nearer cameras show nothing of a Gaussian
_MARGIN = 0.15  # of the photo's size: a Gaussian that far outside still counts as visible, as in the paper's code


@torch.no_grad()
def filter_widths(means: Float[Tensor, "n 3"], views: Sequence[View]) -> Float[Tensor, " n"]:
    """Return the filter's standard deviation for every Gaussian: sqrt(0.2) over the largest focal length / depth.

    A Gaussian that no camera sees gets the widest filter of all that are visible.

    Args:
        means: centres, world units.
        views: the training cameras.

    Raises:
        ValueError: there are no cameras.
    """
    if not views:
        raise ValueError("the 3D filter asks what the photos can show, and there are no cameras: give one or more")
    finest = means.new_zeros(len(means))  # pixels per world unit, in the photo that shows a Gaussian largest
    for view in views:
        pose = view.camera_from_world.to(means)
        x, y, depth = (means @ pose[:3, :3].T + pose[:3, 3]).unbind(-1)
        safe = depth.clamp_min(_NEAR)
        across = view.fx * x / safe + view.cx
        down = view.fy * y / safe + view.cy
        inside = (across >= -_MARGIN * view.width) & (across <= (1 + _MARGIN) * view.width)
        inside &= (down >= -_MARGIN * view.height) & (down <= (1 + _MARGIN) * view.height)
        # The sampling rate of a photo at the center is focal length over depth; the photo with the highest rate counts.
        rate = max(view.fx, view.fy) / safe
        finest = torch.where(inside & (depth > _NEAR), torch.maximum(finest, rate), finest)
    visible = finest > 0
    coarsest = torch.where(visible, finest, torch.full_like(finest, torch.inf)).amin()
    rates = torch.where(visible, finest, coarsest)
    # Infinite where no Gaussian is visible at all: no filter then.
    return torch.where(rates.isfinite(), VARIANCE**0.5 / rates, torch.zeros_like(rates))


class MipFilter:
    """The filter's widths of all Gaussians, which stay until `update`; a checkpoint holds them.

    Args:
        views: the training cameras.
        means: centres of the Gaussians, world units.
    """

    def __init__(self, views: Sequence[View], means: Float[Tensor, "n 3"]) -> None:
        self._views = tuple(views)
        self.widths = filter_widths(means, self._views)

    def update(self, means: Float[Tensor, "n 3"]) -> None:
        """Compute the widths for Gaussians that moved, came or went."""
        self.widths = filter_widths(means, self._views)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the widths."""
        return {"widths": self.widths}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over stored widths, whatever their number."""
        self.widths = state["widths"].to(self.widths.device).clone()
