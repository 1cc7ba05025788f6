"""Gaussians as arrays, between the files of compressed formats and `GaussianCloud`."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fieldwatch.recon.data.gaussians.checks import finite_opacities, problem_of
from fieldwatch.recon.data.gaussians.cloud import GaussianCloud
from fieldwatch.recon.data.gaussians.error import SplatFileError
from fieldwatch.recon.data.gaussians.quantization import Floats

SMALLEST_SCALE = 1e-9
"""Smallest standard deviation in world units; smaller ones, whose logarithm may be infinite, are raised to it."""
MOST_GAUSSIANS = 1 << 27
"""Largest number of Gaussians that is read: 134 million, 30 GB at degree 3. Damaged headers declare more."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RawGaussians:
    """Arrays of one file, float32, with the axes of 3DGS (x right, y down, z forward).

    Attributes:
        means: centers, shape (n, 3).
        log_scales: natural logarithms of the standard deviations, shape (n, 3).
        quaternions: rotations as (w, x, y, z), shape (n, 4).
        logits: logits of the opacities, shape (n,); infinite for opacities of exactly 0 and 1.
        constant: SH coefficients of degree 0, shape (n, 3).
        rest: SH coefficients above degree 0, shape (n, functions, 3).
        notes: notes about what the file says or lacks.
    """

    means: Floats
    log_scales: Floats
    quaternions: Floats
    logits: Floats
    constant: Floats
    rest: Floats
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, cloud: GaussianCloud) -> "RawGaussians":
        """Return the arrays of a cloud, with its 3D filter fused into scales and opacities."""
        fused = cloud.fused()

        def array(values: torch.Tensor) -> Floats:
            return values.detach().cpu().float().numpy()

        return cls(
            means=array(fused.means),
            log_scales=array(fused.log_scales),
            quaternions=array(fused.quaternions),
            logits=array(fused.opacity_logits),
            constant=array(fused.constant),
            rest=array(fused.rest),
        )

    def take(self, order: NDArray[np.intp]) -> "RawGaussians":
        """Return the Gaussians in another order."""
        return RawGaussians(
            means=self.means[order],
            log_scales=self.log_scales[order],
            quaternions=self.quaternions[order],
            logits=self.logits[order],
            constant=self.constant[order],
            rest=self.rest[order],
            notes=self.notes,
        )

    def unchecked_cloud(self, path: Path) -> GaussianCloud:
        """Return the Gaussians as tensors, with opacities other than exactly 0 and 1."""

        def tensor(values: Floats) -> torch.Tensor:
            return torch.from_numpy(np.ascontiguousarray(values, np.float32))

        logits, notes = finite_opacities(path, tensor(self.logits))
        return GaussianCloud(
            means=tensor(self.means),
            log_scales=tensor(self.log_scales),
            quaternions=tensor(self.quaternions),
            opacity_logits=logits,
            constant=tensor(self.constant),
            rest=tensor(self.rest),
            notes=(*self.notes, *notes),
        )

    def cloud(self, path: Path) -> GaussianCloud:
        """Return the Gaussians as tensors.

        Raises:
            SplatFileError: if there are none, or values that are not finite.
        """
        cloud = self.unchecked_cloud(path)
        if problem := problem_of(path, cloud):
            raise SplatFileError(problem)
        return cloud


def log_scales_of(scales: Floats) -> Floats:
    """Return logarithms of standard deviations in world units; those below `SMALLEST_SCALE` are raised to it."""
    return np.log(np.maximum(scales, np.float32(SMALLEST_SCALE)))


def check_count(path: Path, count: int) -> None:
    """Refuse a number of Gaussians that only a damaged header declares.

    Raises:
        SplatFileError: if there are more than `MOST_GAUSSIANS`, or none.
    """
    if not 0 < count <= MOST_GAUSSIANS:
        raise SplatFileError(
            f"{path}: expected 1 to {MOST_GAUSSIANS} Gaussians, got a header that declares {count}: the file is empty "
            "or damaged, copy or write it again"
        )
