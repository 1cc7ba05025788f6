"""Foreground and background: the box of the object, and the box of everything else to mesh (SuGaR, section 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from fieldwatch.recon.geometry import Camera, camera_extent, focus_point, near_cameras

BACKGROUND = 4.0
"""Half side of the background box around the center of the foreground, in extents of the cameras."""
_MAX_TARGET_DISTANCE = 2.0  # extents; if the target is farther away, the cameras have no common target


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """Axis-aligned box.

    Attributes:
        low: corner with the smallest coordinates, world units.
        high: opposite corner, world units.
    """

    low: Float64[np.ndarray, "3"]
    high: Float64[np.ndarray, "3"]

    def contains(self, points: Float64[np.ndarray, "n 3"]) -> Bool[np.ndarray, " n"]:
        """Return a mask of the points inside the box."""
        return np.all((points >= self.low) & (points <= self.high), axis=1)

    @classmethod
    def around(cls, middle: Float64[np.ndarray, "3"], reach: float) -> "Box":
        """Return the cube with the given center and half side."""
        return cls(low=middle - reach, high=middle + reach)

    @property
    def middle(self) -> Float64[np.ndarray, "3"]:
        """Center of the box."""
        return (self.low + self.high) / 2

    def __str__(self) -> str:
        numbers = [", ".join(f"{value:.3g}" for value in corner) for corner in (self.low, self.high)]
        return f"({numbers[0]}) to ({numbers[1]})"


def foreground_box(
    cameras: Sequence[Camera],
    bbox: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None,
    *,
    centered: bool = True,
) -> Box:
    """Return the foreground box: the given one, or a cube that extends one extent of the cameras in each direction.

    SuGaR centers every box, even a given one, on the mean camera position. Here, a given box is used as it is, and the
    automatic one is centered on the point that the cameras look at, or on the mean camera position if the cameras have
    no common target.

    Args:
        cameras: cameras of the training photos.
        bbox: two opposite corners, world units; None uses the automatic box.
        centered: False centers the automatic box on the origin.
    """
    if bbox is not None:
        return Box(low=np.array(bbox[0], np.float64), high=np.array(bbox[1], np.float64))
    extent = camera_extent(cameras)
    if not centered:
        return Box.around(np.zeros(3), extent)
    # Without cameras that are far away, whose poses are probably wrong.
    positions = np.stack([camera.position.double().cpu().numpy() for camera in near_cameras(cameras)])
    middle = focus_point(cameras).numpy()
    mean = positions.mean(0)
    # Nearly parallel optical axes, as in forward-facing captures, have no meaningful intersection.
    if np.linalg.norm(middle - mean) > _MAX_TARGET_DISTANCE * extent:
        middle = mean
    return Box.around(middle, extent)


def background_box(cameras: Sequence[Camera], foreground: Box) -> Box:
    """Return the background box."""
    return Box.around(foreground.middle, BACKGROUND * camera_extent(cameras))
