"""The ball that all cameras of a capture look at."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry.cameras import Camera, near_cameras
from fieldwatch.recon.geometry.paths import focus_point
from fieldwatch.recon.geometry.spread import spread_directions

_MOST_CAMERAS = 0.8  # fraction of the cameras that must have the center in their image
_WIDEST_MEAN = math.cos(math.radians(20.0))  # cosine of the mean angle between the view directions and their mean
_DIRECTIONS = 200  # number of directions that stand for all
_GRAZING = math.cos(math.radians(80.0))  # cosine of the largest angle at which a camera shows a surface
_CUT = 0.25  # fraction of the cameras whose image may cut the ball


@dataclass(frozen=True, kw_only=True, eq=False)
class TargetBall:
    """The ball that all cameras look at.

    Attributes:
        center: the point nearest to all optical axes, world units, float64.
        radius: largest radius with which three quarters of the cameras have the whole ball in their image.
    """

    center: Float[Tensor, "3"]
    radius: float


def target_ball(cameras: Sequence[Camera]) -> TargetBall | None:
    """Return the ball that all cameras look at; None if they do not go around an object.

    They go around an object if four fifths of them have the point nearest to all optical axes in their image, and their
    directions to it differ by more than those of a forward-facing capture: by 20 degrees from their mean, on average.
    Outliers (see `far_cameras`) are ignored.
    """
    cameras = near_cameras(cameras)
    center = focus_point(cameras)
    radii = torch.tensor([_inscribed(camera, center) for camera in cameras])
    directions = torch.nn.functional.normalize(
        torch.stack([center - camera.position.double().cpu() for camera in cameras]), dim=-1
    )
    # The length of the mean of unit vectors is the mean cosine of their angles to it.
    turned = float(directions.mean(0).norm()) < _WIDEST_MEAN
    if not turned or float((radii > 0).double().mean()) < _MOST_CAMERAS:
        return None
    radius = float(radii[radii > 0].quantile(_CUT))
    return TargetBall(center=center, radius=radius)


def seen_from_all_sides(cameras: Sequence[Camera], center: Float[Tensor, "3"]) -> bool:
    """Return whether surfaces of every direction, at a point, face a camera, which an object on a table has not.

    Args:
        cameras: cameras around the point.
        center: the point, world units.
    """
    towards = torch.nn.functional.normalize(
        torch.stack([camera.position.double().cpu() - center for camera in cameras]), dim=-1
    )
    return bool(((spread_directions(_DIRECTIONS) @ towards.T).amax(-1) >= _GRAZING).all())


def _inscribed(camera: Camera, center: Float[Tensor, "3"]) -> float:
    """Return the radius of the largest ball within the camera's frustum; 0 or less if its center is outside."""
    pose = camera.camera_from_world.double().cpu()
    x, y, z = (float(value) for value in pose[:3, :3] @ center + pose[:3, 3])
    distances = [z]
    for along, focal, middle, size in (
        (x, camera.fx, camera.cx, camera.width),
        (y, camera.fy, camera.cy, camera.height),
    ):
        # The planes through the camera and the left or upper edge, and the opposite one.
        for edge, sign in ((-middle / focal, 1.0), ((size - middle) / focal, -1.0)):
            distances.append(sign * (along - edge * z) / math.hypot(1.0, edge))
    return min(distances)
