"""Sampling the colors of surface points in one photo, with a weight for each sample."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int64, UInt8
from scipy.ndimage import distance_transform_edt

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.triangles import Triangles
from fieldwatch.recon.render import View, cast_triangles

_GRAZING = 0.1
"""Smallest cosine between the normal of a face and the direction to the camera."""
_MIN_WORTH = 1e-3
"""Weight of a pixel at a depth jump or at the border of the mask or image; pixels far from these have weight 1."""
_JUMP = 3.0
"""Smallest depth discontinuity that counts as a jump, in pixel widths at that depth."""
_MIN_SHARE = 0.5
"""Smallest total bilinear weight of the pixels that see a point."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TexturePhoto:
    """A photo to bake into a texture.

    Attributes:
        image: RGB image with the colors to bake.
        view: camera of the photo.
        mask: True for usable pixels; None makes all usable.

    Raises:
        MeshError: image, mask and camera differ in size.
    """

    image: UInt8[np.ndarray, "height width 3"]
    view: View
    mask: Bool[np.ndarray, "height width"] | None = None

    def __post_init__(self) -> None:
        size = (self.view.height, self.view.width)
        mask = size if self.mask is None else self.mask.shape
        if self.image.shape[:2] != size or mask != size:
            msg = (
                f"the photo has {self.image.shape[1]} x {self.image.shape[0]} pixels, its mask {mask[1]} x {mask[0]}, "
                f"its camera {size[1]} x {size[0]}: all three must have the same size (see View.scaled)"
            )
            raise MeshError(msg)


@dataclass(frozen=True, kw_only=True, eq=False)
class TexelSamples:
    """Samples of a photo at the points that it sees.

    Attributes:
        rows: rows of the visible points.
        colors: RGB colors, 0 to 255.
        worth: positive weights: pixels per surface area, reduced for oblique views and near borders.
    """

    rows: Int64[np.ndarray, "k"]
    colors: Float32[np.ndarray, "k 3"]
    worth: Float32[np.ndarray, "k"]


