"""Pinhole cameras with OpenCV axes (x right, y down, z forward), pixel centers at +0.5 and lengths in world units."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fieldwatch.recon.geometry.rigid_motion import inverse_rigid, transform_points


@dataclass(frozen=True, kw_only=True, eq=False)
class Camera:
    """A pinhole camera with pose.

    The center of the pixel in row r and column c has image coordinates (c + 0.5, r + 0.5), so the corners of the image
    are (0, 0) and (width, height) at every scale.

    Attributes:
        name: name of the photo.
        width: image width in pixels.
        height: image height in pixels.
        fx: horizontal focal length in pixels.
        fy: vertical focal length in pixels.
        cx: horizontal principal point in pixels from the left edge, not necessarily the image center.
        cy: vertical principal point in pixels from the top edge.
        world_from_camera: rigid transformation from camera to world coordinates.

    Raises:
        ValueError: if the size is below one pixel, a focal length is not positive, or a number is not finite.
    """

    name: str
    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    world_from_camera: Float[Tensor, "4 4"]

    def __post_init__(self) -> None:
        """Validate size, intrinsics and pose."""
        lens = (self.fx, self.fy, self.cx, self.cy)
        # Comparisons with NaN are False, so `abs(x) < inf` also rejects NaN.
        finite = bool(torch.isfinite(self.world_from_camera).all()) and all(abs(x) < float("inf") for x in lens)
        if not finite or min(self.width, self.height) < 1 or min(self.fx, self.fy) <= 0:
            msg = (
                f"camera {self.name!r}: size and focal lengths must be greater than 0 and all numbers finite, got "
                f"{self.width}x{self.height} pixels and fx, fy, cx, cy = {lens}"
                f"{'' if finite else ' (intrinsics or pose are not finite)'}"
            )
            raise ValueError(msg)

    @property
    def camera_from_world(self) -> Float[Tensor, "4 4"]:
        """Rigid transformation from world to camera coordinates."""
        return inverse_rigid(self.world_from_camera)

    @property
    def position(self) -> Float[Tensor, "3"]:
        """Position of the camera in the world."""
        return self.world_from_camera[:3, 3]

    @property
    def forward(self) -> Float[Tensor, "3"]:
        """Viewing direction as a unit vector in the world."""
        return self.world_from_camera[:3, 2]

    @property
    def K(self) -> Float[Tensor, "3 3"]:  # noqa: N802 - the conventional name of the intrinsic matrix
        """Intrinsic matrix, from camera coordinates to pixels times depth."""
        rows = [[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]]
        return torch.tensor(rows, dtype=self.world_from_camera.dtype, device=self.world_from_camera.device)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return the camera with its pose on another device or with another dtype."""
        return replace(self, world_from_camera=self.world_from_camera.to(device=device, dtype=dtype))

    def resized(self, width: int, height: int) -> Self:
        """Return the camera with the same field of view at another image size."""
        across = width / self.width
        down = height / self.height
        # With pixel corners at integers, the principal point scales without a half-pixel offset.
        lens = {"fx": self.fx * across, "fy": self.fy * down, "cx": self.cx * across, "cy": self.cy * down}
        return replace(self, width=width, height=height, **lens)

    def scaled(self, factor: float) -> Self:
        """Return the camera with width and height multiplied by `factor`, rounded, and at least one pixel."""
        return self.resized(max(round(self.width * factor), 1), max(round(self.height * factor), 1))

    def pixel_centers(self, like: Tensor | None = None) -> Float[Tensor, "height width 2"]:
        """Return the image coordinates (x, y) of every pixel center.

        Args:
            like: tensor with the device and dtype of the result; None means those of the pose.
        """
        like = self.world_from_camera if like is None else like
        options = {"dtype": like.dtype, "device": like.device}
        down = torch.arange(self.height, **options) + 0.5
        across = torch.arange(self.width, **options) + 0.5
        return torch.stack(torch.meshgrid(across, down, indexing="xy"), -1)

    def directions(self, like: Tensor | None = None) -> Float[Tensor, "height width 3"]:
        """Return the camera coordinates of every pixel center at depth 1; z is 1, so these are not unit vectors.

        Args:
            like: tensor with the device and dtype of the result; None means those of the pose.
        """
        return self.directions_through(*self.pixel_centers(like).unbind(-1))

    def directions_at(self, pixels: Bool[Tensor, "height width"]) -> Float[Tensor, "n 3"]:
        """Return the camera coordinates at depth 1 of some pixel centers, row by row; `directions` returns all."""
        row, column = pixels.nonzero().unbind(-1)
        return self.directions_through(column.to(self.world_from_camera) + 0.5, row.to(self.world_from_camera) + 0.5)

    def directions_through(self, x: Float[Tensor, "*n"], y: Float[Tensor, "*n"]) -> Float[Tensor, "*n 3"]:
        """Return the camera coordinates at depth 1 of image positions in pixels; pixel centers are at + 0.5."""
        return torch.stack([(x - self.cx) / self.fx, (y - self.cy) / self.fy, torch.ones_like(x)], -1)

    def rays(self) -> tuple[Float[Tensor, "height width 3"], Float[Tensor, "height width 3"]]:
        """Return world-space origins and unit directions of the rays through every pixel center."""
        return self._rays(self.directions())

    def rays_at(self, pixels: Bool[Tensor, "height width"]) -> tuple[Float[Tensor, "n 3"], Float[Tensor, "n 3"]]:
        """Return origins and directions of the rays through some pixel centers, row by row; `rays` returns all."""
        return self._rays(self.directions_at(pixels))

    def _rays(self, directions: Float[Tensor, "*n 3"]) -> tuple[Float[Tensor, "*n 3"], Float[Tensor, "*n 3"]]:
        rotated = directions @ self.world_from_camera[:3, :3].T
        unit = rotated / rotated.norm(dim=-1, keepdim=True)
        return self.position.expand_as(unit), unit

    def unproject(self, depth: Float[Tensor, "height width"]) -> Float[Tensor, "height width 3"]:
        """Return the world points at a depth map; `depth` is along the optical axis (z), not along the ray."""
        directions = self.directions().to(depth)
        return transform_points(self.world_from_camera.to(depth), directions * depth[..., None])

    def project(self, points: Float[Tensor, "*n 3"]) -> tuple[Float[Tensor, "*n 2"], Float[Tensor, "*n"]]:
        """Project world points; return image coordinates (x, y) in pixels and depth along the optical axis.

        The image coordinates of points behind the camera (depth <= 0) are meaningless.
        """
        # Points in the camera plane get divisor 1, which avoids division by 0 and NaN gradients.
        x, y, depth = transform_points(self.camera_from_world.to(points), points).unbind(-1)
        safe = torch.where(depth == 0, torch.ones_like(depth), depth)
        return torch.stack([self.fx * x / safe + self.cx, self.fy * y / safe + self.cy], -1), depth


