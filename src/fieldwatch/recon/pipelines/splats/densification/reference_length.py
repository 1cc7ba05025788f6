"""What the size of a Gaussian is measured by: how far away from it the cameras stand that look at it."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.render import View

_PAIRS_AT_ONCE = 1 << 23  # of a Gaussian and a camera: 32 MiB of distances


@torch.no_grad()
def reference_lengths(means: Float[Tensor, "n 3"], views: Sequence[View], extent: float) -> Float[Tensor, " n"]:
    """Return the length that thresholds of size refer to: max(extent, distance to the nearest camera that looks at it).

    3DGS measures every Gaussian by the extent of the cameras. Around an object that is also the distance of the cameras
    from what they look at, so that a share of it is an angle: 0.1 is a standard deviation of 6 degrees. Where the
    cameras stand close together and the scene is deep, the extent is a small part of that distance, and 0.1 of it no
    longer than a few pixels: pruning by it deletes whatever lies far away. Measured by its distance, a Gaussian of one
    angular size is judged alike wherever it lies. The extent remains the least length: close to a camera every
    Gaussian is large by its angle, and 3DGS's rule holds there.

    A camera looks at a Gaussian whose center lies in front of it; one that no camera looks at has the extent.

    Args:
        means: centers, world units.
        views: the training cameras.
        extent: of the training cameras, world units.
    """
    positions = torch.stack([view.position for view in views]).to(means)
    forward = torch.stack([view.rotation[2] for view in views]).to(means)
    # A center lies in front of a camera where <center, forward> exceeds this: one matrix product for all pairs.
    offsets = (positions * forward).sum(1)
    rows = max(_PAIRS_AT_ONCE // len(views), 1)
    nearest = [_nearest_distance(chunk, positions, forward, offsets) for chunk in means.split(rows)]
    distances = torch.cat(nearest) if nearest else means.new_zeros(0)
    return torch.where(distances.isfinite(), distances, 0.0).clamp_min(extent)


def _nearest_distance(
    means: Float[Tensor, "n 3"],
    positions: Float[Tensor, "c 3"],
    forward: Float[Tensor, "c 3"],
    offsets: Float[Tensor, " c"],
) -> Float[Tensor, " n"]:
    """Distance to the nearest camera that a center lies in front of; infinite where there is none."""
    ahead = means @ forward.T > offsets
    return torch.cdist(means, positions).masked_fill_(~ahead, torch.inf).amin(1)
