"""Camera paths for videos: around the focus of the training cameras, within the arc and heights they covered."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry import Camera, focus_point, look_at, near_cameras

_GAP = math.radians(90)
"""Widest gap between cameras that a path crosses, radians; wider gaps are not photographed well enough."""
_MARGIN = 0.05  # fraction of an arc omitted at each end, where only the outermost camera has seen the scene
_MIN_SWEEP = math.radians(10)
_ANGLE_WIDTH = math.radians(25)  # standard deviation of the angular weights that average the cameras' distances
_MAX_ELEVATION = 80.0  # degrees; directly above the focus, a camera has no defined upward direction
_ELEVATION_QUANTILES = (0.1, 0.9)  # quantiles of the cameras' elevations that a spiral spans
_TURNS = 2
_MIN_LENGTH = 1e-6  # length below which a vector has no defined direction


@dataclass(frozen=True, kw_only=True, eq=False)
class Orbit:
    """Positions of cameras around the target they look at, in cylindrical coordinates.

    Attributes:
        like: first camera with its principal point moved to the image center; a template for the cameras of a path.
        target: point nearest to all optical axes.
        axes: unit vectors from the target to angle 0, to a quarter turn, and upwards.
        angles: azimuths of the cameras, radians.
        radii: distances of the cameras from the vertical axis through the target, world units.
        heights: heights of the cameras above the target, world units.
        start: azimuth at which the arc covered by cameras starts, radians.
        sweep: length of the arc, radians; a full turn if no gap is wider than 90 degrees.
    """

    like: Camera
    target: Float[Tensor, "3"]
    axes: Float[Tensor, "3 3"]
    angles: Float[Tensor, " cameras"]
    radii: Float[Tensor, " cameras"]
    heights: Float[Tensor, " cameras"]
    start: float
    sweep: float

    @classmethod
    def of(cls, cameras: Sequence[Camera]) -> Self:
        """Return the orbit of one or more cameras."""
        cameras = near_cameras(cameras)
        target = focus_point(cameras)
        up = upwards(cameras)
        offsets = torch.stack([camera.position.double().cpu() for camera in cameras]) - target
        heights = offsets @ up
        horizontal = offsets - heights[:, None] * up
        radii = horizontal.norm(dim=-1)
        # The outermost camera has the best defined direction; one directly above the target has none.
        first = _unit(horizontal[int(radii.argmax())], else_across=up)
        second = torch.linalg.cross(up, first)
        angles = torch.atan2(horizontal @ second, horizontal @ first)
        # Angles are relative to the outermost camera.
        start, sweep = _arc(angles)
        return cls(
            like=replace(cameras[0], cx=cameras[0].width / 2, cy=cameras[0].height / 2),
            target=target,
            axes=torch.stack([first, second, up]),
            angles=angles,
            radii=radii,
            heights=heights,
            start=start,
            sweep=sweep,
        )

    def turntable(self, count: int) -> list[Camera]:
        """Return cameras on one closed turn, or back and forth over the arc if there is a wide gap."""
        cameras: list[Camera] = []
        for i in range(count):
            angle = self._angle(i / count)
            radius = self._mean_near(angle, self.radii)
            cameras.append(self._camera(angle, radius, self._mean_near(angle, self.heights), i))
        return cameras

    def spiral(self, count: int) -> list[Camera]:
        """Return cameras on two rising turns, or twice back and forth over the arc if there is a wide gap."""
        distances = torch.hypot(self.radii, self.heights)
        elevations = torch.rad2deg(torch.atan2(self.heights, self.radii)).clamp(-_MAX_ELEVATION, _MAX_ELEVATION)
        low, high = (math.radians(float(elevations.quantile(quantile))) for quantile in _ELEVATION_QUANTILES)
        cameras: list[Camera] = []
        for i in range(count):
            progress = i / max(count - 1, 1)
            angle = self._angle(_TURNS * progress)
            elevation = low + (high - low) * progress
            distance = self._mean_near(angle, distances)
            cameras.append(self._camera(angle, distance * math.cos(elevation), distance * math.sin(elevation), i))
        return cameras

    def _angle(self, turns: float) -> float:
        """Return the azimuth after a number of turns; over an arc, the motion is sinusoidal."""
        if self.sweep >= 2 * math.pi:
            return self.start + 2 * math.pi * turns
        # The cosine slows the camera down smoothly before it reverses at the ends of the arc.
        return self.start + self.sweep * (0.5 - 0.5 * math.cos(2 * math.pi * turns))

    def _mean_near(self, angle: float, values: Float[Tensor, " cameras"]) -> float:
        """Return the mean of values over the cameras, weighted by proximity to an azimuth."""
        # Wrapped to [-pi, pi).
        differences = (self.angles - angle + math.pi).remainder(2 * math.pi) - math.pi
        # Gaussian weights as a softmax, which does not underflow to 0 / 0 if no camera is near.
        weights = torch.softmax(-0.5 * (differences / _ANGLE_WIDTH).square(), 0)
        return float(weights @ values)

    def _camera(self, angle: float, radius: float, height: float, number: int) -> Camera:
        first, second, up = self.axes
        position = self.target + height * up + radius * (math.cos(angle) * first + math.sin(angle) * second)
        pose = look_at(position.tolist(), self.target.tolist(), up.tolist())
        return replace(self.like, name=f"{number:04d}", world_from_camera=pose)


def _arc(angles: Float[Tensor, " cameras"]) -> tuple[float, float]:
    """Return start and length, radians, of the arc with nearly all angles: the circle without its widest gap."""
    ordered = angles.sort().values
    # The last gap wraps around the circle.
    gaps = torch.cat([ordered[1:], ordered[:1] + 2 * math.pi]) - ordered
    widest = int(gaps.argmax())
    if float(gaps[widest]) <= _GAP:
        return float(ordered[0]), 2 * math.pi
    whole = 2 * math.pi - float(gaps[widest])
    # At least 10 degrees, so that a single camera gives a visible motion.
    sweep = max((1 - 2 * _MARGIN) * whole, _MIN_SWEEP)
    return float(ordered[(widest + 1) % len(ordered)]) + (whole - sweep) / 2, sweep


def upwards(cameras: Sequence[Camera]) -> Float[Tensor, "3"]:
    """Return the mean upward direction of the cameras, as a unit vector."""
    # The second camera axis points down.
    up = -torch.stack([camera.world_from_camera[:3, 1].double().cpu() for camera in cameras]).mean(0)
    return _unit(up, else_across=cameras[0].forward.double().cpu())


def _unit(vector: Float[Tensor, "3"], *, else_across: Float[Tensor, "3"]) -> Float[Tensor, "3"]:
    """Return the unit vector; if the length is nearly 0, return a direction perpendicular to `else_across`."""
    if float(vector.norm()) < _MIN_LENGTH:
        vector = torch.linalg.cross(else_across, torch.eye(3, dtype=torch.float64)[int(else_across.abs().argmin())])
    return vector / vector.norm()
