"""How alike a drawn image and a photo are: the scores of one view."""

from dataclasses import asdict, dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.losses import Lpips
from fieldwatch.recon.pipelines.splats.scene import PhotoView
from fieldwatch.recon.render import image_similarity

LEAST_ERROR = 1e-10
"""Mean squared errors below it count as it: 100 dB is as good as it gets."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """How alike two images are, in the part of them that counts.

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
        ms: to draw it, milliseconds.
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
        """Return the values by their names, as a table has them."""
        return asdict(self)


def clamped(image: Float[Tensor, "height width 3"]) -> Float[Tensor, "height width 3"]:
    """Return what a screen can show: values in [0, 1]."""
    return image.detach().clamp(0, 1)


def score_image(image: Float[Tensor, "height width 3"], view: PhotoView) -> Score:
    """Compare an image with the photo of a view. With a mask, PSNR and L1 are means over its pixels.

    SSIM is that of both images times the mask, over all windows: those outside count as equal.

    Args:
        image: values in [0, 1].
        view: the photo; its mask has one pixel or more.
    """
    if view.mask is None:
        error = (image - view.image).square().mean()
        alike = image_similarity(image, view.image)
        return _score(error, alike.ssim, alike.l1)
    weight = view.mask.sum() * 3
    error = ((image - view.image).square() * view.mask).sum() / weight
    l1 = ((image - view.image).abs() * view.mask).sum() / weight
    return _score(error, image_similarity(image * view.mask, view.image * view.mask).ssim, l1)


def perceived_difference(lpips: Lpips, image: Float[Tensor, "height width 3"], view: PhotoView) -> float:
    """Return the LPIPS distance of an image in [0, 1] from the photo, both times the mask."""
    pair = (image, view.image) if view.mask is None else (image * view.mask, view.image * view.mask)
    return float(lpips(*(one.permute(2, 0, 1)[None] for one in pair)))


def _score(error: Float[Tensor, ""], ssim: Float[Tensor, ""], l1: Float[Tensor, ""]) -> Score:
    psnr = -10 * error.clamp_min(LEAST_ERROR).log10()
    return Score(**dict(zip(("psnr", "ssim", "l1"), torch.stack([psnr, ssim, l1]).tolist(), strict=True)))
