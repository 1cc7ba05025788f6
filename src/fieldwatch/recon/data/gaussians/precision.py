"""Differences between Gaussians before and after a file format."""

from dataclasses import dataclass

import numpy as np

from fieldwatch.recon.data.gaussians.quantization import (
    Floats,
    colors_of_constants,
    opacities_of_logits,
    unit,
)
from fieldwatch.recon.data.gaussians.raw import RawGaussians


@dataclass(frozen=True, kw_only=True)
class PrecisionLoss:
    """Absolute differences of one quantity.

    Attributes:
        quantity: name of the quantity.
        unit: unit of the differences.
        worst: largest difference.
        mean: mean difference.
    """

    quantity: str
    unit: str
    worst: float
    mean: float


def precision_loss(before: RawGaussians, after: RawGaussians) -> tuple[PrecisionLoss, ...]:
    """Compare Gaussians in the same order.

    SH coefficients that the format leaves out count as 0. Scales are compared by their ratio, since they span orders of
    magnitude; colors are those of degree 0.
    """
    missing = before.rest.shape[1] - after.rest.shape[1]
    rest = np.pad(after.rest, ((0, 0), (0, missing), (0, 0)))
    differences = [
        ("positions", "world units", np.linalg.norm(after.means - before.means, axis=1)),
        ("colors", "in 0 to 1", np.abs(colors_of_constants(after.constant) - colors_of_constants(before.constant))),
        ("opacity", "in 0 to 1", np.abs(opacities_of_logits(after.logits) - opacities_of_logits(before.logits))),
        ("scales", "relative", np.abs(np.expm1(after.log_scales.astype(np.float64) - before.log_scales))),
        ("rotations", "degrees", _angles(before.quaternions, after.quaternions)),
    ]
    if rest.size:
        differences.append(("SH coefficients", "absolute", np.abs(rest - before.rest)))
    return tuple(
        PrecisionLoss(quantity=quantity, unit=name, worst=float(values.max()), mean=float(values.mean()))
        for quantity, name, values in differences
    )


def _angles(before: Floats, after: Floats) -> Floats:
    """Return the angles between rotations, degrees."""
    one = unit(before.astype(np.float64))
    other = unit(after.astype(np.float64))
    # A quaternion and its negative are the same rotation.
    other *= np.where((one * other).sum(1, keepdims=True) < 0, -1, 1)
    # The arc tangent of half-angles is exact for small angles, where the arc cosine is not.
    halves = np.arctan2(np.linalg.norm(one - other, axis=1), np.linalg.norm(one + other, axis=1))
    return np.degrees(4 * halves)
