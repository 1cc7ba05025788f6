"""Contribution of each Gaussian to the training photos, for pruning Gaussians that no photo shows."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.pipelines.splats.bands import render_in_bands
from fieldwatch.recon.pipelines.splats.model import SplatModel
from fieldwatch.recon.render import View


def contributions(model: SplatModel, view: View, bands: int = 1) -> Float[Tensor, " n"]:
    """Return each Gaussian's contribution to a photo: its blending weights summed over pixels.

    The sum of the blending weights is the gradient of the summed rendering of a feature that is 1 everywhere, so that
    the training renderer can be used. Occluded Gaussians (inside a solid, behind a wall) contribute nothing. This is
    the visibility of RadSplat (Niemeyer 2024) with sums instead of maxima over pixels.

    Args:
        model: model to render.
        view: training camera.
        bands: number of bands in which the image is rendered.
    """
    gaussians = model.gaussians
    with torch.no_grad():
        geometry = (gaussians.means, gaussians.quaternions, *model.shapes())
    # The only leaf: geometry requires no gradient, so `backward` computes only the blending weights.
    ones = gaussians.means.new_ones(len(gaussians), 1).requires_grad_()
    # With the filter of training, which changes the blending weights.
    output = render_in_bands(geometry, (ones,), view, bands, antialiased=model.antialiased)
    (weights,) = torch.autograd.grad(output.features.sum(), ones)
    return weights[:, 0]


@torch.no_grad()
def contributes_little(light: Float[Tensor, " n"], least: float) -> Bool[Tensor, " n"]:
    """Return a mask of the Gaussians that contribute less than `least` and less than the mean.

    The second bound matters if there are more Gaussians than pixels: then each contributes less than a pixel although
    together they make up the photos.

    Args:
        light: contribution of each Gaussian, pixels: the largest to any photo.
        least: minimum contribution, pixels.
    """
    # Summed on the CPU: GPU sums may differ between ranks, which must prune the same rows.
    mean = float(light.double().cpu().mean()) if len(light) else 0.0
    return light < min(least, mean) if mean > 0 else light < least
