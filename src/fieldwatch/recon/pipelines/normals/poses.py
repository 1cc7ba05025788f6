"""Camera poses: their initial values, and the optimized corrections (PMNI)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from fieldwatch import InputError
from fieldwatch.recon.data import NormalView
from fieldwatch.recon.geometry import exponential, look_at, rigid
from fieldwatch.recon.pipelines.normals.config import PoseOptions
from fieldwatch.recon.render.sdf_gpu import moved_poses, sdf_kernels_problem

OBJECT_REACH = 0.8
"""Distance that the object reaches from the origin of the scene's sphere, as in sets that are read from captures."""
LEAST_RING = 1.2
"""Least radius of a ring of cameras, in units of the scene's sphere."""


class Poses(nn.Module):
    """Poses of all views: corrections [Exp(r) | t], applied from the left (in the world), times the initial poses.

    r rotates a camera about the origin of the scene's sphere, where the object is, so that the object stays in the
    image. r and t start at 0 (PMNI).

    Args:
        start: initial ``world_from_camera`` of the views.
        options: which parts are optimized.

    Attributes:
        rotations: r of every view in radians; requires gradients if rotations are optimized.
        translations: t of every view in units of the scene's sphere; requires gradients if positions are optimized.
        start: initial poses.
    """

    def __init__(self, start: Float[Tensor, "views 4 4"], options: PoseOptions) -> None:
        super().__init__()
        self.start: Tensor
        self.register_buffer("start", start.float())
        zero = torch.zeros(len(start), 3)
        self._options = options
        self._known: tuple[list[tuple[Tensor, int]], Tensor] | None = None
        # Parameters even if they are not optimized, so that all checkpoints have the same keys.
        self.rotations = nn.Parameter(zero.clone(), requires_grad=options.learn_rotation)
        self.translations = nn.Parameter(zero.clone(), requires_grad=options.learn_translation)

    def forward(self, views: Int64[Tensor, " n"] | None = None) -> Float[Tensor, "n 4 4"]:
        """Return ``world_from_camera`` of the given views, or of all."""
        r = self.rotations
        t = self.translations
        start = self.start
        if views is None:
            return _moved(r, t, start) if self.learned_parameters() else self._fixed()
        return rigid(exponential(r[views]), t[views]) @ start[views]

    def _fixed(self) -> Float[Tensor, "views 4 4"]:
        """Return poses that are never optimized, moved once."""
        parts = (self.rotations, self.translations, self.start)
        now = [(part, part._version) for part in parts]  # noqa: SLF001  counts writes, as of a checkpoint
        known = self._known
        if known is None or any(a is not b or n != m for (a, n), (b, m) in zip(known[0], now, strict=True)):
            # A tensor made in inference mode could never take part in a training.
            with torch.inference_mode(False):
                known = self._known = (now, _moved(*parts).detach())
        return known[1]

    def learned_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are optimized."""
        options = self._options
        candidates = ((options.learn_rotation, self.rotations), (options.learn_translation, self.translations))
        return [parameter for learned, parameter in candidates if learned]

    def freeze(self, *, frozen: bool) -> None:
        """Freeze the optimized parameters or unfreeze them; frozen parameters get no gradient."""
        for parameter in self.learned_parameters():
            parameter.requires_grad_(not frozen)

    @torch.no_grad()
    def changes(self) -> Float[Tensor, "2"]:
        """Return the mean rotation angle (degrees) and mean displacement of the cameras since the start."""
        moved = self()[:, :3, 3] - self.start[:, :3, 3]
        return torch.stack([torch.rad2deg(self.rotations.norm(dim=1)).mean(), moved.norm(dim=1).mean()])


def _moved(
    rotations: Float[Tensor, "views 3"], translations: Float[Tensor, "views 3"], start: Float[Tensor, "views 4 4"]
) -> Float[Tensor, "views 4 4"]:
    if start.is_cuda and sdf_kernels_problem() is None:
        return moved_poses(rotations, translations, start)
    return rigid(exponential(rotations), translations) @ start


def starting_poses(views: Sequence[NormalView], options: PoseOptions, seed: int) -> Float[Tensor, "views 4 4"]:
    """Return the initial poses of a run, float64.

    Noise rotates a camera in place (from the left of its rotation) and shifts it, with a normal deviate per axis
    (PMNI).

    Args:
        views: views with the dataset's cameras.
        options: how poses are initialized.
        seed: seed of the noise.
    """
    if options.pose_start == "dataset":
        return torch.stack([view.camera.world_from_camera.double().cpu() for view in views])
    if options.pose_start == "ring":
        radius = ring_radius_of(views) if options.ring_radius is None else options.ring_radius
        poses = ring_poses(len(views), radius, options.ring_angle, clockwise=options.clockwise)
    else:
        poses = _noisy(views, options, seed)
    return centered_poses(views, poses) if options.centered else poses


def ring_radius_of(views: Sequence[NormalView]) -> float:
    """Return the distance at which the masks have the size of an object that reaches `OBJECT_REACH` from the origin.

    The largest angle between the center of a mask and its pixels is that under which a sphere around the object is
    seen; the median over the views is used.

    Args:
        views: views with masks and lenses; at least one mask is not black.

    Raises:
        InputError: all masks are black.
    """
    sines: list[float] = []
    for view in views:
        if not bool(view.mask.any()):
            continue
        rays = torch.nn.functional.normalize(view.camera.directions().double().cpu()[view.mask.cpu()], dim=-1)
        center = torch.nn.functional.normalize(rays.mean(0), dim=0)
        cosine = float((rays @ center).min().clamp(-1, 1))
        sines.append(math.sqrt(1 - cosine**2))
    if not sines:
        raise InputError("all masks are black, so the ring has no size: give masks, or its radius with --ring-radius")
    # A camera within the sphere of the scene would see nothing of it.
    return max(OBJECT_REACH / max(sorted(sines)[len(sines) // 2], 1e-6), LEAST_RING)


def centered_poses(views: Sequence[NormalView], poses: Float[Tensor, "views 4 4"]) -> Float[Tensor, "views 4 4"]:
    """Shift cameras parallel to their images until the ray through the center of each mask passes through the origin.

    Args:
        views: views with a camera and a mask each.
        poses: their poses, float64; the pose of a view with an empty mask is left unchanged.
    """
    shifted = poses.clone()
    for view, pose in zip(views, shifted, strict=True):
        if not bool(view.mask.any()):
            continue
        camera = view.camera
        x, y = camera.pixel_centers().double().cpu()[view.mask.cpu()].mean(0).unbind()
        direction = torch.stack([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy, torch.ones_like(x)])
        # From camera axes to world axes.
        direction = pose[:3, :3] @ (direction / direction.norm())
        # The projection of the position onto the ray: the ray then passes through the origin, at the same depth.
        pose[:3, 3] = (pose[:3, 3] @ direction) * direction
    return shifted


def _noisy(views: Sequence[NormalView], options: PoseOptions, seed: int) -> Float[Tensor, "views 4 4"]:
    poses = torch.stack([view.camera.world_from_camera.double().cpu() for view in views])
    generator = torch.Generator().manual_seed(seed)
    turn, shift = torch.randn(2, len(poses), 3, generator=generator, dtype=torch.float64)
    # From the left, like the learned rotations.
    noise = exponential(math.radians(options.rotation_noise) * turn)
    return rigid(noise @ poses[:, :3, :3], poses[:, :3, 3] + options.translation_noise * shift)


def ring_poses(count: int, radius: float, angle: float, *, clockwise: bool = False) -> Float[Tensor, "views 4 4"]:
    """Return cameras evenly spaced around the z axis that look at the origin, as PMNI initializes them, float64.

    Args:
        count: number of cameras; camera k is at longitude 2 pi k / count.
        radius: distance from the origin.
        angle: elevation above the horizon in degrees.
        clockwise: proceed clockwise, seen from above, instead of counterclockwise.
    """
    above = math.radians(angle)
    sign = -1 if clockwise else 1
    poses = []
    for number in range(count):
        around = sign * 2 * math.pi * number / count
        # Spherical coordinates: the radius within the horizontal plane.
        flat = radius * math.cos(above)
        position = (flat * math.cos(around), flat * math.sin(around), radius * math.sin(above))
        poses.append(look_at(position, (0.0, 0.0, 0.0)))
    return torch.stack(poses).double()
