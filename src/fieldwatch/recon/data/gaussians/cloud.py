"""Gaussians as 3D Gaussian splatting stores them: raw parameters, before exp, sigmoid and normalisation."""

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
        means: centres, world units.
        log_scales: natural logarithms of the standard deviations along the three axes, world units.
        quaternions: w, x, y, z; any length but 0.
        opacity_logits: opacity is their sigmoid.
        constant: spherical harmonics of degree 0: colour is 0.5 + 0.282 times this.
        rest: spherical harmonics above degree 0: 0, 3, 8 or 15 functions, each red, green, blue.
        filter_3d: Mip-Splatting's smoothing, a standard deviation in world units; None in files without it.
        extra: other columns of the file, by name.
        notes: what was done on the way, for people.
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
        """Degree of the spherical harmonics, 0 .. 3."""
        return math.isqrt(self.rest.shape[1] + 1) - 1

    def __len__(self) -> int:
        return len(self.means)

    def fused(self) -> "GaussianCloud":
        """Return Gaussians that look the same to a viewer that does not know `filter_3d`; itself where there is none.

        The smoothing adds to each variance, and the opacity shrinks by the square root of the ratio of the determinants
        (Mip-Splatting, Yu et al. 2024, eq. 9).
        """
        if self.filter_3d is None:
            return self
        # In float64: the opacity factor is a small difference of logarithms.
        variances = (2 * self.log_scales.double()).exp()
        smoothed = variances + self.filter_3d.double()[:, None].square()
        shrink = 0.5 * (variances.log() - smoothed.log()).sum(-1)
        log_opacity = torch.nn.functional.logsigmoid(self.opacity_logits.double()) + shrink
        # logit(p) = log p - log(1 - p), from log p alone; the clamp keeps p below 1.
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
