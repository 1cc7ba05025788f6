"""The scores of one view: similarity of a rendered image and a photo."""

from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.losses import Lpips
from fieldwatch.recon.pipelines.splats.scene import PhotoView
from fieldwatch.recon.render import image_similarity

MIN_ERROR = 1e-10
"""Lower bound of mean squared errors: PSNR is at most 100 dB."""


@dataclass(frozen=True, kw_only=True)
class ImageScore:
    """Similarity of two images, in the pixels that count.

    Attributes:
        psnr: dB.
        ssim: 1 is perfect.
        l1: mean absolute difference.
    """

    psnr: float
    ssim: float
    l1: float


@dataclass(frozen=True, kw_only=True)
class ViewScore:
    """The scores of one view. What was not measured is None.

    Attributes:
        name: of the photo.
        psnr: dB; with exposure compensation, of the image under the colour map of the training photos beside it.
        ssim: of the same.
        l1: of the same.
        lpips: of the same.
        ms: to render it, milliseconds.
        psnr_as_drawn: dB, without any colour map; only with exposure compensation.
        psnr_fitted: dB, under the cross-fitted colour map.
        ssim_fitted: of the same.
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
        """Return the values by name, as a row of a table."""
        return asdict(self)


def clamped(image: Float[Tensor, "height width 3"]) -> Float[Tensor, "height width 3"]:
    """Return an image with values in [0, 1], as a screen shows it."""
    return image.detach().clamp(0, 1)


def score_image(image: Float[Tensor, "height width 3"], view: PhotoView) -> ImageScore:
    """Compare an image with the photo of a view. With a mask, PSNR and L1 are means over its pixels.

    SSIM is that of both images times the mask, over all windows: those outside count as equal.

    Args:
        image: values in [0, 1].
        view: the photo; its mask has one pixel or more.
    """
    if view.mask is None:
        error = (image - view.image).square().mean()
        unmasked = image_similarity(image, view.image)
        return _score(error, unmasked.ssim, unmasked.l1)
    weight = view.mask.sum() * 3
    error = ((image - view.image).square() * view.mask).sum() / weight
    l1 = ((image - view.image).abs() * view.mask).sum() / weight
    return _score(error, image_similarity(image * view.mask, view.image * view.mask).ssim, l1)


def perceived_difference(lpips: Lpips, image: Float[Tensor, "height width 3"], view: PhotoView) -> float:
    """Return the LPIPS distance of an image in [0, 1] from the photo, both times the mask."""
    pair = (image, view.image) if view.mask is None else (image * view.mask, view.image * view.mask)
    return float(lpips(*(each.permute(2, 0, 1)[None] for each in pair)))


def _score(error: Float[Tensor, ""], ssim: Float[Tensor, ""], l1: Float[Tensor, ""]) -> ImageScore:
    psnr = -10 * error.clamp_min(MIN_ERROR).log10()
    # One transfer to the host for all three.
    return ImageScore(**dict(zip(("psnr", "ssim", "l1"), torch.stack([psnr, ssim, l1]).tolist(), strict=True)))
