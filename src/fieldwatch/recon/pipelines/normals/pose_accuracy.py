"""Errors of poses relative to the dataset's, after a similarity alignment, which images cannot determine."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry import Similarity, align_points


@dataclass(frozen=True, kw_only=True, eq=False)
class PoseErrors:
    """Errors of poses relative to the dataset's.

    Attributes:
        alignment: similarity from the frame of the poses to that of the dataset.
        rotations: angle between each view's aligned and known rotation, in degrees.
        positions: distance between each view's aligned and known position, in units of the scene's sphere.
    """

    alignment: Similarity
    rotations: Float[Tensor, " views"]
    positions: Float[Tensor, " views"]

    @classmethod
    def of(cls, poses: Float[Tensor, "views 4 4"], known: Float[Tensor, "views 4 4"]) -> Self:
        """Align poses with known ones by their positions (Umeyama 1991), and measure the remaining errors.

        Args:
            poses: ``world_from_camera`` of each view.
            known: ``world_from_camera`` of the dataset, in the same order.

        Raises:
            ValueError: fewer than three views, or all at one position, which does not determine a similarity.
        """
        # In float64: errors of well-aligned poses are close to float32 rounding.
        poses = poses.detach().double().cpu()
        known = known.detach().double().cpu()
        alignment = align_points(poses[:, :3, 3], known[:, :3, 3])
        aligned = alignment.apply_to_pose(poses)
        return cls(
            alignment=alignment,
            rotations=rotation_angles(aligned[:, :3, :3], known[:, :3, :3]),
            positions=(aligned[:, :3, 3] - known[:, :3, 3]).norm(dim=1),
        )

    @property
    def metrics(self) -> dict[str, float]:
        """Mean and maximum errors, as tags."""
        return {
            "Eval/pose_rotation": float(self.rotations.mean()),
            "Eval/pose_rotation_max": float(self.rotations.max()),
            "Eval/pose_position": float(self.positions.mean()),
            "Eval/pose_position_max": float(self.positions.max()),
        }


def rotation_angles(first: Float[Tensor, "n 3 3"], second: Float[Tensor, "n 3 3"]) -> Float[Tensor, " n"]:
    """Return the angles between rotations in degrees: |A - B|^2 = 8 sin^2(angle / 2), accurate for small angles."""
    distance = torch.linalg.matrix_norm(first - second)
    return torch.rad2deg(2 * torch.asin((distance / math.sqrt(8)).clamp_max(1)))
