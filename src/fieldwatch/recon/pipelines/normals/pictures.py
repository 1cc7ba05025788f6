"""Images of normals, depth and errors, blank outside the silhouette, and strips and sheets of them."""

import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fieldwatch.files import whole_file
from fieldwatch.recon.mesh import error_ramp
from fieldwatch.recon.pipelines.normals.view_errors import ViewComparison

FULL_SCALE = 20.0
"""Error angle of the top color in degrees, the same in all images so that they are comparable (as in SuperNormal)."""

Picture = UInt8[np.ndarray, "height width 3"]

_PAPER = (24, 25, 29)
_INK = (236, 236, 236)
_FAINT = (150, 152, 158)
# Mask pixels without a rendered surface; rendered pixels outside the mask.
_MISSED = (255, 64, 160)
_EXTRA = (92, 94, 102)
_GAP = 6
_LINE = 20
_ROOM = 0.06


def normal_colors(normals: Float[Tensor, "height width 3"]) -> UInt8[np.ndarray, "height width 3"]:
    """Encode normals as PMNI does: 128 n + 128 in OpenGL axes (x right, y up, z toward the viewer).

    Args:
        normals: normals in OpenCV camera axes; a zero vector becomes gray (128).
    """
    # OpenCV axes differ from OpenGL axes by the signs of y and z.
    coded = normals.detach().cpu() * torch.tensor([128.0, -128.0, -128.0]) + 128
    return coded.round().clamp(0, 255).byte().numpy()


def depth_colors(
    depth: Float[Tensor, "height width"], mask: Bool[Tensor, "height width"]
) -> UInt8[np.ndarray, "height width 3"]:
    """Color depth from light (near) to dark (far) over the depth range of the mask; gray outside."""
    picture = np.full((*depth.shape, 3), 128, np.uint8)
    if not bool(mask.any()):
        return picture
    inside = mask.cpu().numpy()
    values = depth.detach().cpu().double().numpy()[inside]
    low = values.min()
    high = values.max()
    # The lower bound of the range avoids a division by 0 if the depth is constant.
    picture[inside] = error_ramp(1 - (values - low) / max(high - low, 1e-12))
    return picture


def error_colors(comparison: ViewComparison) -> UInt8[np.ndarray, "height width 3"]:
    """Color angles up to 20 degrees; pink is missed, light gray is rendered outside the mask, dark is neither."""
    picture = np.full((*comparison.view.size, 3), _PAPER, np.uint8)
    mask = comparison.view.mask.numpy()
    rendered_mask = comparison.rendered.mask.numpy()
    picture[rendered_mask & ~mask] = _EXTRA
    picture[mask & ~rendered_mask] = _MISSED
    angles = comparison.angles.numpy()
    known = np.isfinite(angles)
    picture[known] = error_ramp(angles[known].astype(np.float64) / FULL_SCALE)
    return picture


def save_cut_out(path: Path, picture: Picture, mask: Bool[Tensor, "height width"]) -> Path:
    """Write a PNG that is transparent outside a mask, atomically."""
    alpha = mask.cpu().numpy().astype(np.uint8) * 255
    return _save(path, Image.fromarray(np.dstack([picture, alpha])))


def save_picture(path: Path, picture: Picture) -> Path:
    """Write a PNG atomically."""
    return _save(path, Image.fromarray(picture))


def save_array(path: Path, values: np.ndarray) -> Path:
    """Write a .npy file atomically."""
    stream = BytesIO()
    np.save(stream, values)
    with whole_file(path) as draft:
        draft.write_bytes(stream.getvalue())
    return path


def _save(path: Path, image: Image.Image) -> Path:
    stream = BytesIO()
    image.save(stream, "PNG")
    with whole_file(path) as draft:
        draft.write_bytes(stream.getvalue())
    return path


def strip_of(comparison: ViewComparison, size: int) -> UInt8[np.ndarray, "rows columns 3"]:
    """Draw a view as observed normals, rendered normals and the angle between them, cropped to the object.

    Args:
        comparison: measured view.
        size: width and height of each of the three panels in pixels; smaller views are enlarged.
    """
    rendered_mask = comparison.rendered.mask
    view = comparison.view
    panels = [
        _on_paper(normal_colors(view.normals), view.valid),
        _on_paper(normal_colors(comparison.rendered.camera_normals), rendered_mask),
        error_colors(comparison),
    ]
    box = _around((view.mask | rendered_mask).numpy())
    canvas = Image.new("RGB", (3 * size + 2 * _GAP, _LINE + size), _PAPER)
    for column, panel in enumerate(panels):
        canvas.paste(_cut(panel, box, size), (column * (size + _GAP), _LINE))
    error = comparison.error
    mean = "nothing visible" if error.mae is None else f"{error.mae:.2f}°"
    suffix = "" if error.split == "train" else "  held out"
    _write(canvas, (2, 3), f"{error.name}{suffix}", size, _INK)
    _write(canvas, (2 * (size + _GAP) + 2, 3), f"{mean}   missed {100 * error.missed:.1f} %", size, _INK)
    return np.asarray(canvas)


