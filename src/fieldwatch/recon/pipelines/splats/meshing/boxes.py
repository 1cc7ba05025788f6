"""Foreground and background: the box of the object, and the box of all else that is meshed (SuGaR, section 5)."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float64

from fieldwatch.recon.geometry import Camera, camera_extent, looked_at, near_cameras

BACKGROUND = 4.0
"""How far the background reaches around the foreground's middle, in extents of the cameras."""
_MAX_TARGET_DISTANCE = 2.0  # extents: with a target farther away, the cameras look at nothing in common


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """A box along the axes.

    Attributes:
        low: corner with the least coordinates, world units.
        high: the opposite one.
    """

    low: Float64[np.ndarray, "3"]
    high: Float64[np.ndarray, "3"]

    def contains(self, points: Float64[np.ndarray, "n 3"]) -> Bool[np.ndarray, " n"]:
        """Return which points are inside."""
        return np.all((points >= self.low) & (points <= self.high), axis=1)

    @classmethod
    def around(cls, middle: Float64[np.ndarray, "3"], reach: float) -> "Box":
        """Return a cube."""
        return cls(low=middle - reach, high=middle + reach)

    @property
    def middle(self) -> Float64[np.ndarray, "3"]:
        """Its centre."""
        return (self.low + self.high) / 2

    def __str__(self) -> str:
        numbers = [", ".join(f"{value:.3g}" for value in corner) for corner in (self.low, self.high)]
        return f"({numbers[0]}) to ({numbers[1]})"


def foreground_box(
    cameras: Sequence[Camera],
    bbox: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None,
    *,
    centred: bool = True,
) -> Box:
    """Return the foreground: the box that was given, else one extent of the cameras to all sides.

    SuGaR centres its box, even a given one, at the mean camera; here a given box is taken as it is, and the other one
    has its middle where the cameras look (at the mean camera, where they look at nothing in common).

    Args:
        cameras: of the training photos.
        bbox: corners.
        centred: False has the automatic box around the origin.
    """
    if bbox is not None:
        return Box(low=np.array(bbox[0], np.float64), high=np.array(bbox[1], np.float64))
    extent = camera_extent(cameras)
    if not centred:
        return Box.around(np.zeros(3), extent)
    positions = np.stack([camera.position.double().cpu().numpy() for camera in near_cameras(cameras)])
    middle = looked_at(cameras).numpy()
    mean = positions.mean(0)
    if np.linalg.norm(middle - mean) > _MAX_TARGET_DISTANCE * extent:
        middle = mean
    return Box.around(middle, extent)


def background_box(cameras: Sequence[Camera], foreground: Box) -> Box:
    """Return how far the background reaches."""
    return Box.around(foreground.middle, BACKGROUND * camera_extent(cameras))
