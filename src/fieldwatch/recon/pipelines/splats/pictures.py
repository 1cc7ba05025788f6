"""Pictures for visual inspection: photo next to rendering and error, depth and normals as colors, contact sheets."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

Picture = NDArray[np.uint8]
"""8-bit RGB image, shape (height, width, 3)."""

FULL_SCALE = 0.25
"""Absolute error, for values in [0, 1], at the end of the color scale; fixed, so that pictures are comparable."""

COMPARED = ("photo", "rendering", f"error, 0 to {FULL_SCALE:g}")
"""Labels of a row of photo, rendering and `error_picture`."""

# Anchors of two color maps with linear interpolation: errors from dark to light, depths from red (near) to violet.
_ERROR = ((0, 0, 0), (40, 11, 84), (110, 25, 110), (176, 45, 92), (226, 93, 47), (250, 160, 20), (252, 250, 170))
_DEPTH = (
    (122, 8, 6),
    (214, 52, 12),
    (250, 130, 36),
    (226, 200, 52),
    (140, 244, 72),
    (40, 220, 160),
    (52, 160, 250),
    (64, 84, 200),
    (48, 22, 62),
)
_BACKGROUND = (24, 24, 28)
_TEXT = (232, 232, 232)
_GAP = 4
_LINE = 18


def as_picture(image: Float[Tensor, "height width 3"]) -> Picture:
    """Convert an image in [0, 1] to 8 bits on the host; values are clamped, non-finite ones are black."""
    image = image.detach()
    finite = torch.where(image.isfinite(), image, torch.zeros_like(image)).clamp(0, 1)
    return (finite * 255).round().to(torch.uint8).cpu().numpy()


def error_picture(image: Float[Tensor, "height width 3"], photo: Float[Tensor, "height width 3"]) -> Picture:
    """Return the absolute difference per pixel, averaged over channels, as colors from 0 to `FULL_SCALE`."""
    difference = (image.detach().float().cpu() - photo.detach().float().cpu()).abs().mean(-1)
    return _colored((difference / FULL_SCALE).numpy(), _ERROR)


def depth_bounds(depth: Float[Tensor, "height width"], alpha: Float[Tensor, "height width"]) -> tuple[float, float]:
    """Return the 2nd and 98th percentile of the depths of opaque pixels."""
    solid = depth[alpha > 0.5]
    if not len(solid):
        return 0.0, 1.0
    ordered = solid.detach().float().sort().values
    low, high = (float(ordered[round(share * (len(ordered) - 1))]) for share in (0.02, 0.98))
    # A minimum range, so that a view of constant depth does not divide by zero.
    return low, max(high, low + 1e-6 * max(abs(low), 1.0))


def depth_picture(
    depth: Float[Tensor, "height width"],
    alpha: Float[Tensor, "height width"],
    bounds: tuple[float, float] | None = None,
) -> Picture:
    """Return depths as colors from red (near) to violet (far), over a dark background where alpha is low.

    Args:
        depth: depth per pixel, not weighted by alpha.
        alpha: opacity per pixel.
        bounds: depths at the two ends of the color scale; None derives them from the depths.
    """
    low, high = bounds or depth_bounds(depth, alpha)
    colors = _colored(((depth.detach() - low) / (high - low)).float().cpu().numpy(), _DEPTH)
    return _over_background(torch.from_numpy(colors).float() / 255, alpha)


def normal_picture(normals: Float[Tensor, "height width 3"], alpha: Float[Tensor, "height width"]) -> Picture:
    """Return normals as colors: red to the right, green up, blue toward the camera; dark where alpha is low.

    Args:
        normals: normals in camera axes (x right, y down, z forward), of any length.
        alpha: opacity per pixel.
    """
    # Blended normals are shorter than 1 where alpha is low or Gaussians disagree.
    unit = normals.detach() / normals.detach().norm(dim=-1, keepdim=True).clamp_min(1e-6)
    # Camera axes are y down and z forward: flipped, so that colors follow the usual convention y up, z toward the
    # viewer.
    return _over_background((unit * unit.new_tensor([1.0, -1.0, -1.0]) + 1) / 2, alpha)


def strip(panels: Sequence[Picture], labels: Sequence[str], title: str = "") -> Picture:
    """Arrange pictures of one size in a row, with a title above and a label below each picture.

    Raises:
        ValueError: There are no pictures, the number of labels differs, or the pictures have different sizes.
    """
    sizes = {panel.shape for panel in panels}
    if len(sizes) != 1 or len(labels) != len(panels):
        raise ValueError(
            "expected pictures of one size with one label each, got "
            f"{len(panels)} pictures of shapes {sorted(sizes)} with {len(labels)} labels"
        )
    height, width = panels[0].shape[:2]
    above = _LINE if title else 0
    canvas = Image.new("RGB", (len(panels) * (width + _GAP) - _GAP, above + height + _LINE), _BACKGROUND)
    _write(canvas, (0, 1), title, canvas.width)
    for number, (panel, label) in enumerate(zip(panels, labels, strict=True)):
        left = number * (width + _GAP)
        canvas.paste(Image.fromarray(panel), (left, above))
        _write(canvas, (left, above + height + 1), label, width)
    return np.asarray(canvas)


def sheet(rows: Sequence[Picture]) -> Picture:
    """Stack rows of pictures vertically; narrower rows are padded.

    Raises:
        ValueError: There are no rows.
    """
    if not rows:
        raise ValueError("a sheet cannot have no pictures: give at least one row")
    height = sum(len(row) + _GAP for row in rows) - _GAP
    width = max(row.shape[1] for row in rows)
    picture = np.full((height, width, 3), _BACKGROUND, np.uint8)
    top = 0
    for row in rows:
        picture[top : top + len(row), : row.shape[1]] = row
        top += len(row) + _GAP
    return picture


def _colored(values: NDArray[np.floating], anchors: Sequence[tuple[int, int, int]]) -> Picture:
    """Map values in [0, 1], clipped outside, to colors; non-finite values are bright green."""
    finite = np.isfinite(values)
    position = np.where(finite, values, 0.0).clip(0, 1) * (len(anchors) - 1)
    table = np.asarray(anchors, np.float64)
    channels = [np.interp(position, np.arange(len(anchors)), table[:, channel]) for channel in range(3)]
    picture = np.rint(np.stack(channels, -1)).astype(np.uint8)
    picture[~finite] = (0, 255, 0)
    return picture


def _over_background(colors: Float[Tensor, "height width 3"], alpha: Float[Tensor, "height width"]) -> Picture:
    weight = alpha.detach().float().clamp(0, 1).cpu()[..., None]
    return as_picture(colors.float().cpu() * weight + (1 - weight) * torch.tensor(_BACKGROUND) / 255)


def _write(canvas: Image.Image, corner: tuple[int, int], text: str, width: int) -> None:
    """Draw one line of text, truncated to the width."""
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(size=12)
    # Drop characters from the end until the text fits.
    while text and draw.textlength(text, font) > width - 4:
        text = text[:-1]
    draw.text((corner[0] + 2, corner[1]), text, fill=_TEXT, font=font)