def sheet_of(strips: Sequence[UInt8[np.ndarray, "height width 3"]]) -> UInt8[np.ndarray, "rows columns 3"]:
    """Arrange strips of equal size on a roughly square sheet with a legend below.

    Raises:
        ValueError: there are no strips.
    """
    if not strips:
        raise ValueError("a sheet needs at least one strip, got none")
    height, width = strips[0].shape[:2]
    # 1.4: slightly wider than high, as screens are.
    columns = max(round(math.sqrt(len(strips) * (height + _GAP) / (width + 3 * _GAP) * 1.4)), 1)
    # Rounded up.
    rows = -(-len(strips) // columns)
    sheet_width = columns * (width + 3 * _GAP) + _GAP
    canvas = Image.new("RGB", (sheet_width, rows * (height + _GAP) + _GAP + 2 * _LINE), _PAPER)
    for number, strip in enumerate(strips):
        corner = (2 * _GAP + number % columns * (width + 3 * _GAP), _GAP + number // columns * (height + _GAP))
        canvas.paste(Image.fromarray(strip), corner)
    _legend(canvas, (2 * _GAP, canvas.height - _LINE - _GAP))
    return np.asarray(canvas)


def _legend(canvas: Image.Image, corner: tuple[int, int]) -> None:
    left, top = corner
    _write(canvas, (left, top), "observed | rendered | angle", 180, _FAINT)
    bar = Image.fromarray(np.repeat(error_ramp(np.linspace(0.0, 1.0, 160))[None], 12, axis=0))
    _write(canvas, (left + 190, top), "0°", 20, _FAINT)
    canvas.paste(bar, (left + 212, top + 3))
    _write(canvas, (left + 378, top), f"{FULL_SCALE:g}° and more", 90, _FAINT)
    for index, (color, text) in enumerate(((_MISSED, "not rendered"), (_EXTRA, "outside mask"))):
        at = left + 480 + 90 * index
        canvas.paste(color, (at, top + 3, at + 12, top + 15))
        _write(canvas, (at + 17, top), text, 120, _FAINT)


def _on_paper(picture: Picture, mask: Bool[Tensor, "height width"]) -> Picture:
    return np.where(mask.cpu().numpy()[..., None], picture, np.array(_PAPER, np.uint8))


def _around(mask: Bool[np.ndarray, "height width"]) -> tuple[int, int, int, int]:
    """Return the bounding square of a mask with a margin, or the whole image if the mask is empty."""
    rows = np.flatnonzero(mask.any(1))
    columns = np.flatnonzero(mask.any(0))
    if not len(rows):
        return 0, 0, max(mask.shape), max(mask.shape)
    side = math.ceil(max(np.ptp(rows), np.ptp(columns)) * (1 + 2 * _ROOM)) + 1
    top, left = ((int(ends[0]) + int(ends[-1]) + 1 - side) // 2 for ends in (rows, columns))
    return left, top, left + side, top + side


def _cut(picture: Picture, box: tuple[int, int, int, int], size: int) -> Image.Image:
    """Crop a square, filled with the background color beyond the image border, and resize it."""
    side = box[2] - box[0]
    # Pasting clips to the canvas and leaves the background where the box exceeds the image.
    canvas = Image.new("RGB", (side, side), _PAPER)
    canvas.paste(Image.fromarray(picture), (-box[0], -box[1]))
    # Nearest neighbor when enlarging, so that single pixels remain visible.
    return canvas.resize((size, size), Image.Resampling.LANCZOS if side > size else Image.Resampling.NEAREST)


def _write(canvas: Image.Image, corner: tuple[int, int], text: str, width: int, ink: tuple[int, int, int]) -> None:
    """Draw a line of text, truncated to the given width."""
    draw = ImageDraw.Draw(canvas)
    # Pillow's built-in font, so that no font file is needed.
    font = ImageFont.load_default(size=13)
    while text and draw.textlength(text, font) > width:
        text = text[:-1]
    draw.text(corner, text, fill=ink, font=font)
