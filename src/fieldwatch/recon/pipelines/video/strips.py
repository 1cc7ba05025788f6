"""Pictures to judge a reconstruction by eye: truth, prediction and error side by side, and the worst of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, UInt8
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

Picture = NDArray[np.uint8]
"""`[height, width, 3]`."""

FULL_SCALE = 0.25
"""Absolute error (of a range of 1) that is shown in the top colour; the same everywhere, so that strips compare."""

# Anchors of a black-violet-orange-cream map whose lightness (CIE L*) rises evenly; between them it is linear.
_ANCHORS = (
    (0, 0, 4),
    (31, 12, 72),
    (85, 15, 109),
    (136, 34, 106),
    (186, 54, 85),
    (227, 89, 51),
    (249, 140, 10),
    (249, 201, 50),
    (252, 255, 164),
)
_PAPER = (24, 24, 28)
_INK = (232, 232, 232)
_GAP = 4
_LINE = 18


def colour_map(values: NDArray[np.floating]) -> Picture:
    """Colour values of 0 .. 1 so that equal steps look equal; clipped outside, NaN is bright green."""
    finite = np.isfinite(values)
    position = np.where(finite, values, 0.0).clip(0, 1) * (len(_ANCHORS) - 1)
    anchors = np.asarray(_ANCHORS, np.float64)
    channels = [np.interp(position, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    picture = np.rint(np.stack(channels, -1)).astype(np.uint8)
    picture[~finite] = (0, 255, 0)
    return picture


def as_bytes(image: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "3 height width"]:
    """Turn an image in [0, 1] into 8-bit values, clipped and rounded; what is not a number is black."""
    image = image.detach()
    return (torch.where(image.isfinite(), image, 0).clamp(0, 1) * 255).round().to(torch.uint8)


def as_picture(image: Float[Tensor, "3 height width"]) -> Picture:
    """Turn an image in [0, 1] into a picture on the host."""
    return as_bytes(image).permute(1, 2, 0).contiguous().cpu().numpy()


def error_picture(
    truth: Float[Tensor, "3 height width"], prediction: Float[Tensor, "3 height width"], *, full_scale: float
) -> Picture:
    """Colour the absolute error per pixel (mean of the three channels); `full_scale` is the error of the top colour."""
    error = (truth.detach().float() - prediction.detach().float()).abs().mean(0).cpu().numpy()
    return colour_map(error / full_scale)


def strip(
    truth: Float[Tensor, "3 height width"],
    prediction: Float[Tensor, "3 height width"],
    title: str = "",
    *,
    full_scale: float = FULL_SCALE,
) -> Picture:
    """Ground truth | prediction | error, with a caption and the error's scale.

    Args:
        truth: in [0, 1].
        prediction: of the same size; values outside [0, 1] are clipped in the picture, not in the error.
        title: caption, for example the frame and its PSNR.
        full_scale: absolute error that gets the top colour; the same over a run, so that strips can be compared.

    Raises:
        ValueError: the images differ in size, or the scale is not positive.
    """
    if truth.shape != prediction.shape:
        msg = f"truth is {tuple(truth.shape)}, prediction {tuple(prediction.shape)}: draw images of one size"
        raise ValueError(msg)
    if not 0 < full_scale < float("inf"):
        msg = f"full_scale is {full_scale}, it must be a positive error, for example 0.2"
        raise ValueError(msg)
    error = error_picture(truth, prediction, full_scale=full_scale)
    panels = [as_picture(truth), as_picture(prediction), error]
    height, width = panels[0].shape[:2]
    canvas = Image.new("RGB", (3 * width + 2 * _GAP, height + 2 * _LINE), _PAPER)
    for place, panel in enumerate(panels):
        canvas.paste(Image.fromarray(panel), (place * (width + _GAP), _LINE))
    _write(canvas, (0, 1), title, width=canvas.width)
    for place, label in enumerate(("ground truth" if width >= 96 else "truth", "prediction")):
        _write(canvas, (place * (width + _GAP), height + _LINE + 1), label, width=width)
    _scale(canvas, (2 * (width + _GAP), height + _LINE), width, full_scale)
    return np.asarray(canvas)


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=12)


def _write(canvas: Image.Image, corner: tuple[int, int], text: str, *, width: int) -> None:
    """Write one line; shorten what does not fit."""
    draw = ImageDraw.Draw(canvas)
    font = _font()
    while text and draw.textlength(text, font) > width - 4:
        text = text[:-1]
    draw.text((corner[0] + 2, corner[1]), text, fill=_INK, font=font)


def _scale(canvas: Image.Image, corner: tuple[int, int], width: int, full_scale: float) -> None:
    """Draw the colour bar with its two ends named: `error 0 [bar] 0.2`."""
    draw = ImageDraw.Draw(canvas)
    font = _font()
    left = "|error| 0" if width >= 120 else "0"
    right = f"{full_scale:g}"
    start = int(draw.textlength(left, font)) + 6
    end = width - int(draw.textlength(right, font)) - 6
    if end - start < 8:
        return
    _write(canvas, (corner[0], corner[1] + 1), left, width=width)
    bar = np.broadcast_to(np.linspace(0, 1, end - start), (_LINE - 8, end - start))
    canvas.paste(Image.fromarray(colour_map(bar)), (corner[0] + start, corner[1] + 4))
    draw.text((corner[0] + end + 3, corner[1] + 1), right, fill=_INK, font=font)


def worst(values: NDArray[np.float64], count: int) -> list[int]:
    """Places of the smallest values, the smallest first; what is not a number is worst of all."""
    return [int(place) for place in np.argsort(np.where(np.isnan(values), -np.inf, values), kind="stable")[:count]]


def sheet(strips: Sequence[Picture], columns: int = 1) -> Picture:
    """Strips in rows of `columns`; smaller ones are padded to the largest.

    Raises:
        ValueError: there is none, or columns is below 1.
    """
    if not strips or columns < 1:
        msg = f"a sheet of {len(strips)} strips in {columns} columns: give at least one strip, columns of at least 1"
        raise ValueError(msg)
    columns = min(columns, len(strips))
    height, width = (max(strip_picture.shape[axis] for strip_picture in strips) for axis in (0, 1))
    rows = -(-len(strips) // columns)
    down = height + _GAP
    across = width + 2 * _GAP
    picture = np.full((rows * down - _GAP, columns * across - 2 * _GAP, 3), _PAPER, np.uint8)
    for i, strip_picture in enumerate(strips):
        top = i // columns * down
        left = i % columns * across
        picture[top : top + strip_picture.shape[0], left : left + strip_picture.shape[1]] = strip_picture
    return picture


@dataclass(frozen=True, kw_only=True)
class SheetEntry:
    """One candidate of a sheet: a whole frame or a patch.

    Attributes:
        truth: in [0, 1].
        prediction: of the same size.
        psnr: dB; the sheet is sorted by it.
        label: for example `frame 12 (val)` or `frame 12, patch 3`.
    """

    truth: Float[Tensor, "3 height width"]
    prediction: Float[Tensor, "3 height width"]
    psnr: float
    label: str


def worst_sheet(
    entries: Sequence[SheetEntry], *, count: int = 8, columns: int = 1, full_scale: float = FULL_SCALE
) -> Picture:
    """Strips of the worst of the candidates, worst first, row by row.

    Raises:
        ValueError: there is no candidate, or count or columns is below 1.
    """
    order = worst(np.array([item.psnr for item in entries], np.float64), max(count, 0))
    strips = [
        strip(item.truth, item.prediction, f"{item.label}: {item.psnr:.2f} dB", full_scale=full_scale)
        for item in (entries[place] for place in order)
    ]
    return sheet(strips, columns)
