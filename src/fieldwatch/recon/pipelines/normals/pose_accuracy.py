"""How far poses are from the data's, after the similarity that no picture can tell."""

import math
from dataclasses import dataclass
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.geometry import Similarity, align_points


@dataclass(frozen=True, kw_only=True, eq=False)
class PoseErrors:
    """Poses against those of the data.

    Attributes:
        alignment: brings the frame of the poses onto that of the data.
        rotations: per view, the angle between the aligned rotation and the data's, degrees.
        positions: per view, the distance between the aligned position and the data's, units of the scene's sphere.
    """

    alignment: Similarity
    rotations: Float[Tensor, " views"]
    positions: Float[Tensor, " views"]

    @classmethod
    def of(cls, poses: Float[Tensor, "views 4 4"], known: Float[Tensor, "views 4 4"]) -> Self:
        """Align poses with known ones by their positions (Umeyama 1991), and measure what is left.

        Args:
            poses: `world_from_camera`.
            known: the same of the data, in the same order.

        Raises:
            ValueError: fewer than three views, or all in one place: that fixes no similarity.
        """
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
        """Means and largest, as tags."""
        return {
            "Eval/pose_rotation": float(self.rotations.mean()),
            "Eval/pose_rotation_max": float(self.rotations.max()),
            "Eval/pose_position": float(self.positions.mean()),
            "Eval/pose_position_max": float(self.positions.max()),
        }


def rotation_angles(first: Float[Tensor, "n 3 3"], second: Float[Tensor, "n 3 3"]) -> Float[Tensor, " n"]:
    """Return the angles between rotations, degrees: |A - B|^2 = 8 sin^2(angle / 2), exact for small ones, too."""
    distance = torch.linalg.matrix_norm(first - second)
    return torch.rad2deg(2 * torch.asin((distance / math.sqrt(8)).clamp_max(1)))
