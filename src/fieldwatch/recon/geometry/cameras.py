"""Pinhole cameras: OpenCV axes (x right, y down, z forward), pixel centres at +0.5, lengths in world units."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry.rigid import inverse_rigid, transform_points


@dataclass(frozen=True, kw_only=True, eq=False)
class Camera:
    """One pinhole camera and where it stands.

    The centre of the pixel in row r and column c is the point (c + 0.5, r + 0.5) of the picture, so that the corners
    of the picture are (0, 0) and (width, height) at every scale.

    Attributes:
        name: of the photo it took.
        width: pixels.
        height: pixels.
        fx: focal length in pixels, across.
        fy: focal length in pixels, down.
        cx: principal point in pixels from the left edge; it need not be the centre.
        cy: principal point in pixels from the upper edge.
        world_from_camera: rigid motion that takes camera coordinates to the world.

    Raises:
        ValueError: a size below one pixel, a focal length that is not positive, or numbers that are not finite.
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
        """Refuse what no camera can be."""
        lens = (self.fx, self.fy, self.cx, self.cy)
        finite = bool(torch.isfinite(self.world_from_camera).all()) and all(abs(x) < float("inf") for x in lens)
        if not finite or min(self.width, self.height) < 1 or min(self.fx, self.fy) <= 0:
            msg = (
                f"camera {self.name!r} is {self.width}x{self.height} pixels with fx, fy, cx, cy = {lens} and a pose "
                f"that is {'finite' if finite else 'not finite'}: it needs a size and focal lengths above 0, all finite"
            )
            raise ValueError(msg)

    @property
    def camera_from_world(self) -> Float[Tensor, "4 4"]:
        """The rigid motion that takes the world to camera coordinates."""
        return inverse_rigid(self.world_from_camera)

    @property
    def position(self) -> Float[Tensor, "3"]:
        """Where the camera stands in the world."""
        return self.world_from_camera[:3, 3]

    @property
    def forward(self) -> Float[Tensor, "3"]:
        """Where it looks, as a unit vector of the world."""
        return self.world_from_camera[:3, 2]

    @property
    def K(self) -> Float[Tensor, "3 3"]:  # noqa: N802 - the matrix of intrinsics is called K wherever it is used
        """Matrix of intrinsics: pixels (times depth) from camera coordinates."""
        rows = [[self.fx, 0.0, self.cx], [0.0, self.fy, self.cy], [0.0, 0.0, 1.0]]
        return torch.tensor(rows, dtype=self.world_from_camera.dtype, device=self.world_from_camera.device)

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Self:
        """Return the camera with its pose on another device or in another precision."""
        return replace(self, world_from_camera=self.world_from_camera.to(device=device, dtype=dtype))

    def resized(self, width: int, height: int) -> Self:
        """Return the camera that sees the same through another number of pixels."""
        across = width / self.width
        down = height / self.height
        lens = {"fx": self.fx * across, "fy": self.fy * down, "cx": self.cx * across, "cy": self.cy * down}
        return replace(self, width=width, height=height, **lens)

    def scaled(self, factor: float) -> Self:
        """Return the camera with `factor` times as many pixels each way, rounded, at least one."""
        return self.resized(max(round(self.width * factor), 1), max(round(self.height * factor), 1))

    def pixel_centres(self) -> Float[Tensor, "height width 2"]:
        """Return the point (x, y) of the picture at every pixel's centre."""
        options = {"dtype": self.world_from_camera.dtype, "device": self.world_from_camera.device}
        down = torch.arange(self.height, **options) + 0.5
        across = torch.arange(self.width, **options) + 0.5
        return torch.stack(torch.meshgrid(across, down, indexing="xy"), -1)

    def directions(self) -> Float[Tensor, "height width 3"]:
        """Return camera coordinates of what every pixel sees at depth 1 (so z is 1, the length is not)."""
        x, y = self.pixel_centres().unbind(-1)
        return torch.stack([(x - self.cx) / self.fx, (y - self.cy) / self.fy, torch.ones_like(x)], -1)

    def rays(self) -> tuple[Float[Tensor, "height width 3"], Float[Tensor, "height width 3"]]:
        """Return origins and unit directions, in the world, of the rays through every pixel's centre."""
        turned = self.directions() @ self.world_from_camera[:3, :3].T
        directions = turned / turned.norm(dim=-1, keepdim=True)
        return self.position.expand_as(directions), directions

    def unproject(self, depth: Float[Tensor, "height width"]) -> Float[Tensor, "height width 3"]:
        """Return the world points that every pixel sees; `depth` is along the optical axis (z), not along the ray."""
        directions = self.directions().to(depth)
        return transform_points(self.world_from_camera.to(depth), directions * depth[..., None])

    def project(self, points: Float[Tensor, "*n 3"]) -> tuple[Float[Tensor, "*n 2"], Float[Tensor, "*n"]]:
        """Return where world points fall in the picture (pixels, x then y) and their depth.

        Points with a depth of 0 or less are behind the camera: their place in the picture means nothing.
        """
        # Full perspective projection; points in the camera's plane get a harmless divisor.
        x, y, depth = transform_points(self.camera_from_world.to(points), points).unbind(-1)
        safe = torch.where(depth == 0, torch.ones_like(depth), depth)
        return torch.stack([self.fx * x / safe + self.cx, self.fy * y / safe + self.cy], -1), depth


_FAR_RATIO = 20.0
"""Times the median camera's distance from the middle, from which on a camera is taken for misplaced."""
_MAX_FAR_SHARE = 0.1
"""Share of the cameras that may stand that far away: more of them are how the scene was photographed."""
_MIN_CAMERAS = 4


def camera_extent(cameras: Sequence[Camera]) -> float:
    """Return the spatial extent of cameras, in world units: 1.1 times the largest distance from their mean position.

    The scale to which 3D Gaussian splatting refers learning rates and sizes (E in the literature's notation). Cameras
    that stand far away from all others (`far_cameras`) do not count: one wrong pose would set the scale of everything.

    Raises:
        ValueError: no camera.
    """
    if not cameras:
        msg = "the extent of no cameras was asked for: give at least one camera"
        raise ValueError(msg)
    positions = torch.stack([camera.position.double().cpu() for camera in near_cameras(cameras)])
    return 1.1 * float((positions - positions.mean(0)).norm(dim=-1).max())


def far_cameras(cameras: Sequence[Camera]) -> tuple[int, ...]:
    """Return the cameras, by their places, that stand so far away from all others that their pose is probably wrong.

    A camera is far when its distance from the middle (the median of each coordinate) is over 20 times the median of
    these distances. None is, where there are fewer than four cameras, or where more than a tenth of them would be.
    """
    if len(cameras) < _MIN_CAMERAS:
        return ()
    positions = torch.stack([camera.position.double().cpu() for camera in cameras])
    # Medians, so that the misplaced cameras do not shift the center they are measured from.
    distances = (positions - positions.quantile(0.5, dim=0)).norm(dim=-1)
    far = (distances > _FAR_RATIO * distances.quantile(0.5)).nonzero()[:, 0].tolist()
    return tuple(far) if len(far) <= max(_MAX_FAR_SHARE * len(cameras), 1) else ()


def near_cameras(cameras: Sequence[Camera]) -> list[Camera]:
    """Return the cameras without those of `far_cameras`."""
    far = set(far_cameras(cameras))
    return [camera for index, camera in enumerate(cameras) if index not in far]
