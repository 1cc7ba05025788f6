"""Resize photos by area averaging and undistort them to a pinhole camera."""

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

# Squared node spacing divided by the focal length, both in pixels; the error is at most about 0.006 pixels.
_NODE_SPACING_FACTOR = 0.05
_OUTSIDE = 3.0  # grid coordinate outside the photo, whose edges are at -1 and 1
_OVERSAMPLING = 2  # photos are undistorted at this multiple of the output size and then averaged


def by_area(image: Image.Image, width: int, height: int) -> Image.Image:
    """Resize an 8-bit image so that each new pixel is the mean of the area it covers; enlarge bilinearly.

    Pillow's box filter includes source pixels entirely or not at all: from 990 to 256 pixels, its PSNR against the
    exact mean is only 46.6 dB.
    """
    if (width, height) == image.size:
        return image
    # Area averaging is only defined for downscaling.
    if width > image.width or height > image.height:
        return image.resize((width, height), Image.Resampling.BILINEAR)
    rows = _mean_of_rows(np.asarray(image), height)
    columns = _mean_of_rows(np.ascontiguousarray(rows.swapaxes(0, 1)), width)
    return Image.fromarray(np.ascontiguousarray(np.rint(columns).astype(np.uint8).swapaxes(0, 1)))


def _mean_of_rows(pixels: NDArray[Any], count: int) -> NDArray[np.float32]:
    """Average rows to `count` (at most as many) rows, weighting each source row by its overlap."""
    # Borders of the new rows in units of source rows; most fall inside a source row.
    edges = np.linspace(0, len(pixels), count + 1)
    whole = edges.astype(np.int64)
    # Sums of whole source rows; the fractions at both ends are corrected below.
    whole_rows = np.add.reduceat(pixels, whole[:-1], axis=0, dtype=np.float32)
    fraction = (edges - whole).astype(np.float32).reshape(-1, *[1] * (pixels.ndim - 1))
    cut = fraction * pixels[np.minimum(whole, len(pixels) - 1)]
    return (whole_rows - cut[:-1] + cut[1:]) * np.float32(count / len(pixels))


@dataclass(frozen=True, eq=False)
class Undistortion:
    """Mapping from the pixels of a pinhole camera to a photo taken through a lens.

    The mapping is stored at nodes a few pixels apart and interpolated whenever a photo is read: distortion is smooth,
    and a dense map per photo would use much memory if every photo has a different lens.

    Attributes:
        size: (width, height) of the camera in pixels.
        source_size: (width, height) to which the photo is resized first.
        work_size: (width, height) at which the photo is undistorted, before averaging.
        nodes: x and y coordinates for `functional.grid_sample`.
        radii: distances of the nodes from the optical axis at depth 1, as a fraction of the lens's valid radius.
    """

    size: tuple[int, int]
    source_size: tuple[int, int]
    work_size: tuple[int, int]
    nodes: Float[Tensor, "1 2 rows columns"]
    radii: Float[Tensor, "1 1 rows columns"]

    @classmethod
    def between(cls, lens: Lens, camera: Camera) -> "Undistortion":
        """Compute the mapping from a camera to a lens; name and pose of the camera are ignored."""
        scale = min(_OVERSAMPLING * camera.width / lens.width, _OVERSAMPLING * camera.height / lens.height, 1.0)
        source_size = (max(round(lens.width * scale), 1), max(round(lens.height * scale), 1))
        # Undistorting above the output resolution and averaging avoids aliasing.
        work_camera = camera.resized(max(source_size[0], camera.width), max(source_size[1], camera.height))
        # The error of linear interpolation is spacing^2 * curvature / 8, with a curvature of about 1 / focal length.
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
        # grid_sample would read arbitrary pixels at NaN coordinates.
        grid_positions = torch.where(
            torch.isfinite(grid_positions), grid_positions, torch.full_like(grid_positions, _OUTSIDE)
        )
        return cls(
            size=(camera.width, camera.height),
            source_size=source_size,
            work_size=(work_camera.width, work_camera.height),
            nodes=grid_positions.permute(2, 0, 1)[None].float(),
            # Beyond 1 the distortion is no longer monotonic: points farther out would project nearer to the center.
            radii=(radii / lens.valid_radius(float(radii.max())))[None, None].float(),
        )

    @property
    def fills(self) -> bool:
        """Whether the photo covers every pixel of the camera."""
        return bool((self.nodes.abs() <= 1).all() & (self.radii <= 1).all())

    @cached_property
    def field_of_view(self) -> Pixels | None:
        """255 where the photo covers the pixel, else 0, at the camera's size; None if it covers all pixels."""
        if self.fills:
            return None
        inside = (self._at_pixels(self.nodes).abs() <= 1).all(1) & (self._at_pixels(self.radii)[:, 0] <= 1)
        visible = by_area(Image.fromarray(inside[0].numpy().astype(np.uint8) * 255), *self.size)
        # Averaged values below 255 are only partly covered.
        return np.where(np.asarray(visible) == 255, 255, 0).astype(np.uint8)

    def apply(self, image: Image.Image) -> Image.Image:
        """Undistort a photo or mask and resize it to the camera."""
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
