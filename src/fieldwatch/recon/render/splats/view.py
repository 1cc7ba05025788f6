"""The camera that splats are drawn for."""

from dataclasses import dataclass, replace

from jaxtyping import Float
from torch import Tensor

MARGIN = 0.15
"""Share of the image's width and height, on each side, beyond which a Gaussian's shape is taken at the margin: the
affine map of EWA splatting is meaningless far outside the image."""


@dataclass(frozen=True, kw_only=True, eq=False)
class View:
    """A pinhole camera in OpenCV axes: x right, y down, z forward; pixel centres at + 0.5.

    Attributes:
        camera_from_world: rigid transform.
        fx: focal length, pixels.
        fy: focal length, pixels.
        cx: principal point, pixels from the image's left edge.
        cy: principal point, pixels from the image's top edge.
        width: pixels.
        height: pixels.
        near: distance of the plane before which nothing is drawn, metres.
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
                f"{self.fx}, fy {self.fy}: check the camera's intrinsics"
            )

    def scaled(self, factor: float) -> "View":
        """Return the same camera with an image of another resolution; the size is rounded to whole pixels."""
        width = max(round(self.width * factor), 1)
        height = max(round(self.height * factor), 1)
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
        """Least and largest x / z, then y / z, inside which the affine map is taken."""
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
        """Camera centre in the world."""
        return -self.rotation.T @ self.camera_from_world[:3, 3]
