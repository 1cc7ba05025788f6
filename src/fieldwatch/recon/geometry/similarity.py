"""Similarities, Sim(3): a scale, a rotation and a translation; and the one that brings two sets of points together."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError

_ROUNDING = 1e-24  # spread of equal points over their squared distance from the origin, in float64


@dataclass(frozen=True, kw_only=True, eq=False)
class Similarity:
    """A change of coordinates: x -> scale * rotation @ x + translation.

    Attributes:
        scale: above 0.
        rotation: 3x3, determinant 1.
        translation: in units of the target.
    """

    scale: float
    rotation: Float[Tensor, "3 3"]
    translation: Float[Tensor, "3"]

    def apply(self, points: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
        """Move points."""
        return self.scale * points @ self.rotation.T.to(points) + self.translation.to(points)

    def apply_to_pose(self, world_from_camera: Float[Tensor, "*batch 4 4"]) -> Float[Tensor, "*batch 4 4"]:
        """Move a camera along with the world; the pose stays rigid (the scale acts on its position only)."""
        moved = world_from_camera.clone()
        moved[..., :3, :3] = self.rotation.to(moved) @ world_from_camera[..., :3, :3]
        moved[..., :3, 3] = self.apply(world_from_camera[..., :3, 3])
        return moved

    def inverse(self) -> "Similarity":
        """Return the change back."""
        back = self.rotation.T / self.scale
        return Similarity(scale=1 / self.scale, rotation=self.rotation.T, translation=-back @ self.translation)


def align_points(
    source: Float[Tensor, "n 3"],
    target: Float[Tensor, "n 3"],
    *,
    weights: Float[Tensor, "n"] | None = None,
    with_scale: bool = True,
) -> Similarity:
    """Return the similarity that brings `source` nearest to `target` in the least squares sense, computed in float64.

    Umeyama, Least-squares estimation of transformation parameters between two point patterns, PAMI 1991. Points on one
    line leave the turn around it open; any is returned.

    Args:
        source: points.
        target: where they belong, in the same order.
        weights: how much each counts, 0 or above; all the same, if None.
        with_scale: False for a rigid motion (scale 1).

    Raises:
        InputError: fewer than three points of positive weight, or all in one place.
    """
    weights = torch.ones(len(source)) if weights is None else weights
    share = weights.double() / weights.double().sum().clamp_min(torch.finfo(torch.float64).tiny)
    points = source.double()
    goals = target.double()
    middle = share @ points
    goal = share @ goals
    points = points - middle
    goals = goals - goal
    spread = float(share @ points.square().sum(-1))
    if int((weights > 0).sum()) < 3 or spread <= _ROUNDING * float(middle.square().sum()):
        msg = (
            f"{int((weights > 0).sum())} points of positive weight with a spread of {spread:.3g} do not fix a "
            "similarity: give at least three points that are not all in one place"
        )
        raise InputError(msg)
    left, stretch, right = torch.linalg.svd((share[:, None] * goals).T @ points)
    mirror = torch.ones(3, dtype=torch.float64)
    mirror[2] = torch.linalg.det(left @ right).sign()
    rotation = left @ torch.diag(mirror) @ right
    scale = float(stretch @ mirror) / spread if with_scale else 1.0
    return Similarity(scale=scale, rotation=rotation, translation=goal - scale * rotation @ middle)
