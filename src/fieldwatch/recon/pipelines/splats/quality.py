"""Scores of a view: similarity of a rendered image and its photo."""

from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.losses import Lpips
from fieldwatch.recon.pipelines.splats.scene import PhotoView
from fieldwatch.recon.render import image_similarity

MIN_ERROR = 1e-10
"""Lower bound of mean squared errors, which limits PSNR to 100 dB."""


@dataclass(frozen=True, kw_only=True)
class ImageScore:
    """Similarity of two images within the mask.

    Attributes:
        psnr: peak signal-to-noise ratio, dB.
        ssim: structural similarity; 1 for identical images.
        l1: mean absolute difference.
    """

    psnr: float
    ssim: float
    l1: float


@dataclass(frozen=True, kw_only=True)
class ViewScore:
    """Scores of one view; those that were not measured are None.

    With exposure compensation, `psnr`, `ssim`, `l1` and `lpips` are of the image after the mean color transform of the
    neighboring training photos.

    Attributes:
        name: name of the photo.
        psnr: PSNR, dB.
        ssim: SSIM.
        l1: mean absolute difference.
        lpips: LPIPS distance.
        ms: render time, milliseconds.
        psnr_as_drawn: PSNR without a color transform, dB; only with exposure compensation.
        psnr_fitted: PSNR after the cross-fitted color transform, dB; only with exposure compensation.
        ssim_fitted: SSIM after the cross-fitted color transform; only with exposure compensation.
    """

    name: str
    psnr: float
    ssim: float
    l1: float
    lpips: float | None
    ms: float
    psnr_as_drawn: float | None
    psnr_fitted: float | None
    ssim_fitted: float | None

    def row(self) -> dict[str, str | float | None]:
        """Return the scores by name, as a table row."""
        return asdict(self)


def clamped(image: Float[Tensor, "height width 3"]) -> Float[Tensor, "height width 3"]:
    """Return an image clamped to [0, 1], as displayed."""
    return image.detach().clamp(0, 1)


def score_image(image: Float[Tensor, "height width 3"], view: PhotoView) -> ImageScore:
    """Compare an image with the photo of a view.

    With a mask, PSNR and L1 are means over its pixels. SSIM is computed on both images times the mask, over all
    windows, so that windows outside the mask count as equal.

    Args:
        image: image in [0, 1].
        view: photo to compare with; its mask, if any, has at least one pixel.
    """
    if view.mask is None:
        error = (image - view.image).square().mean()
        unmasked = image_similarity(image, view.image)
        return _score(error, unmasked.ssim, unmasked.l1)
    # The mask has one channel, the image three.
    weight = view.mask.sum() * 3
    # Divided by the unmasked values, so that the score does not depend on the size of the mask.
    error = ((image - view.image).square() * view.mask).sum() / weight
    l1 = ((image - view.image).abs() * view.mask).sum() / weight
    return _score(error, image_similarity(image * view.mask, view.image * view.mask).ssim, l1)


def perceived_difference(lpips: Lpips, image: Float[Tensor, "height width 3"], view: PhotoView) -> float:
    """Return the LPIPS distance between an image in [0, 1] and the photo, both multiplied by the mask."""
    pair = (image, view.image) if view.mask is None else (image * view.mask, view.image * view.mask)
    return float(lpips(*(each.permute(2, 0, 1)[None] for each in pair)))


def _score(error: Float[Tensor, ""], ssim: Float[Tensor, ""], l1: Float[Tensor, ""]) -> ImageScore:
    psnr = -10 * error.clamp_min(MIN_ERROR).log10()
    # A single transfer to the host for all three.
    return ImageScore(**dict(zip(("psnr", "ssim", "l1"), torch.stack([psnr, ssim, l1]).tolist(), strict=True)))
