"""Coarse pose search over all directions and rolls, each at the distance that matches the silhouette.

The camera is aimed at the center of the silhouette, so that rolls are rotations of the image: the mesh is rendered once
per direction, the observed image is rotated once per roll, and all pairs are compared.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn import functional

from fieldwatch.recon.data import NormalView, scaled_normal_view
from fieldwatch.recon.geometry import Camera, exponential, look_at, rigid, spread_directions
from fieldwatch.recon.pipelines.normals.pose_accuracy import rotation_angles
from fieldwatch.recon.pipelines.normals.registration_shape import Shape, filled, moments

APART = 90.0
"""Error in degrees assigned to a pixel at which only one of the two images shows the object."""
_ROOM = 1.2  # size of the window relative to the silhouette
_WIDEST = math.radians(70)  # maximum half angle of a window
_RANKED = 1000  # number of best poses from which distinct ones are chosen


@dataclass(frozen=True, kw_only=True, eq=False)
class PoseCandidate:
    """A pose and its score.

    Attributes:
        pose: ``world_from_camera`` in the frame of the scene's sphere.
        score: mean angle between normals in degrees, with 90 for pixels at which only one image shows the object.
    """

    pose: Float64[Tensor, "4 4"]
    score: float


@dataclass(frozen=True, kw_only=True, eq=False)
class _Turned:
    """The observed image in windows around the center of its silhouette, one for each roll.

    Attributes:
        camera: camera of the windows; its pose is ignored.
        camera_from_window: rotations of the windows.
        normals: normals in the windows' axes.
        known: whether the normal is known.
        mask: silhouette with holes filled.
        counts: whether the pixel is not in a hole.
        solid_angle: solid angle of the silhouette.
    """

    camera: Camera
    camera_from_window: Float64[Tensor, "rolls 3 3"]
    normals: Float[Tensor, "rolls pixels 3"]
    known: Bool[Tensor, "rolls pixels"]
    mask: Bool[Tensor, "rolls pixels"]
    counts: Bool[Tensor, "rolls pixels"]
    solid_angle: float


def find_poses(  # noqa: PLR0913  the surface, the view, and the resolution of the search
    shape: Shape, view: NormalView, *, directions: int, rolls: int, window: int, wanted: int, distinct: float
) -> list[PoseCandidate]:
    """Compare a view with the surface from all sides; return the best distinct poses, best first.

    Args:
        shape: surface of the model.
        view: observed view; the pose of its camera is ignored.
        directions: number of viewing directions, evenly spread over the sphere.
        rolls: number of rolls per direction.
        window: width and height of the compared images in pixels.
        wanted: maximum number of poses.
        distinct: minimum angle between the rotations of any two poses, in degrees.
    """
    turned = _turned(view, rolls, window, shape)
    poses = list[Tensor]()
    scores = list[Tensor]()
    for direction in spread_directions(directions, phase=0.5):
        placed = _placed(shape, direction, turned)
        if placed is None:
            continue
        camera, scores_of_rolls = placed
        scores.append(scores_of_rolls)
        window_from_camera = turned.camera_from_window.mT
        poses.append(rigid(camera.world_from_camera[:3, :3] @ window_from_camera, camera.position.expand(rolls, 3)))
    if not poses:
        return []
    return _distinct(torch.cat(poses), torch.cat(scores), wanted, distinct)


def rotation_between(one: Float64[Tensor, "4 4"], other: Float64[Tensor, "4 4"]) -> float:
    """Return the angle between the rotations of two poses, degrees."""
    return float(rotation_angles(one[None, :3, :3], other[None, :3, :3])[0])


def _turned(view: NormalView, rolls: int, window: int, shape: Shape) -> _Turned:
    """Resample the observed image in windows."""
    filled_mask = filled(view.mask)
    middle, solid_angle = moments(filled_mask, view.camera)
    directions = functional.normalize(view.camera.to("cpu", torch.float64).directions()[filled_mask], dim=-1)
    # The largest angle between the center and any pixel of the silhouette.
    reach = min(float((directions @ middle).clamp(-1, 1).acos().max()), _WIDEST / _ROOM)
    # The silhouette fills the window except for the margin.
    focal = 0.5 * window / math.tan(_ROOM * reach)
    # The surface's radius gives an initial estimate of the camera distance.
    pose = look_at([0.0, 0.0, -shape.radius / math.sin(reach)], [0.0, 0.0, 0.0])
    lens = {"fx": focal, "fy": focal, "cx": window / 2, "cy": window / 2}
    camera = Camera(name="window", width=window, height=window, **lens, world_from_camera=pose)
    angles = torch.arange(rolls, dtype=torch.float64) * 2 * math.pi / rolls
    rotations = towards(middle) @ exponential(angles[:, None] * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64))
    factor = min(1.0, focal / max(view.camera.fx, view.camera.fy))
    # Downscaled to the window's resolution first, so that the nearest pixel averages what the window's pixel covers.
    small = scaled_normal_view(replace(view, mask=filled_mask), factor)
    holes = scaled_normal_view(replace(view, mask=filled_mask & ~view.mask, depth=None), factor).mask
    rays = camera.directions().view(-1, 3) @ rotations.mT
    pixels, inside = _pixels(rays, small.camera)
    normals = small.normals.view(-1, 3)[pixels].double() @ rotations
    mask = small.mask.view(-1)[pixels] & inside
    hidden = holes.view(-1)[pixels] & inside
    return _Turned(
        camera=camera,
        camera_from_window=rotations,
        normals=normals.float(),
        known=small.known.view(-1)[pixels] & mask & ~hidden,
        mask=mask,
        counts=~hidden & inside,
        solid_angle=solid_angle,
    )


def _pixels(
    rays: Float64[Tensor, "rolls pixels 3"], camera: Camera
) -> tuple[Int64[Tensor, "rolls pixels"], Bool[Tensor, "rolls pixels"]]:
    """Return the pixel that each ray hits, and whether it is inside the image."""
    x, y, z = rays.unbind(-1)
    # Division by z <= 0 gives positions that `inside` excludes.
    column = (camera.fx * x / z + camera.cx).floor()
    row = (camera.fy * y / z + camera.cy).floor()
    inside = (z > 0) & (column >= 0) & (column < camera.width) & (row >= 0) & (row < camera.height)
    return torch.where(inside, row * camera.width + column, 0).long(), inside


def towards(direction: Float64[Tensor, "3"]) -> Float64[Tensor, "3 3"]:
    """Return the smallest rotation that takes the z axis to a direction (not its opposite)."""
    x, y, z = direction.tolist()
    # z x direction: the rotation axis, whose length is the sine of the angle.
    across = torch.tensor([-y, x, 0.0], dtype=torch.float64)
    sine = math.hypot(x, y)
    angle = math.atan2(sine, z)
    return exponential((across * (angle / sine if sine > 0 else 1.0))[None])[0]


def _placed(
    shape: Shape, direction: Float64[Tensor, "3"], turned: _Turned
) -> tuple[Camera, Float64[Tensor, " rolls"]] | None:
    """Place the camera in a direction such that centers and sizes of the silhouettes match; score all rolls."""
    distance = float(turned.camera.position.norm())
    position = shape.center + distance * direction
    camera = replace(turned.camera, world_from_camera=look_at(position.tolist(), shape.center.tolist()))
    scores: Tensor | None = None
    # The first pass only corrects distance and aim; the second is scored, and corrects the pose once more.
    for iteration in range(2):
        rasterized = shape.rasterize(camera)
        filled_mask = filled(rasterized.mask)
        if not bool(filled_mask.any()):
            return None
        if iteration:
            scores = _scores(
                rasterized.normals @ camera.world_from_camera[:3, :3], rasterized.mask, filled_mask, turned
            )
        middle, size = moments(filled_mask, camera)
        # A solid angle is inversely proportional to the squared distance.
        distance *= math.sqrt(size / turned.solid_angle)
        rotation = camera.world_from_camera[:3, :3] @ towards(middle)
        pose = rigid(rotation, shape.center + distance * direction)
        camera = replace(camera, world_from_camera=pose)
    return None if scores is None else (camera, scores)


def _scores(
    normals: Float64[Tensor, "height width 3"],
    mask: Bool[Tensor, "height width"],
    whole: Bool[Tensor, "height width"],
    turned: _Turned,
) -> Float64[Tensor, " rolls"]:
    rendered_normals = normals.view(-1, 3).float()
    rendered_mask = mask.view(-1)
    filled_mask = whole.view(-1)
    angles = torch.rad2deg((turned.normals * rendered_normals).sum(-1).clamp(-1, 1).acos())
    both = turned.known & rendered_mask & turned.counts
    only_one = (turned.mask ^ filled_mask) & turned.counts
    union = (turned.mask | filled_mask) & turned.counts
    total = torch.where(both, angles, 0).sum(1) + APART * only_one.sum(1)
    return (total / union.sum(1).clamp_min(1)).double()


def _distinct(
    poses: Float64[Tensor, "n 4 4"], scores: Float64[Tensor, " n"], wanted: int, distinct: float
) -> list[PoseCandidate]:
    chosen: list[PoseCandidate] = []
    # Greedy, best first: of poses that are close to one another the best one is kept.
    for number in scores.argsort()[:_RANKED].tolist():
        pose = poses[number]
        # Rotations alone distinguish candidates: distances follow from the silhouette.
        if all(rotation_between(pose, other.pose) >= distinct for other in chosen):
            chosen.append(PoseCandidate(pose=pose, score=float(scores[number])))
        if len(chosen) == wanted:
            break
    return chosen
