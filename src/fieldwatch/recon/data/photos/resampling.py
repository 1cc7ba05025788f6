"""Photos at another size, by area; and seen through a pinhole instead of the lens they were taken with."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.geometry import Camera, Lens

Pixels = NDArray[np.uint8]

_NODE_SPACING_FACTOR = (
    0.05  # of the focal length in pixels: square of the spacing of nodes; off by about 0.006 pixels at most
)
_OUTSIDE = 3.0  # a place beyond the photo, whose edges are at -1 and 1
_OVERSAMPLING = 2  # a bent photo is straightened at this many times the wanted size, then averaged


def by_area(image: Image.Image, width: int, height: int) -> Image.Image:
    """Resize an 8-bit image: each new pixel is the mean of the area it covers (bilinear where it is enlarged).

    Pillow's box filter counts pixels as a whole or not at all: at 990 to 256 pixels it is 46.6 dB away from the mean.
    """
    if (width, height) == image.size:
        return image
    # Area averaging cannot enlarge.
    if width > image.width or height > image.height:
        return image.resize((width, height), Image.Resampling.BILINEAR)
    rows = _mean_of_rows(np.asarray(image), height)
    columns = _mean_of_rows(np.ascontiguousarray(rows.swapaxes(0, 1)), width)
    return Image.fromarray(np.ascontiguousarray(np.rint(columns).astype(np.uint8).swapaxes(0, 1)))


def _mean_of_rows(pixels: NDArray[Any], count: int) -> NDArray[np.float32]:
    """Average rows to at most as many, with the share that each has in the new ones."""
    # Borders of the new rows in units of the old ones; most fall inside an old row.
    edges = np.linspace(0, len(pixels), count + 1)
    whole = edges.astype(np.int64)
    # Sums of whole source rows; the fractional shares at both ends are corrected below.
    whole_rows = np.add.reduceat(pixels, whole[:-1], axis=0, dtype=np.float32)
    share = (edges - whole).astype(np.float32).reshape(-1, *[1] * (pixels.ndim - 1))
    cut = share * pixels[np.minimum(whole, len(pixels) - 1)]
    return (whole_rows - cut[:-1] + cut[1:]) * np.float32(count / len(pixels))


@dataclass(frozen=True, eq=False)
class Undistortion:
    """Where each pixel of a pinhole camera lies in a photo taken through a lens.

    Places are kept at nodes a few pixels apart and interpolated whenever a photo is read: a lens bends smoothly, and
    every photo may have a lens of its own.

    Attributes:
        size: (width, height) of the camera.
        source_size: (width, height) to which the photo is brought first.
        work_size: (width, height) at which it is straightened, before it is averaged.
        nodes: x and y for `functional.grid_sample`.
        radii: distance of the nodes from the axis at depth 1, as a share of the radius up to which the lens sees.
    """

    size: tuple[int, int]
    source_size: tuple[int, int]
    work_size: tuple[int, int]
    nodes: Float[Tensor, "1 2 rows columns"]
    radii: Float[Tensor, "1 1 rows columns"]

    @classmethod
    def between(cls, lens: Lens, camera: Camera) -> "Undistortion":
        """Find the places for a photo with this lens and the camera (name and pose do not matter) to show it with."""
        scale = min(_OVERSAMPLING * camera.width / lens.width, _OVERSAMPLING * camera.height / lens.height, 1.0)
        source_size = (max(round(lens.width * scale), 1), max(round(lens.height * scale), 1))
        work_camera = camera.resized(max(source_size[0], camera.width), max(source_size[1], camera.height))
        # the error of interpolation is the spacing squared times the curvature, about 1 / focal length, over 8
        spacing = max(math.isqrt(int(_NODE_SPACING_FACTOR * min(work_camera.fx, work_camera.fy))), 1)
        x, y = (
            torch.linspace(0.5, pixels - 0.5, -(-pixels // spacing) + 1, dtype=torch.float64)
            for pixels in (work_camera.width, work_camera.height)
        )
        grid = torch.stack(
            torch.meshgrid((x - work_camera.cx) / work_camera.fx, (y - work_camera.cy) / work_camera.fy, indexing="xy"),
            -1,
        )
        radii = grid.norm(dim=-1)
        size = torch.tensor([lens.width, lens.height], dtype=torch.float64)
        grid_positions = 2 * lens.project(grid)[0] / size - 1
        grid_positions = torch.where(
            torch.isfinite(grid_positions), grid_positions, torch.full_like(grid_positions, _OUTSIDE)
        )
        return cls(
            size=(camera.width, camera.height),
            source_size=source_size,
            work_size=(work_camera.width, work_camera.height),
            nodes=grid_positions.permute(2, 0, 1)[None].float(),
            # Values above 1 lie beyond where the lens model is valid.
            radii=(radii / lens.valid_radius(float(radii.max())))[None, None].float(),
        )

    @property
    def fills(self) -> bool:
        """Whether the photo shows something in every pixel of the camera."""
        return bool((self.nodes.abs() <= 1).all() & (self.radii <= 1).all())

    @cached_property
    def field_of_view(self) -> Pixels | None:
        """255 where the photo shows something, else 0, at the camera's size; None where it does everywhere."""
        if self.fills:
            return None
        inside = (self._at_pixels(self.nodes).abs() <= 1).all(1) & (self._at_pixels(self.radii)[:, 0] <= 1)
        visible = by_area(Image.fromarray(inside[0].numpy().astype(np.uint8) * 255), *self.size)
        # a pixel counts only where all of it is seen
        return np.where(np.asarray(visible) == 255, 255, 0).astype(np.uint8)

    def apply(self, image: Image.Image) -> Image.Image:
        """Straighten a photo or a mask, and bring it to the camera's size."""
        source = np.array(by_area(image, *self.source_size), np.float32)
        planes = torch.from_numpy(source if source.ndim == 3 else source[..., None]).permute(2, 0, 1)
        grid = self._at_pixels(self.nodes).permute(0, 2, 3, 1)
        sampled = functional.grid_sample(
            planes[None], grid, mode="bilinear", padding_mode="border", align_corners=False
        )
        undistorted = sampled[0].round_().clamp_(0, 255).byte().permute(1, 2, 0).numpy()
        return by_area(Image.fromarray(undistorted if source.ndim == 3 else undistorted[..., 0]), *self.size)

    def _at_pixels(self, nodes: Float[Tensor, "1 values rows columns"]) -> Float[Tensor, "1 values height width"]:
        width, height = self.work_size
        return functional.interpolate(nodes, (height, width), mode="bilinear", align_corners=True)
