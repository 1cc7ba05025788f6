"""Named pixel losses of neural video representations: L1, L2, SSIM and the weighted sums `Fusion1` to `Fusion12`."""

import difflib
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.recon.losses.pixel import l1, l2
from fieldwatch.recon.losses.structural import ms_ssim, ssim


@dataclass(frozen=True, kw_only=True)
class PixelLoss:
    """Weighted sum of pixel and structural errors of images in [0, 1]. Terms with weight 0 are not computed.

    Attributes:
        name: name of the loss on the command line.
        l1: weight of the mean absolute error.
        l2: weight of the mean squared error.
        ssim: weight of 1 - SSIM.
        ms_ssim: weight of 1 - MS-SSIM; see `ms_ssim_window` for images of 160 pixels or less.
        frequency: weight of the mean absolute error of the discrete Fourier transform.
    """

    name: str
    l1: float = 0.0
    l2: float = 0.0
    ssim: float = 0.0
    ms_ssim: float = 0.0
    frequency: float = 0.0

    def __call__(
        self, prediction: Float[Tensor, "batch channels h w"], target: Float[Tensor, "batch channels h w"]
    ) -> Float[Tensor, ""]:
        """Compute the loss of a batch."""
        # Zero terms are skipped, because MS-SSIM raises errors for small patches.
        parts: list[Tensor] = []
        if self.l1:
            parts.append(self.l1 * l1(prediction, target))
        if self.l2:
            parts.append(self.l2 * l2(prediction, target))
        if self.ssim:
            parts.append(self.ssim * (1 - ssim(prediction, target).mean()))
        if self.ms_ssim:
            parts.append(self.ms_ssim * (1 - ms_ssim(prediction, target).mean()))
        if self.frequency:
            parts.append(self.frequency * frequency_error(prediction, target))
        return sum(parts[1:], parts[0]) if parts else prediction.new_zeros(())


def frequency_error(
    prediction: Float[Tensor, "batch channels h w"], target: Float[Tensor, "batch channels h w"]
) -> Float[Tensor, ""]:
    """Return the mean absolute difference of the unnormalized Fourier transforms, over real and imaginary parts.

    From Boosting NeRV, Zhang et al. 2024.
    """
    # The transform is linear, so a single transform of the difference suffices.
    return torch.view_as_real(torch.fft.fft2(prediction - target)).abs().mean()


PIXEL_LOSSES: dict[str, PixelLoss] = {
    loss.name: loss
    for loss in (
        PixelLoss(name="L1", l1=1.0),
        PixelLoss(name="L2", l2=1.0),
        PixelLoss(name="SSIM", ssim=1.0),
        PixelLoss(name="Fusion1", l2=0.3, ssim=0.7),
        PixelLoss(name="Fusion2", l1=0.3, ssim=0.7),
        PixelLoss(name="Fusion3", l2=0.5, ssim=0.5),
        PixelLoss(name="Fusion4", l1=0.5, ssim=0.5),
        PixelLoss(name="Fusion5", l2=0.7, ssim=0.3),
        PixelLoss(name="Fusion6", l1=0.7, ssim=0.3),
        PixelLoss(name="Fusion7", l2=0.7, l1=0.3),
        PixelLoss(name="Fusion8", l2=0.5, l1=0.5),
        PixelLoss(name="Fusion9", l1=0.9, ssim=0.1),
        PixelLoss(name="Fusion10", l1=0.7, ms_ssim=0.3),
        PixelLoss(name="Fusion11", l1=0.9, ms_ssim=0.1),
        PixelLoss(name="Fusion12", l1=0.8, ms_ssim=0.2),
        # 60 x Fusion10, since the unnormalized transform is much larger than the pixel errors.
        PixelLoss(name="Fusion10_freq", l1=42.0, ms_ssim=18.0, frequency=1.0),
    )
}
"""All named losses as defined by HNeRV; `Fusion10_freq` (60 x Fusion10 + frequency error) is from Boosting NeRV."""


def pixel_loss(name: str) -> PixelLoss:
    """Return the loss with the given name.

    Raises:
        InputError: if the name is unknown. The message lists all names and suggests the closest one.
    """
    if name in PIXEL_LOSSES:
        return PIXEL_LOSSES[name]
    # Lower case on both sides makes "fusion6" match "Fusion6".
    by_lower = {known.lower(): known for known in PIXEL_LOSSES}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
    hint = f". Did you mean {by_lower[near[0]]}?" if near else ""
    raise InputError(f"expected --loss to be one of {', '.join(PIXEL_LOSSES)}, got {name!r}{hint}")
