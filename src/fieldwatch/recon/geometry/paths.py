"""Camera paths: rings, spirals and turntables that look at a target."""

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry.cameras import Camera, near_cameras
from fieldwatch.recon.geometry.rigid_motion import rigid

Point = Sequence[float]

_MIN_SINE = 1e-6  # sine of the angle between view direction and `up` below which `up` is ignored


def look_at(position: Point, target: Point, up: Point = (0.0, 0.0, 1.0)) -> Float[Tensor, "4 4"]:
    """Return `world_from_camera` of a camera at `position` that looks at `target`, with `up` pointing up in the image.

    If the view direction is parallel to `up`, another up direction is chosen.

    Raises:
        ValueError: if position and target are the same point.
    """
    origin = torch.tensor(list(position), dtype=torch.float64)
    forward = torch.tensor(list(target), dtype=torch.float64) - origin
    if float(forward.norm()) == 0:
        msg = f"position and target of a camera must differ, got {tuple(position)} for both"
        raise ValueError(msg)
    forward = forward / forward.norm()
    right = torch.linalg.cross(forward, torch.tensor(list(up), dtype=torch.float64))
    if float(right.norm()) < _MIN_SINE * math.sqrt(sum(x * x for x in up)):
        # The coordinate axis farthest from the view direction replaces `up`.
        right = torch.linalg.cross(forward, torch.eye(3, dtype=torch.float64)[int(forward.abs().argmin())])
    right = right / right.norm()
    # Columns are the camera axes in the world: x right, y down (forward x right), z forward.
    return rigid(torch.stack([right, torch.linalg.cross(forward, right), forward], -1), origin)


def ring(
    count: int,
    *,
    radius: float,
    height: float,
    target: Point = (0.0, 0.0, 0.0),
    start: float = 0.0,
) -> Float[Tensor, "count 4 4"]:
    """Return poses spaced evenly on a horizontal circle (z is up) that look at `target`.

    Args:
        count: number of cameras.
        radius: radius of the circle in world units.
        height: height of the circle above `target` in world units.
        target: point that the cameras look at.
        start: angle of the first camera from the x axis, as a fraction of a full turn.
    """
    return _orbit_poses([(radius, height, start + i / count) for i in range(count)], target)


def spiral(  # noqa: PLR0913 - parameters of the path
    count: int, *, radius: float, lowest: float, highest: float, turns: float, target: Point = (0.0, 0.0, 0.0)
) -> Float[Tensor, "count 4 4"]:
    """Return poses on a rising spiral over a sphere around `target` (z is up) that look at it.

    Args:
        count: number of cameras.
        radius: distance from the target in world units.
        lowest: elevation of the first camera in degrees above the horizon.
        highest: elevation of the last camera in degrees, below 90.
        turns: number of turns around the target.
        target: point that the cameras look at.
    """
    steps = [i / max(count - 1, 1) for i in range(count)]
    angles = [math.radians(lowest + (highest - lowest) * step) for step in steps]
    orbit = [(radius * math.cos(a), radius * math.sin(a), turns * step) for a, step in zip(angles, steps, strict=True)]
    return _orbit_poses(orbit, target)


def turntable(cameras: Sequence[Camera], count: int) -> list[Camera]:
    """Return cameras for a turntable video: on a circle around the focus point, at the median radius and height.

    The circle is perpendicular to the mean up direction of the cameras. Size and focal length are those of the first
    camera, with the principal point at the image center.

    Raises:
        ValueError: if there are no cameras.
    """
    if not cameras:
        msg = "a turntable requires at least one camera, got none: pass the cameras of the photos"
        raise ValueError(msg)
    target = focus_point(cameras)
    positions = torch.stack([camera.position.double().cpu() for camera in cameras]) - target
    # The y axis of a camera points down.
    up = -torch.stack([camera.world_from_camera[:3, 1].double().cpu() for camera in cameras]).mean(0)
    up = up / up.norm().clamp_min(_MIN_SINE)
    # Split positions into height and horizontal part with respect to `up`.
    heights = positions @ up
    flat = positions - heights[:, None] * up
    # Medians ignore single cameras closer to or farther from the object.
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
    """Return the point nearest to all optical axes in the least squares sense, float64.

    If all cameras have the same view direction, the point is undetermined and the mean position plus the mean view
    direction is returned. Outliers (see `far_cameras`) are ignored.
    """
    cameras = near_cameras(cameras)
    positions = torch.stack([camera.position.double().cpu() for camera in cameras])
    forward = torch.stack([camera.forward.double().cpu() for camera in cameras])
    # I - f f^T projects perpendicular to an axis; the sum gives the normal equations of the squared distances.
    across = torch.eye(3, dtype=torch.float64) - forward[:, :, None] * forward[:, None, :]
    matrix = across.sum(0)
    right = (across @ positions[..., None]).sum(0)[:, 0]
    # For parallel axes the system is singular.
    if float(torch.linalg.eigvalsh(matrix)[0]) < _MIN_SINE * len(cameras):
        return positions.mean(0) + forward.mean(0)
    return torch.linalg.solve(matrix, right)


def _orbit_poses(orbit: Sequence[tuple[float, float, float]], target: Point) -> Float[Tensor, "count 4 4"]:
    """Return poses at (radius, height, fraction of a turn) around a target."""
    poses: list[Tensor] = []
    for radius, height, fraction in orbit:
        angle = 2 * math.pi * fraction
        offset = (radius * math.cos(angle), radius * math.sin(angle), height)
        poses.append(look_at([t + o for t, o in zip(target, offset, strict=True)], target))
    return torch.stack(poses)