_FAR_RATIO = 20.0
"""Multiple of the median distance from the center beyond which a camera is considered misplaced."""
_MAX_FAR_SHARE = 0.1
"""Maximum fraction of misplaced cameras; if there are more, the scene was captured that way."""
_MIN_CAMERAS = 4


def camera_extent(cameras: Sequence[Camera]) -> float:
    """Return the spatial extent of cameras in world units: 1.1 times the largest distance from their mean position.

    Denoted E. 3D Gaussian splatting scales learning rates and size thresholds by it (`spatial_lr_scale`).
    Outliers (see `far_cameras`) are ignored, since a single wrong pose would otherwise determine the scale.

    Raises:
        ValueError: if there are no cameras.
    """
    if not cameras:
        msg = "the extent of cameras requires at least one camera, got none"
        raise ValueError(msg)
    # As getNerfppNorm of 3D Gaussian splatting, except for the outliers.
    positions = torch.stack([camera.position.double().cpu() for camera in near_cameras(cameras)])
    return 1.1 * float((positions - positions.mean(0)).norm(dim=-1).max())


def far_cameras(cameras: Sequence[Camera]) -> tuple[int, ...]:
    """Return the indices of cameras so far away from all others that their poses are probably wrong.

    A camera is far if its distance from the center (the median of each coordinate) exceeds 20 times the median
    distance. The result is empty for fewer than four cameras, or if more than a tenth of the cameras (and more than
    one) would be far.
    """
    if len(cameras) < _MIN_CAMERAS:
        return ()
    positions = torch.stack([camera.position.double().cpu() for camera in cameras])
    # A mean would be shifted by the misplaced cameras that it should expose.
    distances = (positions - positions.quantile(0.5, dim=0)).norm(dim=-1)
    far = (distances > _FAR_RATIO * distances.quantile(0.5)).nonzero()[:, 0].tolist()
    # One outlier is accepted even among fewer than ten cameras.
    return tuple(far) if len(far) <= max(_MAX_FAR_SHARE * len(cameras), 1) else ()


def near_cameras(cameras: Sequence[Camera]) -> list[Camera]:
    """Return the cameras that are not in `far_cameras`."""
    far = set(far_cameras(cameras))
    return [camera for index, camera in enumerate(cameras) if index not in far]


def similar_cameras(
    cameras: Sequence[Camera], index: int, candidates: Sequence[int], *, count: int, size: float
) -> list[int]:
    """Return the cameras that stand and look most like one of them, the most similar first.

    Args:
        cameras: all cameras.
        index: the camera to compare with; it is never among the result.
        candidates: indices to choose from.
        count: number of cameras to return at most.
        size: length in world units that counts as much as a difference of one radian in direction.
    """
    camera = cameras[index]

    def difference(other: int) -> float:
        apart = float(torch.linalg.vector_norm(cameras[other].position - camera.position)) / size
        cosine = torch.dot(cameras[other].forward, camera.forward).clamp(-1, 1)
        return apart + float(torch.acos(cosine))

    return sorted((other for other in candidates if other != index), key=difference)[:count]
