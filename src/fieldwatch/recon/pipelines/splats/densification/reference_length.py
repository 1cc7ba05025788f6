"""Reference length of each Gaussian's size thresholds: its distance to the cameras that face it."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.render import View

_PAIRS_AT_ONCE = 1 << 23  # Gaussian-camera pairs per chunk: 32 MiB of distances


@torch.no_grad()
def reference_lengths(means: Float[Tensor, "n 3"], views: Sequence[View], extent: float) -> Float[Tensor, " n"]:
    """Return the reference length of size thresholds: max(extent, distance to the nearest camera that faces it).

    3DGS measures every Gaussian by the extent of the cameras. Around an object, the extent is also the distance of the
    cameras from the object, so that a fraction of it is an angle: 0.1 is a standard deviation of 6 degrees. If the
    cameras are close together and the scene is deep, the extent is much smaller than that distance, and 0.1 of it only
    a few pixels: pruning by it deletes everything far away. Relative to its distance, a Gaussian of a given angular
    size is treated alike at any depth. The extent remains the lower bound: close to a camera every Gaussian has a large
    angular size, and 3DGS's rule applies.

    A camera faces a Gaussian if the center is in front of it. A Gaussian that no camera faces gets the extent.

    Args:
        means: centers, world units.
        views: training cameras.
        extent: extent of the training cameras, world units.
    """
    positions = torch.stack([view.position for view in views]).to(means)
    forward = torch.stack([view.rotation[2] for view in views]).to(means)
    # A center is in front of a camera if <center, forward> exceeds its offset: one matrix product for all pairs.
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
    """Return the distance of each center to the nearest camera that faces it; infinite if no camera does."""
    ahead = means @ forward.T > offsets
    return torch.cdist(means, positions).masked_fill_(~ahead, torch.inf).amin(1)
