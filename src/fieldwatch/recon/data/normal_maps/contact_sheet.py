"""A contact sheet of normal maps: what to look at before training on them."""

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw
from scipy import ndimage
from torch import Tensor

from fieldwatch.recon.data.normal_maps.hull import Hull, visual_hull
from fieldwatch.recon.data.normal_maps.model import NormalSet, NormalView
from fieldwatch.recon.geometry import Camera

MASK_COLOUR = (255, 255, 255)
HULL_COLOUR = (255, 40, 40)
_NO_NORMAL_GREY = 24
_OUTSIDE_BRIGHTNESS = 0.35  # brightness of normals outside of the mask
_HULL_CELLS = 96
_HULL_HALF_SIDE = 1.2
_TITLE_HEIGHT = 14  # pixels of a tile's title
_MIN_TITLED_WIDTH = 64  # smaller tiles hold no title


def normal_map_sheet(
    normal_set: NormalSet, *, tile: int = 256, columns: int = 5
) -> UInt8[np.ndarray, "height width 3"]:
    """Draw every view: normals, the outline of its mask in white, the outline of the visual hull in red.

    Normals are coloured as usual (red right, green up, blue to the viewer), dark outside of the mask. The hull is what
    all masks leave of the object; where its outline is not the mask's, a pose or a mask is wrong, and a red line that
    is missing altogether means that no place is in all masks.

    Args:
        normal_set: to be looked at.
        tile: longer side of a view in pixels; views are never enlarged.
        columns: views in a row.
    """
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
    # OpenCV axes to the usual colors: y and z are negated.
    colours = (view.normals * torch.tensor([0.5, -0.5, -0.5]) + 0.5) * 255
    colours = torch.where(view.known[..., None], colours, torch.full_like(colours, _NO_NORMAL_GREY))
    colours = colours * torch.where(view.mask, 1.0, _OUTSIDE_BRIGHTNESS)[..., None]
    picture = _shrink(colours.permute(2, 0, 1), size).permute(1, 2, 0).round().to(torch.uint8).numpy()
    mask = (_shrink(view.mask[None].float(), size)[0] > 0.5).numpy()
    picture[_outline(_silhouette(camera, hull))] = HULL_COLOUR
    picture[_outline(mask)] = MASK_COLOUR
    return picture


def _shrink(values: Float[Tensor, "c h w"], size: tuple[int, int]) -> Float[Tensor, "c height width"]:
    return torch.nn.functional.interpolate(values[None], size, mode="area")[0]


def _outline(inside: Bool[np.ndarray, "h w"]) -> Bool[np.ndarray, "h w"]:
    return inside & ~np.asarray(ndimage.binary_erosion(inside), np.bool_)


def _silhouette(camera: Camera, hull: Hull) -> Bool[np.ndarray, "height width"]:
    """Return where a hull's cells fall, with the gaps between their centres closed and half a cell added."""
    pixels, depth = camera.project(hull.centres(hull.inside))
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
