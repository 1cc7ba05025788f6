"""Losses: one error term per function."""

from fieldwatch.losses.fusion import PIXEL_LOSSES, PixelLoss, frequency_error, pixel_loss
from fieldwatch.losses.pixel import l1, l2
from fieldwatch.losses.semantic import cosine, cosine_error
from fieldwatch.losses.structural import SCALE_WEIGHTS, ms_ssim, ms_ssim_window, ssim

__all__ = [
    "PIXEL_LOSSES",
    "SCALE_WEIGHTS",
    "PixelLoss",
    "cosine",
    "cosine_error",
    "frequency_error",
    "l1",
    "l2",
    "ms_ssim",
    "ms_ssim_window",
    "pixel_loss",
    "ssim",
]
