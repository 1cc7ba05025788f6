"""Where cameras may stand: looking at a point, on rings, on turntables and on spirals."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry.cameras import Camera, near_cameras
from fieldwatch.recon.geometry.rigid import rigid

Point = Sequence[float]

_MIN_SINE = 1e-6  # sine of the angle to `up` below which up says nothing


def look_at(position: Point, target: Point, up: Point = (0.0, 0.0, 1.0)) -> Float[Tensor, "4 4"]:
    """Return `world_from_camera` of a camera at `position` that looks at `target`, with `up` upwards in its picture.

    Where the view runs along `up`, some other direction is upwards.

    Raises:
        ValueError: position and target are the same point.
    """
    origin = torch.tensor(list(position), dtype=torch.float64)
    forward = torch.tensor(list(target), dtype=torch.float64) - origin
    if float(forward.norm()) == 0:
        msg = f"a camera at {tuple(position)} can not look at the point where it stands: move the camera or the target"
        raise ValueError(msg)
    forward = forward / forward.norm()
    right = torch.linalg.cross(forward, torch.tensor(list(up), dtype=torch.float64))
    if float(right.norm()) < _MIN_SINE * math.sqrt(sum(x * x for x in up)):
        # Any axis far from the view direction serves as a substitute for up.
        right = torch.linalg.cross(forward, torch.eye(3, dtype=torch.float64)[int(forward.abs().argmin())])
    right = right / right.norm()
    return rigid(torch.stack([right, torch.linalg.cross(forward, right), forward], -1), origin)


def ring(
    count: int,
    *,
    radius: float,
    height: float,
    target: Point = (0.0, 0.0, 0.0),
    start: float = 0.0,
) -> Float[Tensor, "count 4 4"]:
    """Return cameras evenly on a horizontal circle (z is up) around `target`, all looking at it.

    Args:
        count: cameras.
        radius: of the circle, in world units.
        height: of the circle above `target`.
        target: what they look at.
        start: share of the turn, 0 .. 1, by which the first one is turned from the x axis.
    """
    return _orbit_poses([(radius, height, start + i / count) for i in range(count)], target)


def spiral(  # noqa: PLR0913 - the numbers that make a spiral
    count: int, *, radius: float, lowest: float, highest: float, turns: float, target: Point = (0.0, 0.0, 0.0)
) -> Float[Tensor, "count 4 4"]:
    """Return cameras that climb over a sphere around `target` (z is up) while they circle it, all looking at it.

    Args:
        count: cameras.
        radius: distance from the target, in world units.
        lowest: elevation of the first, in degrees above the horizon.
        highest: elevation of the last, below 90.
        turns: how often they circle it.
        target: what they look at.
    """
    shares = [i / max(count - 1, 1) for i in range(count)]
    angles = [math.radians(lowest + (highest - lowest) * share) for share in shares]
    orbit = [
        (radius * math.cos(a), radius * math.sin(a), turns * share) for a, share in zip(angles, shares, strict=True)
    ]
    return _orbit_poses(orbit, target)


def turntable(cameras: Sequence[Camera], count: int) -> list[Camera]:
    """Return cameras for a film around what some cameras looked at: a circle through the middle of where they stood.

    The circle is level with respect to the mean of their own upward directions; size and focal length are those of
    the first one, with the principal point in the centre.

    Raises:
        ValueError: no camera.
    """
    if not cameras:
        msg = "a turntable around what no cameras see was asked for: give the cameras of the photos"
        raise ValueError(msg)
    target = focus_point(cameras)
    positions = torch.stack([camera.position.double().cpu() for camera in cameras]) - target
    # Cameras have y down, so the mean of -y is up.
    up = -torch.stack([camera.world_from_camera[:3, 1].double().cpu() for camera in cameras]).mean(0)
    up = up / up.norm().clamp_min(_MIN_SINE)
    # Split positions into height and horizontal part with respect to that direction.
    heights = positions @ up
    flat = positions - heights[:, None] * up
    radius = float(flat.norm(dim=-1).median())
    height = float(heights.median())
    first = flat[int(flat.norm(dim=-1).argmax())]
    first = first / first.norm().clamp_min(_MIN_SINE)
    second = torch.linalg.cross(up, first)
    template = replace(cameras[0], cx=cameras[0].width / 2, cy=cameras[0].height / 2)
    orbit: list[Camera] = []
    for i in range(count):
        angle = 2 * math.pi * i / count
        position = target + height * up + radius * (math.cos(angle) * first + math.sin(angle) * second)
        pose = look_at(position.tolist(), target.tolist(), up.tolist()).to(template.world_from_camera)
        orbit.append(replace(template, name=f"turntable_{i:04d}", world_from_camera=pose))
    return orbit


def focus_point(cameras: Sequence[Camera]) -> Float[Tensor, "3"]:
    """Return the point nearest to all optical axes, in the least squares sense (float64).

    Cameras that all look the same way have no such point: then it is their mean position plus their mean view. Cameras
    that stand far away from all others (`far_cameras`) do not count.
    """
    cameras = near_cameras(cameras)
    positions = torch.stack([camera.position.double().cpu() for camera in cameras])
    forward = torch.stack([camera.forward.double().cpu() for camera in cameras])
    # Projectors perpendicular to each axis: normal equations of the squared distances.
    across = torch.eye(3, dtype=torch.float64) - forward[:, :, None] * forward[:, None, :]
    matrix = across.sum(0)
    right = (across @ positions[..., None]).sum(0)[:, 0]
    # Parallel axes make the system singular.
    if float(torch.linalg.eigvalsh(matrix)[0]) < _MIN_SINE * len(cameras):
        return positions.mean(0) + forward.mean(0)
    return torch.linalg.solve(matrix, right)


def _orbit_poses(orbit: Sequence[tuple[float, float, float]], target: Point) -> Float[Tensor, "count 4 4"]:
    """Poses at (radius, height, share of a turn) around a target."""
    poses: list[Tensor] = []
    for radius, height, share in orbit:
        angle = 2 * math.pi * share
        offset = (radius * math.cos(angle), radius * math.sin(angle), height)
        poses.append(look_at([t + o for t, o in zip(target, offset, strict=True)], target))
    return torch.stack(poses)
