"""Poses of the cameras: where they start, and what is learned about them (PMNI)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fieldwatch.recon.data import NormalView
from fieldwatch.recon.geometry import exponential, look_at, rigid
from fieldwatch.recon.pipelines.normals.config import PoseOptions


class Poses(nn.Module):
    """Poses of all views: [Exp(r) | t] times where they start (left: in the world; PMNI).

    r turns a camera about the origin of the scene's sphere, where the object is: what it sees turns, and stays in the
    picture. r and t start at 0.

    Args:
        start: where the cameras stand.
        options: what is learned.

    Attributes:
        rotations: r of every view, radians; a parameter where rotations are learned.
        translations: t of every view, units of the scene's sphere; likewise.
        start: where they started.
    """

    def __init__(self, start: Float[Tensor, "views 4 4"], options: PoseOptions) -> None:
        super().__init__()
        self.start: Tensor
        self.register_buffer("start", start.float())
        zero = torch.zeros(len(start), 3)
        self._options = options
        # A parameter also where it is not learned, so that checkpoints have one form.
        self.rotations = nn.Parameter(zero.clone(), requires_grad=options.learn_rotation)
        self.translations = nn.Parameter(zero.clone(), requires_grad=options.learn_translation)

    def forward(self, views: Int64[Tensor, " n"] | None = None) -> Float[Tensor, "n 4 4"]:
        """Return `world_from_camera` of some views, or of all."""
        r = self.rotations
        t = self.translations
        start = self.start
        if views is not None:
            r = r[views]
            t = t[views]
            start = start[views]
        return rigid(exponential(r), t) @ start

    def learned_parameters(self) -> list[nn.Parameter]:
        """Parameters that are learned."""
        wanted = ((self._options.learn_rotation, self.rotations), (self._options.learn_translation, self.translations))
        return [parameter for learned, parameter in wanted if learned]

    def freeze(self, *, frozen: bool) -> None:
        """Let poses stay where they are for now, or learn on; held, they have no gradient that nobody asked for."""
        for parameter in self.learned_parameters():
            parameter.requires_grad_(not frozen)

    @torch.no_grad()
    def changes(self) -> Float[Tensor, "2"]:
        """Mean angle (degrees) and mean distance of the cameras from where they started."""
        moved = self()[:, :3, 3] - self.start[:, :3, 3]
        return torch.stack([torch.rad2deg(self.rotations.norm(dim=1)).mean(), moved.norm(dim=1).mean()])


def starting_poses(views: Sequence[NormalView], options: PoseOptions, seed: int) -> Float[Tensor, "views 4 4"]:
    """Return the poses that a run begins with, float64.

    Noise turns a camera where it stands (left of its rotation) and shifts it, each axis by a normal number (PMNI).

    Args:
        views: with cameras as the data has them.
        options: where poses start.
        seed: of the noise.
    """
    if options.pose_start == "dataset":
        return torch.stack([view.camera.world_from_camera.double().cpu() for view in views])
    if options.pose_start == "ring":
        poses = ring_poses(len(views), options.ring_radius, options.ring_angle, clockwise=options.clockwise)
    else:
        poses = _noisy(views, options, seed)
    return centred_poses(views, poses) if options.centred else poses


def centred_poses(views: Sequence[NormalView], poses: Float[Tensor, "views 4 4"]) -> Float[Tensor, "views 4 4"]:
    """Shift cameras across their views until the rays through the middles of their masks pass through the origin.

    Args:
        views: with a lens and a mask each.
        poses: where they are, float64; a view with an empty mask stays there.
    """
    shifted = poses.clone()
    for view, pose in zip(views, shifted, strict=True):
        if not bool(view.mask.any()):
            continue
        camera = view.camera
        x, y = camera.pixel_centres().double().cpu()[view.mask.cpu()].mean(0).unbind()
        direction = torch.stack([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy, torch.ones_like(x)])
        direction = pose[:3, :3] @ (direction / direction.norm())
        # What is left of the position lies along the ray, which so passes through the origin; the distance stays.
        pose[:3, 3] = (pose[:3, 3] @ direction) * direction
    return shifted


def _noisy(views: Sequence[NormalView], options: PoseOptions, seed: int) -> Float[Tensor, "views 4 4"]:
    poses = torch.stack([view.camera.world_from_camera.double().cpu() for view in views])
    generator = torch.Generator().manual_seed(seed)
    turn, shift = torch.randn(2, len(poses), 3, generator=generator, dtype=torch.float64)
    noise = exponential(math.radians(options.rotation_noise) * turn)
    return rigid(noise @ poses[:, :3, :3], poses[:, :3, 3] + options.translation_noise * shift)


def ring_poses(count: int, radius: float, angle: float, *, clockwise: bool = False) -> Float[Tensor, "views 4 4"]:
    """Return cameras evenly around the z axis that look at the origin, as PMNI initialises them, float64.

    Args:
        count: cameras; number k stands at the longitude 2 pi k / count.
        radius: from the origin.
        angle: degrees above the horizon.
        clockwise: seen from above, instead of counter-clockwise.
    """
    above = math.radians(angle)
    sign = -1 if clockwise else 1
    poses = []
    for number in range(count):
        around = sign * 2 * math.pi * number / count
        flat = radius * math.cos(above)
        place = (flat * math.cos(around), flat * math.sin(around), radius * math.sin(above))
        poses.append(look_at(place, (0.0, 0.0, 0.0)))
    return torch.stack(poses).double()
