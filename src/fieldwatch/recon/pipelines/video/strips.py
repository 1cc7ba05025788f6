"""Images for visual inspection: ground truth, prediction and error side by side, and sheets of the worst."""

from bisect import bisect_right
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
"""Absolute error (for a data range of 1) of the top color, the same in all strips so that they are comparable."""

# Anchors of a black-violet-orange-cream map whose lightness (CIE L*) increases evenly, interpolated linearly.
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


def color_map(values: NDArray[np.floating]) -> Picture:
    """Map values in [0, 1] to colors with perceptually even steps; others are clipped, NaN is bright green."""
    # NaN would otherwise be interpolated to an arbitrary color.
    finite = np.isfinite(values)
    position = np.where(finite, values, 0.0).clip(0, 1) * (len(_ANCHORS) - 1)
    anchors = np.asarray(_ANCHORS, np.float64)
    channels = [np.interp(position, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    picture = np.rint(np.stack(channels, -1)).astype(np.uint8)
    picture[~finite] = (0, 255, 0)
    return picture


def as_bytes(image: Float[Tensor, "3 height width"]) -> UInt8[Tensor, "3 height width"]:
    """Convert an image in [0, 1] to 8 bits, clipped and rounded; values that are not finite become black."""
    image = image.detach()
    return (torch.where(image.isfinite(), image, 0).clamp(0, 1) * 255).round().to(torch.uint8)


def as_picture(image: Float[Tensor, "3 height width"]) -> Picture:
    """Convert an image in [0, 1] to 8-bit pixels on the host."""
    return as_bytes(image).permute(1, 2, 0).contiguous().cpu().numpy()


def error_picture(
    truth: Float[Tensor, "3 height width"], prediction: Float[Tensor, "3 height width"], *, full_scale: float
) -> Picture:
    """Color the absolute error per pixel (mean of the three channels); ``full_scale`` is the error of the top color."""
    # In float, before rounding to 8 bits, so that small errors remain visible.
    error = (truth.detach().float() - prediction.detach().float()).abs().mean(0).cpu().numpy()
    return color_map(error / full_scale)


def strip(
    truth: Float[Tensor, "3 height width"],
    prediction: Float[Tensor, "3 height width"],
    title: str = "",
    *,
    full_scale: float = FULL_SCALE,
) -> Picture:
    """Draw ground truth | prediction | error, with a caption and the scale of the error.

    Args:
        truth: ground truth in [0, 1].
        prediction: prediction of the same size; values outside [0, 1] are clipped in the image, not in the error.
        title: caption, for example the frame and its PSNR.
        full_scale: absolute error of the top color; keep it constant over a run, so that strips are comparable.

    Raises:
        ValueError: the images differ in size, or the scale is not positive.
    """
    # Broadcasting would hide a wrong shape.
    if truth.shape != prediction.shape:
        msg = f"truth and prediction must have the same size, got {tuple(truth.shape)} and {tuple(prediction.shape)}"
        raise ValueError(msg)
    if not 0 < full_scale < float("inf"):
        msg = f"full_scale must be finite and greater than 0, e.g. 0.2, got {full_scale}"
        raise ValueError(msg)
    error = error_picture(truth, prediction, full_scale=full_scale)
    panels = [as_picture(truth), as_picture(prediction), error]
    height, width = panels[0].shape[:2]
    canvas = Image.new("RGB", (3 * width + 2 * _GAP, height + 2 * _LINE), _PAPER)
    for column, panel in enumerate(panels):
        canvas.paste(Image.fromarray(panel), (column * (width + _GAP), _LINE))
    _write(canvas, (0, 1), title, width=canvas.width)
    for column, label in enumerate(("ground truth" if width >= 96 else "truth", "prediction")):
        _write(canvas, (column * (width + _GAP), height + _LINE + 1), label, width=width)
    _scale(canvas, (2 * (width + _GAP), height + _LINE), width, full_scale)
    return np.asarray(canvas)


def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size=12)


def _write(canvas: Image.Image, corner: tuple[int, int], text: str, *, width: int) -> None:
    """Draw a line of text, truncated to the given width."""
    draw = ImageDraw.Draw(canvas)
    font = _font()
    # Bisection: to measure a text takes longer than to draw it.
    fitting = bisect_right(range(1, len(text) + 1), width - 4, key=lambda count: draw.textlength(text[:count], font))
    draw.text((corner[0] + 2, corner[1]), text[:fitting], fill=_INK, font=font)


def _scale(canvas: Image.Image, corner: tuple[int, int], width: int, full_scale: float) -> None:
    """Draw the color bar with labels at both ends: `error 0 [bar] 0.2`."""
    draw = ImageDraw.Draw(canvas)
    font = _font()
    left = "|error| 0" if width >= 120 else "0"
    right = f"{full_scale:g}"
    start = int(draw.textlength(left, font)) + 6
    end = width - int(draw.textlength(right, font)) - 6
    # Too narrow for a readable bar.
    if end - start < 8:
        return
    _write(canvas, (corner[0], corner[1] + 1), left, width=width)
    bar = np.broadcast_to(np.linspace(0, 1, end - start), (_LINE - 8, end - start))
    canvas.paste(Image.fromarray(color_map(bar)), (corner[0] + start, corner[1] + 4))
    draw.text((corner[0] + end + 3, corner[1] + 1), right, fill=_INK, font=font)


def worst(values: NDArray[np.float64], count: int) -> list[int]:
    """Return the indices of the smallest values, smallest first; NaN counts as the smallest."""
    return [int(index) for index in np.argsort(np.where(np.isnan(values), -np.inf, values), kind="stable")[:count]]


def sheet(strips: Sequence[Picture], columns: int = 1) -> Picture:
    """Arrange strips in rows of ``columns``; smaller strips are padded to the largest.

    Raises:
        ValueError: there are no strips, or columns is below 1.
    """
    if not strips or columns < 1:
        msg = f"a sheet needs at least one strip and one column, got {len(strips)} strips and {columns} columns"
        raise ValueError(msg)
    # No empty columns if there are few strips.
    columns = min(columns, len(strips))
    height, width = (max(strip_picture.shape[axis] for strip_picture in strips) for axis in (0, 1))
    rows = -(-len(strips) // columns)
    row_height = height + _GAP
    column_width = width + 2 * _GAP
    picture = np.full((rows * row_height - _GAP, columns * column_width - 2 * _GAP, 3), _PAPER, np.uint8)
    for i, strip_picture in enumerate(strips):
        top = i // columns * row_height
        left = i % columns * column_width
        picture[top : top + strip_picture.shape[0], left : left + strip_picture.shape[1]] = strip_picture
    return picture


@dataclass(frozen=True, kw_only=True)
class SheetEntry:
    """A candidate for a sheet: a whole frame or a patch.

    Attributes:
        truth: ground truth in [0, 1].
        prediction: prediction of the same size.
        psnr: PSNR in dB, by which the sheet is sorted.
        label: label, for example `frame 12 (val)` or `frame 12, patch 3`.
    """

    truth: Float[Tensor, "3 height width"]
    prediction: Float[Tensor, "3 height width"]
    psnr: float
    label: str


def worst_sheet(
    entries: Sequence[SheetEntry], *, count: int = 8, columns: int = 1, full_scale: float = FULL_SCALE
) -> Picture:
    """Draw strips of the worst candidates, worst first, row by row.

    Raises:
        ValueError: there are no candidates, or count or columns is below 1.
    """
    order = worst(np.array([item.psnr for item in entries], np.float64), max(count, 0))
    strips = [
        strip(item.truth, item.prediction, f"{item.label}: {item.psnr:.2f} dB", full_scale=full_scale)
        for item in (entries[index] for index in order)
    ]
    return sheet(strips, columns)
