"""Gaussians as stored by 3D Gaussian splatting: raw parameters, before exp, sigmoid and normalization."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class GaussianCloud:
    """Raw parameters of Gaussians, float32.

    Attributes:
        means: centers in world units.
        log_scales: natural logarithms of the standard deviations along the three axes, in world units.
        quaternions: rotations as (w, x, y, z), of any nonzero length.
        opacity_logits: logits of the opacities.
        constant: SH coefficients of degree 0; the color they encode is 0.5 + 0.282 * constant.
        rest: SH coefficients above degree 0: 0, 3, 8 or 15 functions with red, green and blue each.
        filter_3d: standard deviations of Mip-Splatting's 3D filter in world units; None in files without it.
        extra: additional columns of the file by name.
        notes: human-readable notes about corrections made while reading.
    """

    means: Float[Tensor, "n 3"]
    log_scales: Float[Tensor, "n 3"]
    quaternions: Float[Tensor, "n 4"]
    opacity_logits: Float[Tensor, "n"]
    constant: Float[Tensor, "n 3"]
    rest: Float[Tensor, "n functions 3"]
    filter_3d: Float[Tensor, "n"] | None = None
    extra: Mapping[str, Float[Tensor, "n"]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def degree(self) -> int:
        """SH degree, 0 to 3."""
        # `rest` lacks the constant function: (degree + 1)^2 - 1 functions.
        return math.isqrt(self.rest.shape[1] + 1) - 1

    def __len__(self) -> int:
        return len(self.means)

    def fused(self) -> "GaussianCloud":
        """Merge `filter_3d` into scales and opacities, for viewers that do not support it.

        The filter adds to each variance and scales the opacity by the square root of the ratio of the covariance
        determinants (Mip-Splatting, Yu et al. 2024, eq. 9). Returns `self` if `filter_3d` is None.
        """
        if self.filter_3d is None:
            return self
        # The opacity factor is a small difference of logarithms, which needs float64.
        variances = (2 * self.log_scales.double()).exp()
        smoothed = variances + self.filter_3d.double()[:, None].square()
        shrink = 0.5 * (variances.log() - smoothed.log()).sum(-1)
        log_opacity = torch.nn.functional.logsigmoid(self.opacity_logits.double()) + shrink
        # logit(p) = log p - log(1 - p), computed from log p; the clamp keeps p below 1.
        logits = log_opacity - torch.log(-torch.expm1(log_opacity.clamp_max(-1e-12)))
        return GaussianCloud(
            means=self.means,
            log_scales=(0.5 * smoothed.log()).float(),
            quaternions=self.quaternions,
            opacity_logits=logits.float(),
            constant=self.constant,
            rest=self.rest,
            extra=self.extra,
        )
