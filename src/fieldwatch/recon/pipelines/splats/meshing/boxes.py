"""Foreground and background: the box of the object, and the box of everything else to mesh (SuGaR, section 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Bool, Float64

from fieldwatch.recon.geometry import Camera, camera_extent, near_cameras, target_ball

Kind = Literal["given", "origin", "object", "seen"]

BACKGROUND = 4.0
"""Half side of the background box around the center of the foreground, in extents of the cameras."""
_COMMON = 0.5  # fraction of the cameras that have a point of the object in their image
_REACH = 2.0  # distance of the object's points from the center of the ball that all cameras look at, in its radii
_LEAST_POINTS = 100
_OBJECT_TAIL = 0.0005  # fraction of the points outside the box of an object, on each side
_SEEN_TAIL = 0.005  # of the box of all that is seen: rays that miss everything end anywhere
_MARGIN = 0.03  # of the longest side


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Foreground:
    """The foreground of a scene.

    Attributes:
        box: its box.
        kind: "given"; "origin" (a cube around the origin); "object" (what the cameras go around); "seen" (all that they
            see).
    """

    box: Box
    kind: Kind


def find_foreground(
    cameras: Sequence[Camera],
    points: Float64[np.ndarray, "n 3"],
    bbox: tuple[tuple[float, float, float], tuple[float, float, float]] | None = None,
    *,
    centered: bool = True,
) -> Foreground:
    """Return the foreground: a given box, or one around the surface points that belong to it.

    If the cameras go around an object (see `target_ball`), these are the points that half of the cameras or more have
    in their image, occluded or not: the region where their frusta meet. Otherwise they are all points.

    Args:
        cameras: cameras of the training photos.
        points: visible surface points.
        bbox: two opposite corners, world units; None finds the box.
        centered: False returns a cube around the origin, one extent of the cameras to each side.
    """
    if bbox is not None:
        return Foreground(box=Box(low=np.array(bbox[0], np.float64), high=np.array(bbox[1], np.float64)), kind="given")
    if not centered:
        return Foreground(box=Box.around(np.zeros(3), camera_extent(cameras)), kind="origin")
    near = near_cameras(cameras)
    ball = target_ball(cameras)
    if ball is not None:
        distances = np.linalg.norm(points - ball.center.numpy(), axis=1)
        common = points[(_framed(near, points) >= _COMMON) & (distances <= _REACH * ball.radius)]
        if len(common) >= _LEAST_POINTS:
            return Foreground(box=_box_of(common, _OBJECT_TAIL), kind="object")
    return Foreground(box=_box_of(points, _SEEN_TAIL), kind="seen")


def _framed(cameras: Sequence[Camera], points: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, " n"]:
    """Return the fraction of the cameras in whose image each point is, occluded or not."""
    counts = np.zeros(len(points))
    positions = torch.from_numpy(points)
    for camera in cameras:
        pixels, depth = camera.to("cpu", torch.float64).project(positions)
        column, row = pixels.unbind(-1)
        inside = (depth > 0) & (column >= 0) & (row >= 0) & (column < camera.width) & (row < camera.height)
        counts += inside.numpy()
    return counts / len(cameras)


def _box_of(points: Float64[np.ndarray, "n 3"], tail: float) -> Box:
    """Return the box of points without the farthest on each side, a fraction `tail` of all, and with a margin."""
    if not len(points):
        return Box(low=np.zeros(3), high=np.zeros(3))
    low, high = np.quantile(points, [tail, 1 - tail], axis=0)
    margin = _MARGIN * float((high - low).max())
    return Box(low=low - margin, high=high + margin)


def background_box(cameras: Sequence[Camera], foreground: Box) -> Box:
    """Return the background box."""
    return Box.around(foreground.middle, BACKGROUND * camera_extent(cameras))
