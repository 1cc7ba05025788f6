"""How much of the training photos each Gaussian makes up: what no photo shows can go."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.pipelines.splats.bands import splat_in_bands
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.render import View


def largest_share(model: SplatModel, views: Sequence[View], bands: int = 1) -> Float[Tensor, " n"]:
    """Return the light that each Gaussian adds to the photo that shows it most, summed over pixels.

    The sum of the blending weights is the gradient of the drawn sum of a feature that is 1 everywhere; nothing is read
    but pictures drawn as in training. Hidden Gaussians (inside a solid, behind a wall) have none (the visibility of
    RadSplat, Niemeyer 2024, by sums in place of maxima over pixels).

    Args:
        model: what is drawn.
        views: the training cameras.
        bands: number of bands in which each picture is drawn.
    """
    gaussians = model.gaussians
    with torch.no_grad():
        parts = (gaussians.means, gaussians.quaternions, *model.shapes())
    found = gaussians.means.new_zeros(len(gaussians))
    for view in views:
        ones = found.new_ones(len(found), 1).requires_grad_()
        drawn = splat_in_bands(parts, (ones,), view, bands, antialiased=model.antialiased)
        (weights,) = torch.autograd.grad(drawn.features.sum(), ones)
        found = torch.maximum(found, weights[:, 0])
    return found


@torch.no_grad()
def next_to_nothing(light: Float[Tensor, " n"], least: float) -> Bool[Tensor, " n"]:
    """Tell which Gaussians add less than `least`, and less than the mean Gaussian.

    The second bound is needed where there are more Gaussians than pixels: each of them then adds less than a pixel,
    and the photos show little else.

    Args:
        light: of each Gaussian, pixels, as `largest_share` returns it.
        least: light below which a Gaussian may go, pixels.
    """
    mean = float(light.double().cpu().mean()) if len(light) else 0.0  # a sum on a GPU may differ between processes
    return light < min(least, mean) if mean > 0 else light < least
