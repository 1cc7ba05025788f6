"""Contact sheet of normal maps for visual inspection before training."""

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.hull import Hull, visual_hull
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.geometry import Camera

MASK_COLOR = (255, 255, 255)
HULL_COLOR = (255, 40, 40)
_NO_NORMAL_GRAY = 24
_OUTSIDE_BRIGHTNESS = 0.35  # brightness of normals outside the mask
_HULL_CELLS = 96
_HULL_HALF_SIDE = 1.2
_TITLE_HEIGHT = 14  # pixels
_MIN_TITLED_WIDTH = 64  # pixels; narrower tiles have no title


def normal_map_sheet(
    normal_set: NormalSet, *, tile: int = 256, columns: int = 5
) -> UInt8[np.ndarray, "height width 3"]:
    """Return an image of all views with normals, mask outlines in white and visual hull outlines in red.

    Normals have the usual colors (red right, green up, blue toward the viewer) and are darkened outside the mask. If
    the outline of the hull differs from that of a mask, a pose or mask is wrong. If there is no red line at all, the
    masks have no common point.

    Args:
        normal_set: normal maps to show.
        tile: maximum length of the longer side of a view in pixels; views are never enlarged.
        columns: number of views per row.
    """
    # Finer than the hull of the checks, because its outline is compared visually.
    hull = visual_hull(normal_set.views, cells=_HULL_CELLS, half=_HULL_HALF_SIDE)
    tiles = [_tile(view, hull, tile) for view in normal_set.views]
    columns = min(columns, len(tiles))
    height = max(len(t) for t in tiles) + _TITLE_HEIGHT
    width = max(t.shape[1] for t in tiles)
    rows = -(-len(tiles) // columns)
    sheet = Image.new("RGB", (columns * width, rows * height), (0, 0, 0))
    draw = ImageDraw.Draw(sheet)
    for number, (view, picture) in enumerate(zip(normal_set.views, tiles, strict=True)):
        left = number % columns * width
        top = number // columns * height
        sheet.paste(Image.fromarray(picture), (left, top + _TITLE_HEIGHT))
        if width >= _MIN_TITLED_WIDTH:
            draw.text((left + 2, top + 1), view.name[-width // 6 :], fill=(200, 200, 200))
    return np.asarray(sheet)


def _tile(view: NormalView, hull: Hull, tile: int) -> UInt8[np.ndarray, "h w 3"]:
    camera = view.camera.scaled(min(tile / max(view.size), 1.0))
    size = camera.height, camera.width
    # The usual colors refer to OpenGL axes, so y and z are negated.
    colors = (view.normals * torch.tensor([0.5, -0.5, -0.5]) + 0.5) * 255
    colors = torch.where(view.known[..., None], colors, torch.full_like(colors, _NO_NORMAL_GRAY))
    colors = colors * torch.where(view.mask, 1.0, _OUTSIDE_BRIGHTNESS)[..., None]
    picture = _shrink(colors.permute(2, 0, 1), size).permute(1, 2, 0).round().to(torch.uint8).numpy()
    mask = (_shrink(view.mask[None].float(), size)[0] > 0.5).numpy()
    # The mask outline is painted last: red pixels remain only where the outlines differ.
    picture[_outline(_silhouette(camera, hull))] = HULL_COLOR
    picture[_outline(mask)] = MASK_COLOR
    return picture


def _shrink(values: Float[Tensor, "c h w"], size: tuple[int, int]) -> Float[Tensor, "c height width"]:
    return torch.nn.functional.interpolate(values[None], size, mode="area")[0]


def _outline(inside: Bool[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    return inside & ~np.asarray(ndimage.binary_erosion(inside), np.bool_)


def _silhouette(camera: Camera, hull: Hull) -> Bool[np.ndarray, "height width"]:
    """Return the pixels covered by a hull: projected cell centers, with gaps closed, dilated by half a cell."""
    pixels, depth = camera.project(hull.centers(hull.inside))
    limits = torch.tensor([camera.width, camera.height])
    in_picture = (depth > 0) & (pixels >= 0).all(-1) & (pixels < limits).all(-1)
    column, row = pixels[in_picture].long().unbind(-1)
    empty = torch.ones(camera.height, camera.width, dtype=torch.bool)
    empty[row, column] = False
    if not len(row):
        return ~empty.numpy()
    cell_pixels = float(camera.fx * hull.cell / depth[in_picture].median())
    covered = np.asarray(ndimage.distance_transform_edt(empty.numpy())) <= cell_pixels
    return covered if covered.all() else np.asarray(ndimage.distance_transform_edt(covered)) > 0.5 * cell_pixels
