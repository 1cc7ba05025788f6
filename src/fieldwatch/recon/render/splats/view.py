"""The pinhole camera of the renderers."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

MARGIN = 0.15
"""Margin around the image, as a fraction of its size, at which the Jacobian of the projection is clamped.

The affine approximation of EWA splatting is meaningless far outside the image."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """A pinhole camera in OpenCV axes (x right, y down, z forward) with pixel centers at + 0.5.

    Attributes:
        camera_from_world: rigid transform from world to camera coordinates.
        fx: horizontal focal length in pixels.
        fy: vertical focal length in pixels.
        cx: principal point in pixels from the left edge of the image.
        cy: principal point in pixels from the top edge of the image.
        width: image width in pixels.
        height: image height in pixels.
        near: distance of the near plane in world units.
    """

    camera_from_world: Float[Tensor, "4 4"]
    fx: float
    fy: float
    cx: float
    cy: float
    width: int
    height: int
    near: float = 0.01

    def __post_init__(self) -> None:
        if self.width < 1 or self.height < 1 or not (self.fx > 0 and self.fy > 0):
            raise ValueError(
                f"a view needs a positive size and focal length, got {self.width} x {self.height} pixels with fx "
                f"{self.fx}, fy {self.fy}: check the intrinsics of the camera"
            )

    def scaled(self, factor: float) -> "View":
        """Return the camera with another image resolution; the size is rounded to whole pixels."""
        width = max(round(self.width * factor), 1)
        height = max(round(self.height * factor), 1)
        # Per axis, because rounding may change the aspect ratio.
        across = width / self.width
        down = height / self.height
        return replace(
            self,
            fx=self.fx * across,
            cx=self.cx * across,
            fy=self.fy * down,
            cy=self.cy * down,
            width=width,
            height=height,
        )

    @property
    def bounds(self) -> tuple[float, float, float, float]:
        """Smallest and largest x / z, then y / z, to which the Jacobian of the projection is clamped."""
        # In pixels, then divided by the focal length to a slope.
        across = MARGIN * self.width
        down = MARGIN * self.height
        return (
            (-self.cx - across) / self.fx,
            (self.width - self.cx + across) / self.fx,
            (-self.cy - down) / self.fy,
            (self.height - self.cy + down) / self.fy,
        )

    @property
    def rotation(self) -> Float[Tensor, "3 3"]:
        """Rotation from world to camera axes."""
        return self.camera_from_world[:3, :3]

    @property
    def position(self) -> Float[Tensor, "3"]:
        """Camera center in the world."""
        return -self.rotation.T @ self.camera_from_world[:3, 3]
