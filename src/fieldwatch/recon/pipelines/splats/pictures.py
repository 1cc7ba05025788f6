"""Pictures to judge splats by eye: photo beside rendering and error, depth and normals as colours, sheets of them."""

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

Picture = NDArray[np.uint8]
"""`[height, width, 3]`."""

FULL_SCALE = 0.25
"""Absolute error (of a range of 1) that has the top colour; the same everywhere, so that pictures can be compared."""

COMPARED = ("photo", "drawing", f"error, 0 to {FULL_SCALE:g}")
"""Labels of photo, drawing and `error_picture` beside each other."""

# Anchors of two colour maps, linear in between: errors grow lighter; depths go through the colours, near ones red.
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
    """Turn an image into 8-bit values on the host, clamped to [0, 1]; what is not a number is black."""
    image = image.detach()
    finite = torch.where(image.isfinite(), image, torch.zeros_like(image)).clamp(0, 1)
    return (finite * 255).round().to(torch.uint8).cpu().numpy()


def error_picture(image: Float[Tensor, "height width 3"], photo: Float[Tensor, "height width 3"]) -> Picture:
    """Colour the absolute difference per pixel, the mean of the three channels; `FULL_SCALE` has the top colour."""
    difference = (image.detach().float().cpu() - photo.detach().float().cpu()).abs().mean(-1)
    return _coloured((difference / FULL_SCALE).numpy(), _ERROR)


def depth_bounds(depth: Float[Tensor, "height width"], alpha: Float[Tensor, "height width"]) -> tuple[float, float]:
    """Return the depths between which nearly all of what is seen lies: the 2nd and 98th hundredth of solid pixels."""
    solid = depth[alpha > 0.5]
    if not len(solid):
        return 0.0, 1.0
    ordered = solid.detach().float().sort().values
    low, high = (float(ordered[round(share * (len(ordered) - 1))]) for share in (0.02, 0.98))
    return low, max(high, low + 1e-6 * max(abs(low), 1.0))


def depth_picture(
    depth: Float[Tensor, "height width"],
    alpha: Float[Tensor, "height width"],
    bounds: tuple[float, float] | None = None,
) -> Picture:
    """Colour depths: near red, far violet; over dark paper where little is drawn.

    Args:
        depth: not weighted by alpha.
        alpha: how much of each pixel is drawn.
        bounds: depths of the two end colours; None finds them.
    """
    low, high = bounds or depth_bounds(depth, alpha)
    colours = _coloured(((depth.detach() - low) / (high - low)).float().cpu().numpy(), _DEPTH)
    return _over_background(torch.from_numpy(colours).float() / 255, alpha)


def normal_picture(normals: Float[Tensor, "height width 3"], alpha: Float[Tensor, "height width"]) -> Picture:
    """Colour normals: red to the right, green up, blue towards the camera; over dark paper where little is drawn.

    Args:
        normals: in camera axes (x right, y down, z forward), of any length.
        alpha: how much of each pixel is drawn.
    """
    unit = normals.detach() / normals.detach().norm(dim=-1, keepdim=True).clamp_min(1e-6)
    return _over_background((unit * unit.new_tensor([1.0, -1.0, -1.0]) + 1) / 2, alpha)


def strip(panels: Sequence[Picture], labels: Sequence[str], title: str = "") -> Picture:
    """Put pictures of one size beside each other, a title above and a label below each.

    Raises:
        ValueError: no picture, another number of labels, or pictures of several sizes.
    """
    sizes = {panel.shape for panel in panels}
    if len(sizes) != 1 or len(labels) != len(panels):
        raise ValueError(
            f"{len(panels)} pictures of shapes {sorted(sizes)} with {len(labels)} labels cannot be put beside each "
            "other: give one label for each, and pictures of one size"
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
    """Put strips below each other; narrower ones are padded.

    Raises:
        ValueError: there is none.
    """
    if not rows:
        raise ValueError("a sheet of no pictures was asked for: give at least one row")
    height = sum(len(row) + _GAP for row in rows) - _GAP
    width = max(row.shape[1] for row in rows)
    picture = np.full((height, width, 3), _BACKGROUND, np.uint8)
    top = 0
    for row in rows:
        picture[top : top + len(row), : row.shape[1]] = row
        top += len(row) + _GAP
    return picture


def _coloured(values: NDArray[np.floating], anchors: Sequence[tuple[int, int, int]]) -> Picture:
    """Colours of values in 0 .. 1, clipped outside; what is not a number is bright green."""
    finite = np.isfinite(values)
    position = np.where(finite, values, 0.0).clip(0, 1) * (len(anchors) - 1)
    table = np.asarray(anchors, np.float64)
    channels = [np.interp(position, np.arange(len(anchors)), table[:, channel]) for channel in range(3)]
    picture = np.rint(np.stack(channels, -1)).astype(np.uint8)
    picture[~finite] = (0, 255, 0)
    return picture


def _over_background(colours: Float[Tensor, "height width 3"], alpha: Float[Tensor, "height width"]) -> Picture:
    share = alpha.detach().float().clamp(0, 1).cpu()[..., None]
    return as_picture(colours.float().cpu() * share + (1 - share) * torch.tensor(_BACKGROUND) / 255)


def _write(canvas: Image.Image, corner: tuple[int, int], text: str, width: int) -> None:
    """Write one line; what does not fit is cut."""
    draw = ImageDraw.Draw(canvas)
    font = ImageFont.load_default(size=12)
    while text and draw.textlength(text, font) > width - 4:
        text = text[:-1]
    draw.text((corner[0] + 2, corner[1]), text, fill=_TEXT, font=font)
