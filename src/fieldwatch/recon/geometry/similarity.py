"""Similarity transformations, Sim(3): scale, rotation and translation, and their estimation from point pairs."""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError

_ROUNDING = 1e-24  # variance relative to the squared distance from the origin that float64 rounding gives equal points


@dataclass(frozen=True, kw_only=True, eq=False)
class Similarity:
    """The transformation x -> scale * rotation @ x + translation.

    Attributes:
        scale: scale factor, greater than 0.
        rotation: rotation matrix.
        translation: translation in target units.
    """

    scale: float
    rotation: Float[Tensor, "3 3"]
    translation: Float[Tensor, "3"]

    def apply(self, points: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
        """Transform points."""
        return self.scale * points @ self.rotation.T.to(points) + self.translation.to(points)

    def apply_to_pose(self, world_from_camera: Float[Tensor, "*batch 4 4"]) -> Float[Tensor, "*batch 4 4"]:
        """Transform camera poses; they stay rigid, since the scale is applied to positions only."""
        moved = world_from_camera.clone()
        # A scaled rotation would not be a valid pose.
        moved[..., :3, :3] = self.rotation.to(moved) @ world_from_camera[..., :3, :3]
        moved[..., :3, 3] = self.apply(world_from_camera[..., :3, 3])
        return moved

    def inverse(self) -> "Similarity":
        """Return the inverse transformation."""
        inverse_linear = self.rotation.T / self.scale
        return Similarity(
            scale=1 / self.scale, rotation=self.rotation.T, translation=-inverse_linear @ self.translation
        )


def align_points(
    source: Float[Tensor, "n 3"],
    target: Float[Tensor, "n 3"],
    *,
    weights: Float[Tensor, "n"] | None = None,
    with_scale: bool = True,
) -> Similarity:
    """Return the similarity that aligns `source` with `target` in the least squares sense, computed in float64.

    Umeyama, Least-squares estimation of transformation parameters between two point patterns, PAMI 1991. If the points
    are collinear, the rotation about their line is arbitrary.

    Args:
        source: points to transform.
        target: corresponding target points, in the same order.
        weights: nonnegative weights of the pairs; None weights them equally.
        with_scale: whether to estimate the scale; False gives a rigid transformation with scale 1.

    Raises:
        InputError: if fewer than three points have positive weight, or all points coincide.
    """
    weights = torch.ones(len(source)) if weights is None else weights
    normalized = weights.double() / weights.double().sum().clamp_min(torch.finfo(torch.float64).tiny)
    points = source.double()
    target_points = target.double()
    source_mean = normalized @ points
    target_mean = normalized @ target_points
    points = points - source_mean
    target_points = target_points - target_mean
    variance = float(normalized @ points.square().sum(-1))
    if int((weights > 0).sum()) < 3 or variance <= _ROUNDING * float(source_mean.square().sum()):
        msg = (
            "a similarity needs at least three points of positive weight that do not coincide, got "
            f"{int((weights > 0).sum())} points with variance {variance:.3g}"
        )
        raise InputError(msg)
    left, singular_values, right = torch.linalg.svd((normalized[:, None] * target_points).T @ points)
    signs = torch.ones(3, dtype=torch.float64)
    # Umeyama's S flips the weakest axis if the best fit would be a reflection.
    signs[2] = torch.linalg.det(left @ right).sign()
    rotation = left @ torch.diag(signs) @ right
    # Umeyama, eq. 42.
    scale = float(singular_values @ signs) / variance if with_scale else 1.0
    return Similarity(scale=scale, rotation=rotation, translation=target_mean - scale * rotation @ source_mean)
