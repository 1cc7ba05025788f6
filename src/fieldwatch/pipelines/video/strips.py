"""Pictures to judge a reconstruction by: ground truth, prediction and error side by side."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

ERROR_SCALE = 0.25
"""Absolute error (mean over channels, of a range of 1) shown in the brightest colour."""
_CAPTION = 18
_STOPS = np.array(
    [[0, 0, 4], [66, 10, 104], [147, 38, 103], [221, 81, 58], [252, 165, 10], [252, 255, 164]], np.float64
)
"""A perceptually even ramp from black over red to pale yellow."""


def to_pixels(image: Float[Tensor, "3 height width"]) -> NDArray[np.uint8]:
    """``[height, width, 3]`` 8-bit pixels of an image in [0, 1]; values outside are clamped."""
    return (image.detach().clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()


def error_pixels(
    prediction: Float[Tensor, "3 height width"], truth: Float[Tensor, "3 height width"]
) -> NDArray[np.uint8]:
    """The absolute error as colours: black is none, pale yellow is ``ERROR_SCALE`` and more."""
    share = ((prediction - truth).detach().abs().mean(0) / ERROR_SCALE).clamp(0, 1).cpu().numpy() * (len(_STOPS) - 1)
    low = np.minimum(share.astype(int), len(_STOPS) - 2)
    mix = (share - low)[..., None]
    return np.round(_STOPS[low] * (1 - mix) + _STOPS[low + 1] * mix).astype(np.uint8)


def strip(
    truth: Float[Tensor, "3 height width"], prediction: Float[Tensor, "3 height width"], caption: str = ""
) -> NDArray[np.uint8]:
    """Ground truth | prediction | error, with a caption above."""
    parts = [to_pixels(truth), to_pixels(prediction), error_pixels(prediction, truth)]
    gap = np.full((parts[0].shape[0], 4, 3), 255, np.uint8)
    row = np.concatenate([parts[0], gap, parts[1], gap, parts[2]], axis=1)
    return np.concatenate([_caption(caption, row.shape[1]), row], axis=0)


def sheet(strips: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Strips below each other, padded to the widest.

    Raises:
        ValueError: there is none.
    """
    if not strips:
        raise ValueError("a sheet needs at least one strip: none was given")
    width = max(one.shape[1] for one in strips)
    pad = ((0, 4), (0, 0), (0, 0))
    wide = [np.pad(one, (pad[0], (0, width - one.shape[1]), pad[2]), constant_values=255) for one in strips]
    return np.concatenate(wide, axis=0)


def worst(values: NDArray[np.float64], count: int) -> list[int]:
    """Places of the smallest values, the smallest first."""
    return [int(place) for place in np.argsort(values, kind="stable")[:count]]


def as_bytes(image: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "3 height width"]:
    """An image in [0, 1] as 8-bit values, clamped and rounded."""
    return (image.detach().clamp(0, 1) * 255).round().to(torch.uint8)


def _caption(text: str, width: int) -> NDArray[np.uint8]:
    band = Image.new("RGB", (width, _CAPTION), "white")
    legend = f"{text}   truth | prediction | error (pale = {ERROR_SCALE:g} or more)"
    ImageDraw.Draw(band).text((4, 2), legend, fill="black", font=ImageFont.load_default(12))
    return np.asarray(band)
