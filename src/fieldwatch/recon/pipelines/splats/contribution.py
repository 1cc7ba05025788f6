"""How much light each Gaussian adds to the training photos: those that no photo shows can be pruned."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.pipelines.splats.bands import render_in_bands
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.render import View


def largest_contribution(model: SplatModel, views: Sequence[View], bands: int = 1) -> Float[Tensor, " n"]:
    """Return the light that each Gaussian adds to the photo that shows it most, summed over pixels.

    The sum of the blending weights is the gradient of the rendered sum of a feature that is 1 everywhere, so that the
    renderer of the training suffices. Hidden Gaussians (inside a solid, behind a wall) have none (the visibility of
    RadSplat, Niemeyer 2024, by sums in place of maxima over pixels).

    Args:
        model: what is rendered.
        views: the training cameras.
        bands: number of bands in which each image is rendered.
    """
    gaussians = model.gaussians
    with torch.no_grad():
        geometry = (gaussians.means, gaussians.quaternions, *model.shapes())
    largest = gaussians.means.new_zeros(len(gaussians))
    for view in views:
        # The only leaf: geometry has no graph, so `backward` computes nothing but the blending weights.
        ones = largest.new_ones(len(largest), 1).requires_grad_()
        output = render_in_bands(geometry, (ones,), view, bands, antialiased=model.antialiased)
        (weights,) = torch.autograd.grad(output.features.sum(), ones)
        largest = torch.maximum(largest, weights[:, 0])
    return largest


@torch.no_grad()
def contributes_little(light: Float[Tensor, " n"], least: float) -> Bool[Tensor, " n"]:
    """Tell which Gaussians add less than `least`, and less than the mean Gaussian.

    The second bound is needed where there are more Gaussians than pixels: each of them then adds less than a pixel,
    and the photos show little else.

    Args:
        light: of each Gaussian, pixels, as `largest_contribution` returns it.
        least: light below which a Gaussian may go, pixels.
    """
    # Summed on the CPU: a sum on a GPU may differ between processes, and they must prune the same rows.
    mean = float(light.double().cpu().mean()) if len(light) else 0.0
    return light < min(least, mean) if mean > 0 else light < least