class PhotoSampler:
    """A photo with the depth map of the mesh from its camera.

    Args:
        mesh: surface to texture.
        photo: photo to sample.
        margin: distance in pixels from borders and depth jumps over which the weight rises to 1, because masks and
            shapes are never exact.
    """

    def __init__(self, mesh: Triangles, photo: TexturePhoto, *, margin: float) -> None:
        self.view = replace(photo.view, camera_from_world=photo.view.camera_from_world.detach().double().cpu())
        self._pose: Float64[np.ndarray, "4 4"] = self.view.camera_from_world.numpy()
        self._image = photo.image
        # Depth of the mesh per pixel center, against which each texel is tested for occlusion.
        hits = cast_triangles(torch.from_numpy(mesh.vertices), torch.from_numpy(mesh.faces), self.view)
        self._depth: Float32[np.ndarray, "height width"] = hits.depth.numpy()
        self._pixels = _pixel_worth(self._depth, photo.mask, min(self.view.fx, self.view.fy), margin)

    def facing(self, mesh: Triangles) -> Bool[np.ndarray, "m"]:
        """Select the faces that face the camera and are at least partly in front of it."""
        rotation = self._pose[:3, :3]
        shift = self._pose[:3, 3]
        towards = -rotation.T @ shift - mesh.corners[:, 0]
        ahead = (mesh.corners @ rotation[2] + shift[2] > self.view.near).any(1)
        return ahead & (np.einsum("mi,mi->m", towards, mesh.normals) > 0)

    def sample(
        self, points: Float64[np.ndarray, "n 3"], normals: Float64[np.ndarray, "n 3"], *, power: float
    ) -> TexelSamples:
        """Sample the colors of points on the mesh.

        A pixel sees a point if its depth equals that of the tangent plane of the point to within a pixel width; the
        tolerance is larger for oblique planes. The color is interpolated bilinearly over the pixels that see the point.

        Args:
            points: points on the mesh.
            normals: unit normals at the points.
            power: exponent of the cosine of the viewing angle in the weight.
        """
        in_camera = points @ self._pose[:3, :3].T + self._pose[:3, 3]
        camera_normals = normals @ self._pose[:3, :3].T
        plane_distance = -np.einsum("ni,ni->n", in_camera, camera_normals)
        cosine = plane_distance / np.maximum(np.linalg.norm(in_camera, axis=1), 1e-300)
        depth = in_camera[:, 2]
        # A placeholder depth avoids division by zero; those points are masked out below.
        safe = np.where(depth > self.view.near, depth, 1.0)
        x = in_camera[:, 0] / safe * self.view.fx + self.view.cx
        y = in_camera[:, 1] / safe * self.view.fy + self.view.cy
        # Points up to the outer border of the image: sampling clamps to the last pixel.
        in_picture = (x >= 0) & (x <= self.view.width) & (y >= 0) & (y <= self.view.height)
        # Grazing views smear one pixel over many texels.
        rows = np.flatnonzero(in_picture & (depth > self.view.near) & (cosine > _GRAZING))
        share, colors, worth = self._sampled(x[rows], y[rows], camera_normals[rows], plane_distance[rows], cosine[rows])
        sufficient = share >= _MIN_SHARE
        rows = rows[sufficient]
        share = share[sufficient]
        # Pixels per unit of surface area, for a surface that faces the camera.
        density = self.view.fx * self.view.fy / depth[rows] ** 2
        worth = density * cosine[rows] ** power * worth[sufficient] / share
        return TexelSamples(
            rows=rows,
            colors=(colors[sufficient] / share[:, None]).astype(np.float32),
            worth=worth.astype(np.float32),
        )

    def _sampled(
        self,
        x: Float64[np.ndarray, "k"],
        y: Float64[np.ndarray, "k"],
        normals: Float64[np.ndarray, "k 3"],
        plane_distance: Float64[np.ndarray, "k"],
        cosine: Float64[np.ndarray, "k"],
    ) -> tuple[Float64[np.ndarray, "k"], Float64[np.ndarray, "k 3"], Float64[np.ndarray, "k"]]:
        """Sum bilinear weights, colors and pixel weights over those of the four nearest pixels that see each point."""
        view = self.view
        left = np.floor(x - 0.5)
        top = np.floor(y - 0.5)
        share = np.zeros(len(x))
        colors = np.zeros((len(x), 3))
        worth = np.zeros(len(x))
        # Across one pixel, the depth of a plane changes by its tangent: tolerate that in addition to one pixel width.
        steep = 1 + np.sqrt(np.maximum(1 - cosine**2, 0)) / cosine
        for down in (0, 1):
            for across in (0, 1):
                column = (left + across).clip(0, view.width - 1).astype(np.int64)
                row = (top + down).clip(0, view.height - 1).astype(np.int64)
                # Bilinear weight of this one of the four pixels.
                weight = (1 - np.abs(x - 0.5 - left - across)) * (1 - np.abs(y - 0.5 - top - down))
                ray_x = (column + 0.5 - view.cx) / view.fx
                ray_y = (row + 0.5 - view.cy) / view.fy
                # Depth at which the pixel's ray meets the tangent plane of the point.
                slope = normals[:, 0] * ray_x + normals[:, 1] * ray_y + normals[:, 2]
                expected = -plane_distance / np.where(slope < 0, slope, -1e-9)
                depth = self._depth[row, column]
                is_visible = np.abs(depth - expected) <= depth * steep / min(view.fx, view.fy)
                pixel_worth = self._pixels[row, column]
                weight = weight * (is_visible & (pixel_worth > 0))
                share += weight
                colors += weight[:, None] * self._image[row, column]
                worth += weight * pixel_worth
        return share, colors, worth


def _pixel_worth(
    depth: Float32[np.ndarray, "height width"],
    mask: Bool[np.ndarray, "height width"] | None,
    focal: float,
    margin: float,
) -> Float32[np.ndarray, "height width"]:
    """Return pixel weights: 0 for background or masked pixels, smallest at depth jumps and borders, 1 far from both."""
    usable = depth > 0 if mask is None else (depth > 0) & mask
    # 1 / z of a plane is linear in the image, so its second difference separates jumps from slopes.
    inverse = np.divide(1, depth, out=np.zeros_like(depth), where=depth > 0)
    padded = np.pad(inverse, 1, mode="edge")
    middle = padded[1:-1, 1:-1]
    bend = np.maximum(
        np.abs(padded[:-2, 1:-1] - 2 * middle + padded[2:, 1:-1]),
        np.abs(padded[1:-1, :-2] - 2 * middle + padded[1:-1, 2:]),
    )
    smooth = usable & (bend * depth * focal <= _JUMP)
    # Padding counts the image border as a border.
    border_distance = np.asarray(distance_transform_edt(np.pad(smooth, 1)))[1:-1, 1:-1]
    worth = np.clip(border_distance / max(margin, 1e-6), _MIN_WORTH, 1)
    return np.where(usable, worth, 0).astype(np.float32)
