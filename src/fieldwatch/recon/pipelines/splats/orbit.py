"""Camera paths for films: around what the training cameras look at, but only where they were, and as high."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry import Camera, focus_point, look_at, near_cameras

_GAP = math.radians(90)
"""Widest angle without a camera that a film passes through; nothing behind a wider one was photographed."""
_MARGIN = 0.05  # of an arc, left out at each end: the outermost camera is alone there
_MIN_SWEEP = math.radians(10)
_ANGLE_WIDTH = math.radians(25)  # standard deviation of the weights with which cameras near an angle set the distance
_MAX_ELEVATION = 80.0  # degrees: a camera right above has no upward direction
_ELEVATION_QUANTILES = (0.1, 0.9)  # of the cameras, between which a spiral climbs
_TURNS = 2
_MIN_LENGTH = 1e-6  # shorter vectors have no direction


@dataclass(frozen=True, kw_only=True, eq=False)
class Orbit:
    """Where cameras stood around what they looked at.

    Attributes:
        like: the first of them, with the principal point in the centre.
        target: the point nearest to all their optical axes.
        axes: of the horizontal plane: from the target to angle 0, a quarter turn on, and upwards.
        angles: of the cameras in that plane, radians.
        radii: their distances from the upright axis through the target, world units.
        heights: above the target, world units.
        start: angle at which the arc with cameras begins, radians.
        sweep: how far it goes; a full turn where no gap is wider than 90 degrees.
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
        """Find the orbit of some cameras, at least one."""
        cameras = near_cameras(cameras)
        target = focus_point(cameras)
        up = upwards(cameras)
        offsets = torch.stack([camera.position.double().cpu() for camera in cameras]) - target
        heights = offsets @ up
        horizontal = offsets - heights[:, None] * up
        radii = horizontal.norm(dim=-1)
        # The camera farthest out has the most certain direction; one right above the target has none.
        first = _unit(horizontal[int(radii.argmax())], else_across=up)
        second = torch.linalg.cross(up, first)
        angles = torch.atan2(horizontal @ second, horizontal @ first)
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
        """Return cameras that go round once, there and back where there is a wide gap; the last meets the first."""
        cameras: list[Camera] = []
        for i in range(count):
            angle = self._angle(i / count)
            radius = self._mean_near(angle, self.radii)
            cameras.append(self._camera(angle, radius, self._mean_near(angle, self.heights), i))
        return cameras

    def spiral(self, count: int) -> list[Camera]:
        """Return cameras that go round twice, or there and back twice, while they climb."""
        distances = torch.hypot(self.radii, self.heights)
        elevations = torch.rad2deg(torch.atan2(self.heights, self.radii)).clamp(-_MAX_ELEVATION, _MAX_ELEVATION)
        low, high = (math.radians(float(elevations.quantile(share))) for share in _ELEVATION_QUANTILES)
        cameras: list[Camera] = []
        for i in range(count):
            share = i / max(count - 1, 1)
            angle = self._angle(_TURNS * share)
            elevation = low + (high - low) * share
            distance = self._mean_near(angle, distances)
            cameras.append(self._camera(angle, distance * math.cos(elevation), distance * math.sin(elevation), i))
        return cameras

    def _angle(self, turns: float) -> float:
        """Angle after a number of turns; gently there and back where there is a gap."""
        if self.sweep >= 2 * math.pi:
            return self.start + 2 * math.pi * turns
        return self.start + self.sweep * (0.5 - 0.5 * math.cos(2 * math.pi * turns))

    def _mean_near(self, angle: float, values: Float[Tensor, " cameras"]) -> float:
        """Mean over the cameras, those nearest to an angle counting most."""
        # Differences of angles, from -pi to pi.
        differences = (self.angles - angle + math.pi).remainder(2 * math.pi) - math.pi
        # Gaussian weights by softmax: they do not all underflow to 0 where no camera is near.
        weights = torch.softmax(-0.5 * (differences / _ANGLE_WIDTH).square(), 0)
        return float(weights @ values)

    def _camera(self, angle: float, radius: float, height: float, number: int) -> Camera:
        first, second, up = self.axes
        position = self.target + height * up + radius * (math.cos(angle) * first + math.sin(angle) * second)
        pose = look_at(position.tolist(), self.target.tolist(), up.tolist())
        return replace(self.like, name=f"{number:04d}", world_from_camera=pose)


def _arc(angles: Float[Tensor, " cameras"]) -> tuple[float, float]:
    """Return where the arc of a circle that contains nearly all angles begins, and its length, radians."""
    ordered = angles.sort().values
    gaps = torch.cat([ordered[1:], ordered[:1] + 2 * math.pi]) - ordered
    widest = int(gaps.argmax())
    if float(gaps[widest]) <= _GAP:
        return float(ordered[0]), 2 * math.pi
    whole = 2 * math.pi - float(gaps[widest])
    sweep = max((1 - 2 * _MARGIN) * whole, _MIN_SWEEP)
    return float(ordered[(widest + 1) % len(ordered)]) + (whole - sweep) / 2, sweep


def upwards(cameras: Sequence[Camera]) -> Float[Tensor, "3"]:
    """Return the mean of the cameras' own upward directions, of length 1."""
    up = -torch.stack([camera.world_from_camera[:3, 1].double().cpu() for camera in cameras]).mean(0)
    return _unit(up, else_across=cameras[0].forward.double().cpu())


def _unit(vector: Float[Tensor, "3"], *, else_across: Float[Tensor, "3"]) -> Float[Tensor, "3"]:
    """Return a vector of length 1; where it has none, some direction across another."""
    if float(vector.norm()) < _MIN_LENGTH:
        vector = torch.linalg.cross(else_across, torch.eye(3, dtype=torch.float64)[int(else_across.abs().argmin())])
    return vector / vector.norm()
