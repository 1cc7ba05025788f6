"""How much of the training photos each Gaussian makes up: what no photo shows can go."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.pipelines.splats.bands import splat_in_bands
from fieldwatch.pipelines.splats.model import SplatModel
from fieldwatch.render import View


def largest_share(model: SplatModel, views: Sequence[View]) -> Float[Tensor, " n"]:
    """Return the light that each Gaussian adds to the photo that shows it most, summed over pixels.

    The sum of the blending weights is the gradient of the drawn sum of a feature that is 1 everywhere; nothing is read
    but pictures drawn as in training. Hidden Gaussians (inside a solid, behind a wall) have none (the visibility of
    RadSplat, Niemeyer 2024, by sums in place of maxima over pixels).

    Args:
        model: what is drawn.
        views: the training cameras.
    """
    gaussians = model.gaussians
    with torch.no_grad():
        parts = (gaussians.means, gaussians.quaternions, *model.shapes())
    found = gaussians.means.new_zeros(len(gaussians))
    for view in views:
        ones = found.new_ones(len(found), 1).requires_grad_()
        drawn = splat_in_bands(parts, (ones,), view, model.bands, compensated=model.antialiased)
        (weights,) = torch.autograd.grad(drawn.features.sum(), ones)
        found = torch.maximum(found, weights[:, 0])
    return found
